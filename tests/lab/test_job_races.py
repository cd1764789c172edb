"""What happens to a run when several managers, a stop or a death meet at the same moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvcanary.errors import ConfigError, JobError
from kvcanary.lab import jobs, leases, lifecycle
from kvcanary.lab.jobs import BUSY, NOT_MINE, JobManager
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.workloads import plan_benchmark

SPEC = BenchmarkSpec(settings={"pool_slot_count": 2400, "req_to_token_pool_size": 3, "cuda_graph_max_bs": 2, "max_seq_len_per_req": 300})
WAIT_S = 60.0


def stored(root: Path, number: int = 1, **changes: Any) -> RunFolder:
    """A run on disk that no manager here has started."""
    folder = RunFolder(root / "runs" / f"20260306-070809-benchmark-{number}")
    folder.path.mkdir(parents=True)
    lifecycle.enlist(folder)
    values: dict[str, Any] = {"kind": "benchmark", "state": RunState.QUEUED, "spec": asdict(SPEC), "created_s": float(number), **changes}
    folder.write_record(RunRecord(id=folder.path.name, **values))
    return folder


def gone() -> dict[str, Any]:
    """The identity of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    started_s = psutil.Process(process.pid).create_time()
    process.wait()
    return {"state": RunState.RUNNING, "pid": process.pid, "pid_started_s": started_s}


def own() -> dict[str, Any]:
    """The identity of a process that lives: this one."""
    return {"state": RunState.RUNNING, "pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobManager]:
    """A manager that looks only when it is told to."""
    monkeypatch.setattr(jobs, "_TICK_S", 1000.0)
    manager = JobManager(tmp_path)
    yield manager
    for worker in manager._workers.values():
        worker.kill()
        worker.wait()
    manager.close()


def worker_on(folder: RunFolder) -> int:
    return subprocess.run([sys.executable, "-m", "kvcanary.lab.worker", str(folder.path)], check=False, timeout=WAIT_S).returncode


def test_only_one_of_many_gets_a_claim(tmp_path: Path) -> None:
    folder, won = stored(tmp_path), []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        won.append(folder.claim())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_a_worker_leaves_a_claimed_run_alone(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    assert folder.claim()
    before = folder.read_record()
    assert worker_on(folder) == NOT_MINE
    assert folder.read_record() == before


def test_two_managers_that_start_the_same_run_run_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TICK_S", 1000.0)
    first, second = JobManager(tmp_path), JobManager(tmp_path)
    folder = stored(tmp_path)
    try:
        first.poll()
        second.poll()
        codes = [manager._workers[folder.path.name].wait(WAIT_S) for manager in (first, second)]
        assert sorted(codes) in ([0, NOT_MINE], [0, BUSY])
        first.poll()
        second.poll()
        record = folder.read_record()
        assert (record.state, record.verdict) == (RunState.DONE, Verdict.PASS), record.sentence + record.error
        points = folder.read_points()
        assert len({(point.workload, point.batch, point.prefix) for point in points}) == len(points)
    finally:
        first.close()
        second.close()


def test_a_worker_leaves_a_device_alone_that_another_job_has(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    held = leases.take(leases.device_lock(tmp_path, "cpu"))
    assert held is not None
    assert worker_on(folder) == BUSY
    assert folder.read_record().state is RunState.QUEUED
    assert not folder.claim_file.exists()
    held.release()
    assert worker_on(folder) == 0


def test_two_managers_that_start_two_runs_on_one_device_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees only the run that it is about to start, which is what both see when they look at the same moment."""
    monkeypatch.setattr(jobs, "_TICK_S", 1000.0)
    managers = JobManager(tmp_path), JobManager(tmp_path)
    folders = stored(tmp_path, 1), stored(tmp_path, 2)
    try:
        for manager, folder in zip(managers, folders, strict=True):
            manager._spawn(folder.read_record())
        end = time.monotonic() + WAIT_S
        while any(folder.read_record().state.active for folder in folders):
            assert time.monotonic() < end, "did not end in time"
            time.sleep(0.05)
            for manager in managers:
                manager.poll()
    finally:
        for manager in managers:
            manager.close()
    early, late = sorted((folder.read_record() for folder in folders), key=lambda record: record.started_s or 0)
    assert (early.state, late.state) == (RunState.DONE, RunState.DONE)
    assert early.finished_s is not None
    assert late.started_s is not None
    assert early.finished_s <= late.started_s


def test_a_device_is_free_again_after_its_job_was_killed(idle: JobManager, tmp_path: Path) -> None:
    first, second = stored(tmp_path, 1, spec={**asdict(SPEC), "preset": "long"}), stored(tmp_path, 2)
    idle.poll()
    worker = idle._workers[first.path.name]
    end = time.monotonic() + WAIT_S
    while first.read_record().state is RunState.QUEUED:
        assert time.monotonic() < end, "did not start in time"
        time.sleep(0.02)
    assert leases.is_held(leases.device_lock(tmp_path, "cpu"))
    assert leases.is_held(first.worker_lock)
    worker.kill()
    worker.wait()
    assert not leases.is_held(leases.device_lock(tmp_path, "cpu"))
    idle.poll()
    assert first.read_record().state is RunState.INTERRUPTED
    assert second.path.name in idle._workers


def test_a_worker_of_another_host_is_known_by_its_lock(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path, state=RunState.RUNNING, host="node-7", pid=1 << 22, pid_started_s=5.0)
    held = leases.take(folder.worker_lock)
    assert held is not None
    idle.poll()
    assert folder.read_record().state is RunState.RUNNING
    idle.kill(folder.path.name)
    held.release()
    idle.poll()
    assert folder.read_record().state is RunState.INTERRUPTED


def test_a_killed_campaign_says_how_many_runs_it_finished(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path, **gone(), kind="campaign")
    (folder.path / "campaign.jsonl").write_text('{"a": 1}\n{"b": 2}\n{"c"')
    idle.poll()
    record = folder.read_record()
    assert record.verdict is Verdict.PARTIAL
    assert "Interrupted after 2 runs" in record.sentence


def test_runs_of_a_version_without_a_list_of_active_ones_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TICK_S", 1000.0)
    stored(tmp_path, 1, state=RunState.DONE)
    running = stored(tmp_path, 2, **own())
    shutil.rmtree(tmp_path / lifecycle.ACTIVE_FOLDER)
    manager = JobManager(tmp_path)
    manager.close()
    assert [status.record.id for status in manager.active()] == [running.path.name]
    assert [path.name for path in (tmp_path / lifecycle.ACTIVE_FOLDER).iterdir()] == [running.path.name]


def test_a_stop_of_a_queued_run_wins_over_a_worker_that_is_still_loading(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path)
    idle.stop(folder.path.name)
    assert worker_on(folder) == NOT_MINE
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.STOPPED, Verdict.NOT_RUN)
    assert "nothing ran" in record.sentence


def test_a_stop_after_the_claim_is_left_to_the_worker(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path)
    assert folder.claim()
    idle.stop(folder.path.name)
    assert folder.read_record().state is RunState.QUEUED
    assert folder.stop_file.exists()


def test_a_stop_while_preparing_ends_before_anything_is_measured(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    folder.stop_file.touch()
    assert worker_on(folder) == 0
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.STOPPED, Verdict.NOT_RUN)
    assert folder.read_points() == []


def test_a_dead_worker_is_noticed_by_a_manager_that_did_not_start_it(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path, **gone())
    folder.log_file.write_text("about to fall over\n")
    idle.poll()
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.INTERRUPTED, Verdict.NOT_RUN)
    assert "its worker is gone" in record.sentence
    assert "about to fall over" in record.error


def test_a_pid_that_was_given_out_again_is_no_worker(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path, **{**own(), "pid_started_s": psutil.Process().create_time() - 500})
    idle.poll()
    assert folder.read_record().state is RunState.INTERRUPTED


def test_a_result_written_at_the_last_moment_is_not_overwritten(idle: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path, **gone())
    alive = lifecycle._alive

    def finishes_first(folder: RunFolder, record: RunRecord) -> bool:
        folder.update_record(state=RunState.DONE, verdict=Verdict.PASS)
        return alive(folder, record)

    monkeypatch.setattr(lifecycle, "_alive", finishes_first)
    idle.poll()
    assert folder.read_record().state is RunState.DONE


def test_a_claim_without_a_worker_blocks_the_device_for_a_while_and_not_for_good(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path)
    assert folder.claim()
    idle.poll()
    assert folder.read_record().state is RunState.QUEUED
    assert idle._workers == {}
    os.utime(folder.claim_file, (time.time() - 60, time.time() - 60))
    idle.poll()
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.INTERRUPTED, Verdict.NOT_RUN)
    assert "its worker ended before it began" in record.sentence


def test_a_run_that_works_keeps_its_device_even_if_the_clock_went_back(idle: JobManager, tmp_path: Path) -> None:
    running, earlier = stored(tmp_path, 5, **own()), stored(tmp_path, 2)
    idle.poll()
    assert idle._workers == {}
    assert [status.record.id for status in idle.active()] == [running.path.name, earlier.path.name]
    assert [status.place for status in idle.active()] == [0, 1]
    assert idle.status(earlier.path.name).place == 1


def test_another_device_does_not_wait(idle: JobManager, tmp_path: Path) -> None:
    stored(tmp_path, 1, **own())
    other = stored(tmp_path, 2, spec={**asdict(SPEC), "device": "cuda:0"})
    assert idle.status(other.path.name).place == 0
    idle.poll()
    assert list(idle._workers) == [other.path.name]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "kvcanary.run", "version": 1}', '{"schema": "kvcanary.run", "version": 3}'])
def test_a_damaged_folder_stops_no_other_run(idle: JobManager, tmp_path: Path, text: str) -> None:
    damaged = RunFolder(tmp_path / "runs" / "20260306-070808-benchmark")
    damaged.path.mkdir()
    (damaged.path / "run.json").write_text(text)
    (tmp_path / "runs" / "20260306-070807-benchmark").mkdir()
    dead, queued = stored(tmp_path, 1, **gone()), stored(tmp_path, 2)
    idle.poll()
    assert dead.read_record().state is RunState.INTERRUPTED
    assert list(idle._workers) == [queued.path.name]
    assert [status.record.id for status in idle.active()] == [queued.path.name]


def test_a_run_that_cannot_be_written_stops_no_other_run(
    idle: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, dead = stored(tmp_path, 1, **gone()), stored(tmp_path, 2, **gone())
    write = RunFolder.write_record

    def fails_for_one(folder: RunFolder, record: RunRecord) -> None:
        if folder.path == full.path:
            raise OSError(28, "No space left on device")
        write(folder, record)

    monkeypatch.setattr(RunFolder, "write_record", fails_for_one)
    idle.poll()
    idle.poll()
    assert dead.read_record().state is RunState.INTERRUPTED
    assert capsys.readouterr().err.count("No space left") == 1
    monkeypatch.undo()
    idle.poll()
    assert full.read_record().state is RunState.INTERRUPTED


def test_a_run_deleted_by_hand_is_forgotten(idle: JobManager, tmp_path: Path) -> None:
    folder = stored(tmp_path, **own())
    assert len(idle.active()) == 1
    (folder.path / "run.json").unlink()
    folder.path.rmdir()
    idle.poll()
    assert idle.active() == []


def test_a_worker_that_cannot_be_started_is_the_result(idle: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    idle.poll()
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.FAILED, Verdict.NOT_RUN)
    assert "could not be started" in record.sentence


def test_a_worker_that_dies_while_loading_shows_what_it_printed(idle: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "elsewhere" / "psutil.py"
    broken.parent.mkdir()
    broken.write_text("raise RuntimeError('this environment is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    folder = stored(tmp_path)
    idle.poll()
    idle._workers[folder.path.name].wait(WAIT_S)
    idle.poll()
    record = folder.read_record()
    assert (record.state, record.verdict) == (RunState.INTERRUPTED, Verdict.NOT_RUN)
    assert "exit code 1" in record.sentence
    assert "this environment is broken" in record.error


def test_a_folder_that_cannot_be_used_is_refused_with_the_knob(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"data folder .*file cannot be written: .*; choose another one with KVCANARY_HOME"):
        JobManager(tmp_path / "file")


def test_a_full_disk_is_an_answer_and_leaves_no_folder(idle: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_record", full)
    with pytest.raises(JobError, match=r"the run cannot be stored under .*: No space left on device"):
        idle.start(SPEC)
    assert list((tmp_path / "runs").iterdir()) == []


def test_runs_of_the_same_second_get_folders_of_their_own(idle: JobManager) -> None:
    ids = [idle.start(SPEC) for _ in range(3)]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("real_data", ["none", "partial", "all"])
@pytest.mark.parametrize("page_size", [1, 64])
def test_the_largest_pool_of_a_refusal_does_fit(real_data: str, page_size: int) -> None:
    def spec(slots: int) -> BenchmarkSpec:
        return BenchmarkSpec(settings={**SPEC.settings, "pool_slot_count": slots, "real_data": real_data, "page_size": page_size})

    with pytest.raises(ConfigError, match="the largest pool that fits is") as refusal:
        plan_benchmark(spec(10**9), available_bytes=300_000_000)
    words = str(refusal.value).split("the largest pool that fits is ")[1].split(" slots")[0]
    largest = int("".join(character for character in words if character.isdigit()))
    assert largest % page_size == 0
    assert plan_benchmark(spec(largest), available_bytes=300_000_000).final.num_slots == largest + page_size
    with pytest.raises(ConfigError):
        plan_benchmark(spec(largest + page_size), available_bytes=300_000_000)
