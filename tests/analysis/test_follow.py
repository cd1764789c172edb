"""Following a growing log: appended halves of lines, rotation, truncation, late files; and the metrics of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvcanary.analysis import follow
from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.metrics import LogMetrics
from tests.analysis.rendering import Row, install, prefix, stats


def message(slot: int, rank: str = "TP0") -> str:
    return f"{prefix(rank)}{Row(slot=slot).message(total=slot, step=slot)}\n"


def slots(follower: LogFollower) -> list[int | None]:
    return [violation.slot_idx for violation in follower.builder.violations]


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_appended_pieces_are_read_once_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    text = message(5)
    path.write_text(message(4) + text[:100])
    follower = LogFollower([path])
    assert follower.poll() == path.stat().st_size
    assert slots(follower) == [4]
    append(path, text[100:260])
    follower.poll()
    assert slots(follower) == [4, 5]
    append(path, text[260:])
    follower.poll()
    assert follower.builder.violations[1].step == 5
    assert follower.poll() == 0
    assert slots(follower) == [4, 5]


def test_rotation_reads_the_rest_of_the_old_file_first(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(message(1))
    follower = LogFollower([path])
    follower.poll()
    append(path, message(2))
    path.rename(tmp_path / "server.log.1")
    follower.poll()
    append(tmp_path / "server.log.1", message(3))
    path.write_text(message(4))
    follower.poll()
    append(path, message(5))
    follower.poll()
    assert slots(follower) == [1, 2, 3, 4, 5]
    [report] = follower.log().streams
    assert report.listed == 5


@pytest.mark.parametrize("longer", [False, True])
def test_truncated_file_is_read_from_its_start(tmp_path: Path, longer: bool) -> None:
    path = tmp_path / "server.log"
    path.write_text(stats(100, 0) + "\n" + message(1) + message(2))
    follower = LogFollower([path])
    follower.poll()
    fresh = message(3, rank="TP7") * (9 if longer else 1)
    with path.open("r+") as stream:
        stream.truncate(0)
        stream.write(fresh)
    follower.poll()
    assert slots(follower) == [1, 2, *([3] * (9 if longer else 1))]


def test_file_that_comes_late_and_from_end(tmp_path: Path) -> None:
    late, old = tmp_path / "late.log", tmp_path / "old.log"
    old.write_text(message(1))
    follower = LogFollower([late, old], from_end=True)
    assert follower.missing == [late, old]
    follower.poll()
    assert follower.missing == [late]
    append(old, message(2))
    follower.poll()
    late.write_text("")
    follower.poll()
    append(late, message(3))
    follower.poll()
    assert slots(follower) == [2, 3]
    os.remove(late)
    follower.poll()
    follower.close()
    assert follower.missing == [late, old]


def test_one_look_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_BYTES", 1000)
    monkeypatch.setattr(follow, "BLOCK_BYTES", 500)
    path = tmp_path / "server.log"
    path.write_text("".join(message(slot) for slot in range(1, 20)))
    follower = LogFollower([path])
    looks = []
    while done := follower.poll():
        looks.append(done)
    assert max(looks) == 1000
    assert sum(looks) == path.stat().st_size
    assert slots(follower) == list(range(1, 20))


def test_scrape_is_parsed_by_the_client_itself(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        f"{install(ring=2)}\n{message(1)}{message(2)}{prefix('TP1')}"
        + Row(tag="HEAD_K_FULL", reasons=("verify_chain_hash", "verify_position"), slot=9).message(total=1, step=300)
        + f"\n{stats(400, 77, protected=123456, sweeps=5)}\n"
        + f"{prefix()}kv-canary: per-forward verify skipped this step due to overflow (total=12, capacity=3000); check ServerArgs / pool\n"
    )
    metrics = LogMetrics(LogFollower([path, tmp_path / "other.log"]))
    metrics.update()
    registry = CollectorRegistry()
    registry.register(metrics)
    samples = {
        (sample.name, sample.labels.get("rank", ""), sample.labels.get("launch_tag", ""), sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    assert samples["kvcanary_violations_total", "TP0", "TAIL_K_FULL", "verify_real_kv_hash"] == 2
    assert samples["kvcanary_violations_total", "TP1", "HEAD_K_FULL", "verify_chain_hash+verify_position"] == 1
    assert samples["kvcanary_counted_violations_total", "TP0", "", ""] == 77
    assert samples["kvcanary_lost_records_total", "TP0", "", ""] == 75
    assert samples["kvcanary_skipped_steps_total", "TP0", "", ""] == 12
    assert samples["kvcanary_protected_tokens_total", "TP0", "", ""] == 123456
    assert samples["kvcanary_sweep_passes_total", "TP0", "", ""] == 5
    assert samples["kvcanary_last_step", "TP1", "", ""] == 300
    assert 0 <= samples["kvcanary_last_step_age_seconds", "TP0", "", ""] < 60
    assert samples["kvcanary_missing_logs", "", "", ""] == 1
    assert ("kvcanary_protected_tokens_total", "TP1", "", "") not in samples


def test_violations_are_counted_once_over_many_looks(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    metrics = LogMetrics(LogFollower([path]))
    for slot in range(1, 6):
        append(path, message(slot))
        metrics.update()
    [violations] = [family for family in metrics.collect() if family.name == "kvcanary_violations"]
    assert [sample.value for sample in violations.samples] == [5]


@pytest.mark.parametrize("name", ["prometheus-alerts.yml", "grafana-dashboard.json"])
def test_documents_name_only_metrics_that_exist(tmp_path: Path, name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / name).read_text()
    if name.endswith(".json"):
        json.loads(text)
    registry = CollectorRegistry()
    registry.register(LogMetrics(LogFollower([tmp_path / "server.log"])))
    known = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    named = set(re.findall(r"kvcanary_\w+", text))
    assert len(named) >= 6
    assert named <= known
