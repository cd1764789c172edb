"""`kvcanary bench` as a command: what it says beforehand, what it measures, how it is stopped, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvcanary.cli import app, bench
from tests.stored_runs import points, store_run

SMALL = ["--pool-slot-count", "3000", "--req-to-token-pool-size", "16", "--max-seq-len-per-req", "700", "--cuda-graph-max-bs", "8"]
SMALL += ["--chunked-prefill-size", "128", "--max-prefill-tokens", "256"]


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *SMALL, "--home", str(home), *arguments])


def test_a_run_ends_with_one_document_and_the_exit_code_of_its_verdict(tmp_path: Path) -> None:
    result = run(tmp_path, "--real-data", "partial", "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema"], document["state"], document["verdict"]) == ("kvcanary.run", "done", "pass")
    assert {point["workload"] for point in document["points"]} == {"decode", "prefill", "sweep"}
    assert all(check["ok"] for check in document["gate"])
    assert document["coverage"]["verified"] > 2000
    assert [fault["kind"] for fault in document["faults"]][:2] == ["token bit", "position off by one"]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_rate_above_its_bound_is_no_percentage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [point] = points(batches=[4])
    assert point.verify is not None
    above = replace(point, verify_bound=replace(point.verify, p50_s=1.3 * point.verify.p50_s))
    name = store_run(tmp_path, 1, measured=[above])
    monkeypatch.setattr(bench, "_run", lambda spec, store, errors: store.record(name))
    shown = run(tmp_path)
    assert shown.exit_code == 0, shown.output
    [stamp, verify] = [line for line in shown.stdout.splitlines() if line.startswith("decode")]
    assert "10.0 %" in stamp.replace("\u202f", " ")
    assert "above it, so no limit" in verify


def test_a_dry_run_says_what_would_run_and_runs_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "--dry-run", "--json", "-")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("kvcanary.benchmark_plan", 1)
    assert {"workload": "decode", "layout": "contiguous", "hash_mode": "none", "batch": 8, "prefix": 374, "extend": 1} in document["points"]
    assert f"{len(document['points'])} points" in document["sentence"]
    assert document["estimate_s"] > 0
    assert document["sentence"] in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "-1"], "seed must be 0 or more, got -1; change --seed"),
        (["--preset", "heroic"], "preset must be one of quick/standard/long"),
        (["--run-on", "tpu"], "device must be cpu or cuda:N"),
        (["--backend", "abacus"], "abacus"),
        (["--pool-slot-count", "0"], "kv-canary: pool_slot_count must be positive, got 0"),
        (["--pool-slot-count", "12.5"], "pool_slot_count"),
        (["--pool-slot-count", "4000000000"], "the largest pool that fits is"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.glob("runs/*"))


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    result = run(tmp_path / "file")
    assert result.exit_code == 2
    assert "with KVCANARY_HOME" in result.stderr


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_stops_the_run_and_keeps_what_was_measured(tmp_path: Path, interrupts: int) -> None:
    command = [sys.executable, "-m", "kvcanary", "bench", *SMALL, "--home", str(tmp_path), "--preset", "long", "--json", "-"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
        # Ignored where a script began the tests in the background, and so by what they begin.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        wait_for_points(tmp_path, process)
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3, errors
    document = json.loads(output)
    assert document["state"] in ("stopped", "interrupted")
    assert document["verdict"] == "partial"
    assert document["points"]
    assert "Traceback" not in errors


def wait_for_points(home: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if any(path.stat().st_size for path in home.glob("runs/*/points.jsonl")):
            return
        time.sleep(0.05)
    raise AssertionError("no point was measured")
