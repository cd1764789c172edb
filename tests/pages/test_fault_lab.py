"""The Fault lab: a campaign as a job, its matrix, and a run replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import run_one
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import RunState, Verdict
from kvcanary.lab.replay import replay
from kvcanary.layout import SlotStatus
from kvcanary.ui import services

APP = str(Path(__file__).parents[2] / "app.py")
SPEC = CampaignSpec(faults=["payload_bytes.bit_flip", "slot_leak.never_freed"], configs=["chain only", "partial"], seeds=1)
KEY = ("payload_bytes", "bit_flip", "partial", 0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    yield tmp_path
    services.jobs.clear()


def test_a_campaign_job_leaves_a_matrix_and_a_replay(home: Path) -> None:
    manager = JobManager(home)
    try:
        run_id = manager.start(SPEC)
        record = manager.wait(run_id, 120)
    finally:
        manager.close()
    assert (record.kind, record.state, record.verdict) == ("campaign", RunState.DONE, Verdict.PASS), record.error
    assert [run.key for run in read_runs(manager.folder(run_id).path)] == plan_of(SPEC).run_keys()

    app = AppTest.from_file(APP, default_timeout=60).run()
    app.session_state["cell"] = KEY[:3]
    app.switch_page("pages/fault_lab.py").run()
    assert not app.exception
    assert any("payload_bytes.bit_flip under partial" in title.value for title in app.subheader)
    assert "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash" in app.code[0].value
    app.slider[0].set_value(app.slider[0].min).run()
    assert app.code[0].value == "nothing reported in this step"


def test_a_replay_reports_what_the_run_reported() -> None:
    plan, backend = plan_of(SPEC), choose_backend("auto", "cpu")[0]
    run, played = run_one(plan, KEY, backend), replay(plan, KEY, backend)
    assert played.record == run.record
    assert run.record is not None
    first = next(frame for frame in played.frames if frame.reports)
    assert first.index - run.record.step == run.latency_steps
    assert first.status[run.record.slots[0]] == SlotStatus.CORRUPTED
    assert sum(frame.changed for frame in played.frames) == run.changed
