"""Jobs with real worker processes: run, stop, kill, queue, find again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvcanary.errors import ConfigError, JobError, StoreError
from kvcanary.lab import lifecycle
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import RUN_VERSION, BenchmarkSpec, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.tables import point_rows
from kvcanary.store.database import Store
from kvcanary.store.export import export_csv

SMALL = {
    "pool_slot_count": 4000, "req_to_token_pool_size": 4, "cuda_graph_max_bs": 4, "max_seq_len_per_req": 512, "chunked_prefill_size": 256,
    "max_prefill_tokens": 256, "real_data": "partial", "num_kv_heads": 1, "head_dim": 32, "kv_dtype": "bfloat16",
}  # fmt: skip
QUICK = BenchmarkSpec(settings=SMALL)
LONG = BenchmarkSpec(settings=SMALL, preset="long")
WAIT_S = 120


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[JobManager]:
    made = JobManager(tmp_path)
    yield made
    for status in made.active():
        made.stop(status.record.id)
        made.kill(status.record.id)
    made.close()


def wait_for(what: object, timeout_s: float = WAIT_S) -> None:
    assert callable(what)
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def test_a_run_from_start_to_stored_result(manager: JobManager, tmp_path: Path) -> None:
    run_id = manager.start(QUICK)
    record = manager.wait(run_id, WAIT_S)
    assert (record.state, record.verdict) == (RunState.DONE, Verdict.PASS), record.sentence + record.error
    runs = Store.open(None, tmp_path)
    points = runs.points(run_id)
    assert {point.workload for point in points} == {"decode", "prefill", "sweep"}
    assert all(row["p20_s"] <= row["p50_s"] <= row["p80_s"] for row in point_rows(points))
    assert len(export_csv(runs, run_id).splitlines()) == 1 + len(point_rows(points))
    assert record.coverage["verified"] + record.coverage["free"] + record.coverage["reserved"] == record.coverage["slots"]
    assert record.machine["cores"]
    assert record.versions["torch"]
    arrays, cards = runs.slots(run_id), runs.cards(run_id)
    assert arrays is not None
    assert len(arrays.status) == 4001
    marked = {card["slot"] for card in cards}
    assert {fault["slot"] for fault in record.faults if not fault["kind"].startswith(("table", "swapped"))} <= marked
    assert runs.document(run_id)["schema"] == "kvcanary.run"
    runs.delete(run_id)
    assert runs.list() == []


def test_one_job_per_device_and_the_others_queue_with_their_place(manager: JobManager) -> None:
    first, second, third = (manager.start(LONG) for _ in range(3))
    assert [manager.status(run_id).place for run_id in (first, second, third)] == [0, 1, 2]
    manager.stop(second)
    assert manager.status(second).record.state is RunState.STOPPED
    assert manager.status(third).place == 1
    manager.stop(first)
    assert manager.wait(first, WAIT_S).state is RunState.STOPPED
    wait_for(lambda: manager.status(third).record.state is RunState.RUNNING)


def test_a_stopped_run_keeps_its_points(manager: JobManager) -> None:
    run_id = manager.start(LONG)
    wait_for(lambda: manager.folder(run_id).read_points())
    manager.stop(run_id)
    record = manager.wait(run_id, WAIT_S)
    assert (record.state, record.verdict) == (RunState.STOPPED, Verdict.PARTIAL)
    assert manager.folder(run_id).read_points()
    with pytest.raises(JobError, match="only a queued or running job can be stopped"):
        manager.stop(run_id)


def test_a_killed_worker_is_noticed_and_what_it_measured_is_kept(manager: JobManager) -> None:
    run_id = manager.start(LONG)
    wait_for(lambda: manager.folder(run_id).read_points())
    pid = manager.status(run_id).record.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    record = manager.wait(run_id, WAIT_S)
    assert (record.state, record.verdict) == (RunState.INTERRUPTED, Verdict.PARTIAL)
    assert "SIGKILL" in record.sentence
    assert manager.folder(run_id).read_points()


def test_a_worker_that_does_not_react_to_stop_is_ended(manager: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_STOP_GRACE_S", 0.5)
    run_id = manager.start(LONG)
    wait_for(lambda: manager.status(run_id).record.pid)
    pid = manager.status(run_id).record.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    manager.stop(run_id)
    record = manager.wait(run_id, WAIT_S)
    assert record.state is RunState.INTERRUPTED
    assert "did not react to the request to stop" in record.sentence


def test_a_crash_shows_the_last_words(manager: JobManager) -> None:
    run_id = manager.start(LONG)
    wait_for(lambda: manager.folder(run_id).read_points())
    pid = manager.status(run_id).record.pid
    assert pid is not None
    os.kill(pid, signal.SIGSEGV)
    record = manager.wait(run_id, WAIT_S)
    assert record.state is RunState.INTERRUPTED
    assert "SIGSEGV" in record.sentence
    assert "Fatal Python error: Segmentation fault" in record.error


def test_a_new_manager_finds_a_running_and_a_dead_job(tmp_path: Path) -> None:
    first = JobManager(tmp_path)
    run_id = first.start(LONG)
    wait_for(lambda: first.folder(run_id).read_points())
    first.close()
    second = JobManager(tmp_path)
    try:
        assert [status.record.id for status in second.active()] == [run_id]
        pid = second.status(run_id).record.pid
        assert pid is not None
        psutil.Process(pid).kill()
        first._workers[run_id].wait()
        record = second.wait(run_id, WAIT_S)
        assert record.state is RunState.INTERRUPTED
        assert "its worker is gone" in record.sentence
    finally:
        second.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {**SMALL, "pool_slot_count": 0}}, "kv-canary: pool_slot_count must be positive, got 0"),
        ({"preset": "huge"}, "preset must be one of quick/standard/long.*, got 'huge'"),
        ({"device": "tpu"}, "device must be cpu or cuda:N"),
        ({"settings": {**SMALL, "pool_slot_count": 10**12}}, "the largest pool that fits is [1-9]"),
        ({"device": "cuda:99"}, "device cuda:99 is not there"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(manager: JobManager, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        manager.start(replace(QUICK, **changes))
    assert manager.active() == []


@pytest.mark.parametrize("run_id", ["../../etc", "x", "", "20260101-000000-benchmark/..", "20260101-000000-BENCH"])
def test_run_ids_are_no_paths(manager: JobManager, run_id: str) -> None:
    with pytest.raises(JobError, match="run id must look like"):
        manager.folder(run_id)


def test_a_newer_record_is_refused_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "20260101-000000-benchmark"
    folder.mkdir(parents=True)
    record = RunRecord(id=folder.name, kind="benchmark", state=RunState.DONE, spec={}, created_s=1.0)
    RunFolder(folder).write_record(record)
    assert Store.open(None, tmp_path).record(folder.name) == record
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace(f'"version": {RUN_VERSION}', '"version": 99'))
    with pytest.raises(StoreError, match="written by a newer kvcanary"):
        Store.open(None, tmp_path).record(folder.name)
    (folder / "run.json").write_text("{")
    store = Store.open(None, tmp_path)
    with pytest.raises(StoreError, match=f"run {folder.name} cannot be read"):
        store.record(folder.name)
    # What the database knows of it is still listed.
    assert [row.state for row in store.list()] == [RunState.DONE]
