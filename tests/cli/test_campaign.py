"""`kvcanary campaign` as a command."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvcanary.cli import app
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import RunState

FEW = ["--faults", "payload_bytes.bit_flip,payload_bytes.v_row", "--configs", "chain only;partial", "--seeds", "1"]
TRACES = {
    "mooncake": '{"timestamp": %d, "input_length": 30, "output_length": 40, "hash_ids": [5]}',
    "azure": "2024-05-10 00:00:%02d.1234567,30,40",
    "burstgpt": "%d,model,30,40,70,log",
}
HEADERS = {
    "mooncake": "",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["campaign", *arguments])


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_document_tells_seen_from_out_of_reach_and_the_run_is_kept(home: Path) -> None:
    result = run(*FEW, "--json", "-")
    assert result.exit_code == 0, result.output
    told = document(result)
    assert (told["schema"], told["runs"], told["planned"], told["verdict"]) == ("kvcanary.campaign", 4, 4, "pass")
    cells = {(cell["variant"], cell["config"]): cell for cell in told["cells"]}
    assert cells["bit_flip", "partial"]["rate"] == 1.0
    assert cells["bit_flip", "partial"]["coverage_p50"] > 0
    assert cells["bit_flip", "chain only"]["outcome"] == "out of reach"
    assert "--kv-canary-real-data partial" in told["sentence"]
    assert "payload_bytes.v_row" in told["sentence"]
    assert len(read_runs(home / "runs" / told["run"])) == 4


def test_a_campaign_whose_worker_was_killed_goes_on_and_ends_with_the_same_cells(home: Path) -> None:
    spec = CampaignSpec(faults=["payload_bytes.bit_flip", "slot_alias.wrong_cell"], configs=["partial", "strict"], seeds=4)
    manager = JobManager(home)
    try:
        run_id = manager.start(spec)
        lines = home / "runs" / run_id / "campaign.jsonl"
        while not lines.exists() or lines.read_text().count("\n") < 3:
            assert manager.status(run_id).record.state.active
            time.sleep(0.02)
        manager.kill(run_id)
        record = manager.wait(run_id, 60)
    finally:
        manager.close()
    left = read_runs(home / "runs" / run_id)
    assert record.state is RunState.INTERRUPTED
    assert 3 <= len(left) < 16

    resumed = run("--resume", run_id, "--json", "-")
    whole = run("--faults", ",".join(spec.faults), "--configs", ";".join(spec.configs), "--seeds", "4", "--json", "-")
    assert (resumed.exit_code, whole.exit_code) == (0, 0), resumed.output
    told, expected = document(resumed), document(whole)
    assert (told["runs"], told["planned"]) == (16, 16)
    for cell in (*told["cells"], *expected["cells"]):
        del cell["canary_s_per_step"]
    assert told["cells"] == expected["cells"]
    assert read_runs(home / "runs" / told["run"])[: len(left)] == left


@pytest.mark.parametrize("kind", list(TRACES))
def test_a_trace_is_served_and_its_bad_rows_are_named_by_line(kind: str, home: Path, tmp_path: Path) -> None:
    rows = [TRACES[kind] % second for second in range(12)]
    text = HEADERS[kind] + "\n".join([*rows[:3], "not a row", *rows[3:]]) + "\n"
    path = tmp_path / "day.log"
    path.write_text(text)
    bad = text.split("\n").index("not a row") + 1
    result = run(*FEW, "--trace", str(path), "--speed", "50", "--json", "-")
    assert result.exit_code == 0, result.output
    assert f"left out: line {bad}:" in result.stderr
    assert f"12 requests of day.log ({kind}, longest " in result.stderr
    told = document(result)
    assert next(cell for cell in told["cells"] if cell["variant"] == "bit_flip" and cell["config"] == "partial")["rate"] == 1.0


def test_bad_choices_are_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "prose").write_text("once upon a time\n")
    for options, words in (
        (["--faults", "moths"], "kind.variant"),
        (["--faults", "payload_bytes.moths"], "payload_bytes has no variant"),
        (["--configs", "best"], "configs must be among"),
        (["--seeds", "0"], "seeds must be between 1 and 100, got 0"),
        (["--workload", "poetry"], "workload must be among"),
        (["--trace", str(tmp_path / "none")], "cannot be read"),
        (["--trace", str(tmp_path / "prose")], "line 1: no known trace"),
        (["--resume", "yesterday"], "run id must look like"),
    ):
        result = run(*options)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert not list((home / "runs").glob("*-campaign*"))


def test_a_named_workload_is_served(home: Path) -> None:
    result = run("--faults", "payload_bytes.bit_flip", "--configs", "partial", "--seeds", "1", "--workload", "agents", "--json", "-")
    assert result.exit_code == 0, result.output
    (found,) = read_runs(home / "runs" / document(result)["run"])
    assert found.detected
    assert plan_of(CampaignSpec(workload="agents")).options.pool_slot_count > 512


def test_a_preset_is_told_row_by_row(home: Path) -> None:
    result = run("--preset", "zeroed-page", "--configs", "chain only;partial", "--json", "-")
    assert result.exit_code == 0, result.output
    told = document(result)
    assert (told["schema"], told["fault"]) == ("kvcanary.preset", "payload_bytes.zeroed")
    chain, partial = told["results"]
    assert (chain["lines"], bool(chain["reason"])) == ([], True)
    assert partial["lines"] == ["step 1: TAIL_K_FULL slot 6 verify_real_kv_hash", "step 1: TAIL_K_FULL slot 7 verify_real_kv_hash"]
    text = run("--preset", "cell-points-at-slot-0", "--configs", "strict").stdout
    assert "step 1: STRICT request 1 position 3 cell at slot 0" in text
    assert run("--preset", "ghost").exit_code == 2
