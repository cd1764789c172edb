"""`kvcanary compare`: exit codes for a CI, names, documents."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvcanary.cli import app
from kvcanary.lab.campaign_job import CampaignSpec
from kvcanary.lab.records import RunState, Verdict
from tests.stored_runs import points, store_run


def invoke(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments, "--home", str(home)])


@pytest.mark.parametrize(("scale", "code", "word"), [(1.0, 0, "Pass:"), (1.25, 1, "Fail:"), (1.115, 3, "Partial:")])
def test_the_limit_decides_the_exit_code(tmp_path: Path, scale: float, code: int, word: str) -> None:
    first, second = store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2, measured=points(scale, seed=2))
    result = invoke(tmp_path, first, second, "--fail-below", "0.9")
    assert result.exit_code == code, result.output
    assert result.output.startswith(word)


def test_without_a_limit_a_slower_run_is_no_failure(tmp_path: Path) -> None:
    first, second = store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2, measured=points(2.0, seed=2))
    result = invoke(tmp_path, first[-8:], "latest")
    assert second[-8:] == "00000002"
    assert result.exit_code == 0
    assert "9 slower" in result.output


def test_nothing_in_common_and_a_failed_baseline_are_not_run(tmp_path: Path) -> None:
    first, empty = store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2)
    failed = store_run(tmp_path, 3, measured=points(), verdict=Verdict.FAIL, sentence="Fail: the gate did not hold.")
    assert invoke(tmp_path, first, empty).exit_code == 4
    assert invoke(tmp_path, first, empty, "--fail-below", "0.9").exit_code == 4
    assert invoke(tmp_path, failed, first, "--fail-below", "0.9").exit_code == 4
    result = invoke(tmp_path, first, failed, "--fail-below", "0.9")
    assert (result.exit_code, "the gate did not hold" in result.output) == (1, True)


def test_a_stopped_run_passes_only_in_part(tmp_path: Path) -> None:
    first = store_run(tmp_path, 1, measured=points())
    stopped = store_run(tmp_path, 2, measured=points(seed=2), state=RunState.STOPPED, verdict=Verdict.PARTIAL, sentence="Stopped after 3.")
    result = invoke(tmp_path, first, stopped, "--fail-below", "0.9")
    assert result.exit_code == 3
    assert "Stopped after 3." in result.output


def test_one_bad_of_several_decides(tmp_path: Path) -> None:
    base, good, bad = (store_run(tmp_path, n, measured=points(scale, seed=n)) for n, scale in ((1, 1.0), (2, 1.0), (3, 1.5)))
    assert invoke(tmp_path, base, good, bad, "--fail-below", "0.9").exit_code == 1
    assert invoke(tmp_path, base, good, "--fail-below", "0.9").exit_code == 0


def test_several_runs_a_side(tmp_path: Path) -> None:
    """The repeats of each run agree; its runs lie 10 % apart, so that a shift of 2 % is no difference."""
    shifts = (0.95, 1.05, 1.0, 0.97, 1.02, 1.01, 0.98)
    first = [store_run(tmp_path, n, measured=points(s, seed=n, batches=(4,))) for n, s in enumerate(shifts)]
    second = [store_run(tmp_path, n + 20, measured=points(s * 1.02, seed=n + 20, batches=(4,))) for n, s in enumerate(shifts)]
    assert "no difference shown" in invoke(tmp_path, ",".join(first), ",".join(second)).output.splitlines()[0]
    assert "slower" in invoke(tmp_path, first[0], second[0]).output.splitlines()[0]


def test_the_document_and_the_report(tmp_path: Path) -> None:
    first = store_run(tmp_path, 1, measured=points(), map_slots=4096)
    second = store_run(tmp_path, 2, measured=points(1.5, seed=2), map_slots=4096, versions={"torch": "3.0"})
    result = invoke(tmp_path, first, second, "--fail-below", "0.9", "--json", "-", "--html", str(tmp_path / "c.html"))
    document = json.loads(result.stdout)
    assert (document["schema"], document["verdicts"][0]["verdict"]) == ("kvcanary.comparison", "fail")
    assert {"group": "versions", "name": "torch", "values": ["2.9", "3.0"]} in document["differences"]
    assert {row["op"] for row in document["comparisons"][0]["rows"]} == {"stamp", "verify", "plan", "stamp_bound", "verify_bound"}
    report = (tmp_path / "c.html").read_text()
    assert [heading in report for heading in ("<h2>What differs", "<h2>Ratios", "<h2>Throughput", "<h2>Slot maps")] == [True] * 4


def campaign(home: Path, number: int, found: float, speed: float = 1.0) -> str:
    """A campaign of 20 seeds, of which a share is found."""
    run_id = store_run(home, number, kind="campaign", spec=asdict(CampaignSpec(seeds=20)))
    lines = [
        {
            "key": ["payload_bytes", "bit_flip", "partial", seed], "record": None, "changed": 1,
            "latency_steps": 1 if seed < 20 * found else None, "corrupt_tokens": 0, "false_reports": 0, "reports": {}, "slots_flagged": 0,
            "requests_flagged": 0, "steps": 20, "tokens": 100, "verified": 2000, "canary_s": 0.02 / speed * (1 + 0.01 * (seed * 7 % 20)),
        }
        for seed in range(20)
    ]  # fmt: skip
    (home / "runs" / run_id / "campaign.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_id


@pytest.mark.parametrize(
    ("found", "speed", "code", "word"), [(1.0, 1.0, 0, "Pass:"), (0.2, 1.0, 1, "Fail:"), (1.0, 0.5, 1, "Fail:"), (0.85, 1.0, 3, "Partial:")]
)
def test_campaigns_are_judged_by_detection_rates_and_speeds(tmp_path: Path, found: float, speed: float, code: int, word: str) -> None:
    first, second = campaign(tmp_path, 1, 1.0), campaign(tmp_path, 2, found, speed)
    result = invoke(tmp_path, first, second, "--fail-below", "0.9")
    assert (result.exit_code, result.output.partition(" ")[0]) == (code, word)
    assert f"20 of 20  {20 * found:.0f} of 20" in result.output


def test_the_document_of_campaigns(tmp_path: Path) -> None:
    first, second = campaign(tmp_path, 1, 1.0), campaign(tmp_path, 2, 0.2)
    result = invoke(tmp_path, first, second, "--json", "-", "--html", str(tmp_path / "c.html"))
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    (one,) = document["comparisons"]
    assert (document["kind"], one["rates"][0]["outcome"], one["rates"][0]["after"]) == (
        "campaign", "finds less", {"detected": 4, "injected": 20},
    )  # fmt: skip
    assert (one["costs"][0]["outcome"], one["costs"][0]["ratio"]) == ("no difference shown", pytest.approx(1.0))
    assert [heading in (tmp_path / "c.html").read_text() for heading in ("<h2>Detection rates", "<h2>Costs", "<h2>Matrices")] == [True] * 3
    assert invoke(tmp_path, first, store_run(tmp_path, 3, kind="campaign")).exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing", "latest"), "no run 'nothing'"),
        (("latest", "latest", "--fail-below", "0"), "must be a ratio of rates such as 0.9, got 0"),
        (("2026", "latest"), "4 runs have '2026' in their id"),
        ((",", "latest"), "a side must name at least one run"),
        (("00000001", "00000003"), "is a plan; compare takes benchmarks or campaigns"),
        (("00000001", "00000004"), "is a benchmark and run 20260105-101112-campaign-00000004 a campaign; name runs of one kind"),
        (("00000004,00000004", "00000004"), "a campaign's repeats are its seeds; name one campaign a side"),
    ],
)
def test_bad_input_is_2_and_says_what(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    for number in (1, 2):
        store_run(tmp_path, number, measured=points())
    store_run(tmp_path, 3, kind="plan", created_s=1.0)
    store_run(tmp_path, 4, kind="campaign", created_s=1.0)
    result = invoke(tmp_path, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
