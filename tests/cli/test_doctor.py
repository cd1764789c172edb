"""`kvcanary doctor` on a machine without a GPU."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from kvcanary.cli import app, doctor
from kvcanary.lab.records import GateCheck

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")


def test_every_backend_that_runs_here_passes_its_gate():
    done = CliRunner().invoke(app, ["doctor", "--json", "-"])
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert document["verdict"] == "pass"
    assert {(result["backend"], result["device"]) for result in document["results"]} >= {("torch", "cpu"), ("numba", "cpu")}
    assert all(check["ok"] for result in document["results"] for check in result["checks"])
    triton = next(backend for backend in document["backends"] if backend["name"] == "triton")
    assert not triton["available"]
    assert triton["reason"]


def test_a_failed_check_fails_the_command_and_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "run_gate", lambda *_: [GateCheck(name="equal bytes", ok=False, detail="differs in: records")])
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "FAIL numba on cpu: equal bytes (differs in: records)" in done.stdout
