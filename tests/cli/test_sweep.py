"""`kvcanary sweep`: dry run, exit codes, documents; one real sweep of two small benchmarks."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvcanary.cli import app
from kvcanary.lab.records import RunState
from kvcanary.lab.sweep import read_sweep
from tests.stored_runs import store_run

SPEC = """
name: small
kind: bench
base: {pool_slot_count: 512, req_to_token_pool_size: 4, max_seq_len_per_req: 128, cuda_graph_max_bs: 4, max_prefill_tokens: 128}
grid: {real_data: [none, partial]}
points: [{page_size: 0}]
"""


def invoke(home: Path, text: str, *arguments: str) -> Result:
    file = home / "spec.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["sweep", str(file), *arguments, "--home", str(home)])


def test_a_dry_run_prints_points_time_memory_and_what_is_done(tmp_path: Path) -> None:
    keys = [point.key for point in read_sweep(SPEC).points]
    store_run(tmp_path, 1, sweep=f"small/{keys[0]}")
    store_run(tmp_path, 2, sweep=f"small/{keys[1]}", state=RunState.FAILED)
    plan = json.loads(invoke(tmp_path, SPEC, "--dry-run", "--json", "-").stdout)
    assert [(point["point"], point["done"], bool(point["problem"])) for point in plan["points"]] == [
        ("real_data=none", True, False), ("real_data=partial", False, False), ("page_size=0", False, True),
    ]  # fmt: skip
    assert plan["missing"] == 1
    assert plan["estimate_s"] == plan["points"][1]["estimate_s"] > 0
    assert plan["peak_bytes"] == plan["points"][1]["peak_bytes"] > 0
    result = invoke(tmp_path, SPEC, "--dry-run")
    assert result.exit_code == 0
    assert "3 points: 1 done, 1 missing, 1 cannot run; about " in result.output
    assert "cannot run: page_size must be at least 1" in result.output
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_what_cannot_run_is_not_called_missing_and_takes_no_time(tmp_path: Path) -> None:
    assert invoke(tmp_path, "{name: none, kind: bench, base: {page_size: 0}}", "--dry-run").output.endswith("\n1 point: 1 cannot run.\n")


def test_the_file_that_the_help_shows_is_one(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["sweep", "--help"], terminal_width=120).output
    shown = text.split("list` find them:")[1].split("Exit code")[0]
    assert len(read_sweep(textwrap.dedent(shown)).points) == 4


def test_a_sweep_runs_once_and_is_found_again(tmp_path: Path) -> None:
    first = invoke(tmp_path, SPEC, "--json", "-")
    assert first.exit_code == 3, first.output
    points = json.loads(first.stdout)["points"]
    assert sorted((point["state"], point["verdict"], point["found"]) for point in points) == [
        ("done", "pass", False), ("done", "pass", False), ("refused", "not run", False),
    ]  # fmt: skip
    again = json.loads(invoke(tmp_path, SPEC, "--json", "-").stdout)["points"]
    assert {point["run_id"] for point in again} == {point["run_id"] for point in points}
    assert invoke(tmp_path, SPEC.replace("points: [{page_size: 0}]", "")).exit_code == 0


def test_a_failed_verdict_is_1_and_nothing_at_all_is_4(tmp_path: Path) -> None:
    keys = [point.key for point in read_sweep(SPEC).points]
    store_run(tmp_path, 1, sweep=f"small/{keys[0]}", verdict="fail")
    store_run(tmp_path, 2, sweep=f"small/{keys[1]}")
    assert invoke(tmp_path, SPEC).exit_code == 1
    assert invoke(tmp_path, "{name: none, kind: bench, base: {page_size: 0}}").exit_code == 4


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("{name: x, kind: walk}", (), "kind must be one of bench/campaign"),
        (SPEC, ("--executor", "cloud"), "executor must be local or ray, got 'cloud'"),
    ],
)
def test_bad_input_is_2(tmp_path: Path, text: str, arguments: tuple[str, ...], sentence: str) -> None:
    result = invoke(tmp_path, text, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_file_that_is_not_there_is_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sweep", str(tmp_path / "none.yaml"), "--home", str(tmp_path)])
    assert (result.exit_code, "No such file" in result.output) == (2, True)
