"""The Fault lab: a campaign as a job, its matrix, and a run replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import RunState, Verdict
from kvcanary.ui import services

APP = str(Path(__file__).parents[2] / "app.py")
SPEC = CampaignSpec(faults=["payload_bytes.bit_flip", "slot_leak.never_freed"], configs=["chain only", "partial"], seeds=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    yield tmp_path
    services.jobs.clear()


def open_page(**address: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run()
    for name, value in address.items():
        app.query_params[name] = value
    return app.switch_page("pages/fault_lab.py").run()


def html_of(app: AppTest) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


def test_a_campaign_job_leaves_a_matrix_and_a_replay(home: Path) -> None:
    manager = JobManager(home)
    try:
        run_id = manager.start(SPEC)
        record = manager.wait(run_id, 120)
    finally:
        manager.close()
    assert (record.kind, record.state, record.verdict) == ("campaign", RunState.DONE, Verdict.PASS), record.error
    assert [run.key for run in read_runs(manager.folder(run_id).path)] == plan_of(SPEC).run_keys()

    app = open_page(fault="payload_bytes.bit_flip", config="partial")
    assert not app.exception
    assert "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash" in app.code[0].value
    app.select_slider[0].set_value(0).run()
    assert not app.exception
    assert not app.code
