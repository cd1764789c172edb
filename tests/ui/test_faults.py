"""Faults tried on a running job and what happened, one test per row of docs/faults-tried.md that no other file holds."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec, RunRecord, RunState, Verdict
from kvcanary.ui import services

ROOT = Path(__file__).parents[2]
SMALL = {"pool_slot_count": 20_000, "req_to_token_pool_size": 16, "cuda_graph_max_bs": 16, "max_seq_len_per_req": 2048}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[JobManager]:
    made = JobManager(tmp_path)
    yield made
    for status in made.active():
        made.kill(status.record.id)
    made.close()


def running(manager: JobManager) -> RunRecord:
    """A long job whose worker has begun to measure."""
    run_id = manager.start(BenchmarkSpec(settings=SMALL, preset="long"))
    end = time.monotonic() + 120
    while time.monotonic() < end:
        status = manager.status(run_id)
        if status.record.pid is not None and status.progress is not None and status.progress.done > 0:
            return status.record
        time.sleep(0.05)
    raise AssertionError("the job did not begin")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_worker_that_dies_is_an_answer_with_its_signal(manager: JobManager, name: str) -> None:
    record = running(manager)
    assert record.pid is not None
    os.kill(record.pid, getattr(signal, name))
    over = manager.wait(record.id, 60)
    assert over.state is RunState.INTERRUPTED
    assert name in over.sentence
    assert over.verdict in (Verdict.PARTIAL, Verdict.NOT_RUN)


def test_a_worker_without_memory_ends_in_a_sentence_and_the_next_job_runs(manager: JobManager) -> None:
    record = running(manager)
    assert record.pid is not None
    resource.prlimit(record.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    over = manager.wait(record.id, 120)
    assert over.state in (RunState.FAILED, RunState.INTERRUPTED)
    assert over.sentence or over.error
    done = manager.wait(manager.start(BenchmarkSpec(settings=SMALL)), 240)
    assert done.state is RunState.DONE


def test_a_worker_that_hangs_is_ended_by_kill(manager: JobManager) -> None:
    record = running(manager)
    assert record.pid is not None
    os.kill(record.pid, signal.SIGSTOP)
    manager.stop(record.id)
    manager.kill(record.id)
    over = manager.wait(record.id, 60)
    assert over.state is RunState.INTERRUPTED


def test_a_data_folder_that_cannot_be_written_is_a_sentence_on_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where the data folder should be")
    monkeypatch.setenv("KVCANARY_HOME", str(blocker / "home"))
    services.jobs.clear()
    for page in ("plan", "benchmark", "fault_lab", "inspect_log", "runs"):
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run()
        app.switch_page(f"pages/{page}.py").run()
        assert not app.exception, page
        shown = "\n".join(str(element.proto.body) for element in app.get("html"))
        assert str(blocker) in shown, page


def test_the_back_button_and_two_tabs_keep_each_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    tabs = []
    for slots in ("20000", "30000"):
        tab = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        tab.query_params["pool_slot_count"] = slots
        tabs.append(tab.run())
    for tab, slots in zip(tabs, ("20000", "30000"), strict=True):
        tab.run()
        assert tab.text_input(key="field.pool_slot_count").value == slots
    # Back: the browser puts an earlier address there, and the page follows it.
    tabs[0].query_params["pool_slot_count"] = "40000"
    assert tabs[0].run().text_input(key="field.pool_slot_count").value == "40000"
    services.jobs.clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_full_file_system_ends_a_job_in_a_sentence_and_keeps_what_was_stored(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.strip()}")
    try:
        manager = JobManager(small)
        try:
            record = manager.wait(manager.start(BenchmarkSpec(settings={**SMALL, "pool_slot_count": 200_000})), 240)
        finally:
            manager.close()
        assert record.state in (RunState.FAILED, RunState.INTERRUPTED)
        assert re.search("No space left|could not be stored|disk", f"{record.sentence} {record.error}")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)
