"""`kvcanary watch` on real files and a real port."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from kvcanary.cli import app
from tests.analysis.rendering import Row, prefix, stats

runner = CliRunner()


def test_prints_what_is_there_and_tells_by_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"{stats(100, 0)}\n")
    assert runner.invoke(app, ["watch", str(path), "--for", "0"]).exit_code == 0
    path.write_text(f"{prefix('TP3')}{Row(slot=55).message(step=8)}\n")
    result = runner.invoke(app, ["watch", str(path), "--for", "0"])
    assert result.exit_code == 1
    assert result.stdout.strip() == "2027-02-03 04:05:06 TP3 TAIL_K_FULL verify_real_kv_hash slot 55 position 40 step 8"


def test_each_violation_is_one_json_object(tmp_path: Path) -> None:
    path = tmp_path / "server\u202e.log"
    path.write_text("".join(f"{prefix('TP3')}{Row(slot=slot).message(step=8)}\n" for slot in (55, 56)))
    result = runner.invoke(app, ["watch", str(path), "--for", "0", "--json-lines"])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["rank"], one["launch_tag"], one["slot_idx"], one["step"]) for one in found] == [
        ("TP3", "TAIL_K_FULL", 55, 8),
        ("TP3", "TAIL_K_FULL", 56, 8),
    ]
    assert found[0]["file"] == str(path)
    assert result.stdout.isascii()


def test_taken_port_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    result = runner.invoke(app, ["watch", str(path), "--for", "0", "--metrics-port", "1", "--metrics-address", "203.0.113.77"])
    assert result.exit_code == 2
    assert "--metrics-port 1" in result.stderr


def test_serves_metrics_while_it_follows_through_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"{prefix()}{Row(slot=1).message()}\n")
    command = [sys.executable, "-m", "kvcanary", "watch", str(path), "--metrics-port", "0", "--interval", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        url = process.stderr.readline().split()[-1]
        assert "slot 1" in process.stdout.readline()
        path.rename(tmp_path / "server.log.1")
        path.write_text(f"{prefix()}{Row(slot=2).message()}\n")
        assert "slot 2" in process.stdout.readline()
        deadline = time.monotonic() + 20
        count = 0.0
        while count != 2 and time.monotonic() < deadline:
            with urllib.request.urlopen(url, timeout=10) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
            count = sum(sample.value for family in families if family.name == "kvcanary_violations" for sample in family.samples)
        assert count == 2
    finally:
        process.terminate()
        process.wait(timeout=20)
