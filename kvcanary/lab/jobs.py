"""Jobs: one worker process per run, one at a time per device, others queue; all state is on disk, so anybody can find it again.

Who writes the record: before a run is claimed nobody; then the one who claimed it, which is its worker, or whoever stopped it in the
queue; and once that worker is gone, any manager that notices.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import kvcanary
from kvcanary.errors import JobError, StoreError
from kvcanary.lab import lifecycle
from kvcanary.lab.leases import device_lock, is_held
from kvcanary.lab.records import BenchmarkSpec, Progress, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.workloads import plan_benchmark

if TYPE_CHECKING:
    from kvcanary.lab.campaign_job import CampaignSpec

# Exit codes of a worker that found its run claimed by somebody else, and of one that found its device taken.
NOT_MINE, BUSY = 3, 4
_TICK_S = 0.3

_Action = Callable[[RunRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job as a page or a command shows it. `place` is 0 while it runs or starts, 1 for the next in the queue, None when it is over."""

    record: RunRecord
    progress: Progress | None
    place: int | None


class JobManager:
    """Starts, queues, watches and stops jobs under one data folder. Thread-safe; several managers on one host may share a folder.

    A job belongs to nobody: it goes on when this process ends, and the next manager finds it. Call `close` to stop watching. Raises
    JobError when the folder cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._runs = root, root / lifecycle.RUNS_FOLDER
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            lifecycle.list_active_once(root)
        except OSError as error:
            raise JobError(f"data folder {root} cannot be written: {error.strerror}; choose another one with KVCANARY_HOME") from error
        self._lock = threading.RLock()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._complaints: set[str] = set()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="kvcanary-jobs", daemon=True)
        self.poll()
        self._watcher.start()

    def start(self, spec: BenchmarkSpec | CampaignSpec, *, owner: str = "", sweep: str = "") -> str:
        """Queue a run and return its id; ConfigError when the spec cannot run, JobError when the disk is full, before anything is started."""
        if isinstance(spec, BenchmarkSpec):
            plan_benchmark(spec)
            kind = "benchmark"
        else:
            # Brings torch, for which a benchmark's page and `kvcanary --help` need not wait.
            from kvcanary.lab.campaign_job import plan_of

            plan_of(spec)
            kind = "campaign"
        with self._lock:
            folder = lifecycle.new_folder(self._runs, kind)
            lifecycle.enlist(folder)
            record = RunRecord(
                id=folder.path.name, kind=kind, state=RunState.QUEUED, spec=asdict(spec), created_s=time.time(), owner=owner, sweep=sweep
            )  # fmt: skip
            try:
                folder.write_record(record)
            except OSError as error:
                folder.path.rmdir()
                raise JobError(f"the run cannot be stored under {self._runs}: {error.strerror}") from error
            self.poll()
        return record.id

    def stop(self, run_id: str) -> None:
        """Ask a job to stop; what it has measured is kept. One that does not react is ended. JobError when it is over already."""
        folder = self.folder(run_id)
        record = folder.read_record()
        if not record.state.active:
            raise JobError(f"run {run_id} is {record.state}; only a queued or running job can be stopped")
        folder.stop_file.touch()
        if record.state is RunState.QUEUED and folder.claim():
            folder.update_record(state=RunState.STOPPED, finished_s=time.time(), sentence="Stopped while it was queued; nothing ran.")

    def kill(self, run_id: str) -> None:
        """End a worker that does not react to `stop`."""
        record = self.folder(run_id).read_record()
        worker = self._workers.get(run_id)
        if worker is not None:
            worker.kill()
        elif record.pid is not None and record.host in ("", platform.node()) and lifecycle.lives(record.pid, record.pid_started_s):
            os.kill(record.pid, signal.SIGKILL)

    def status(self, run_id: str) -> JobStatus:
        """The job's record, its latest progress, and its place in the queue."""
        folder = self.folder(run_id)
        record = folder.read_record()
        place = _place(record, lifecycle.active_records(self._root)) if record.state.active else None
        return JobStatus(record=record, progress=folder.read_progress(), place=place)

    def active(self) -> list[JobStatus]:
        """Running jobs, then queued ones, oldest first."""
        records = lifecycle.active_records(self._root)
        records.sort(key=lambda record: record.state is RunState.QUEUED)
        return [
            JobStatus(record=record, progress=self.folder(record.id).read_progress(), place=_place(record, records)) for record in records
        ]

    def folder(self, run_id: str) -> RunFolder:
        """The folder of a run; JobError for something that is no run id."""
        if not lifecycle.RUN_ID.fullmatch(run_id):
            raise JobError(f"run id must look like 20260131-235959-benchmark, got {run_id[:60]!r}")
        return RunFolder(self._runs / run_id)

    def poll(self) -> None:
        """Notice workers that ended, then start what can start. Trouble with one run is reported and leaves the others alone."""
        with self._lock:
            for record in lifecycle.active_records(self._root):
                self._guarded(self._notice_end, record)
            # Read again: a record may have changed, and a run may have been deleted by hand.
            records = lifecycle.active_records(self._root)
            busy = {device_of(record) for record in records if record.state is RunState.RUNNING or self._taken(record)}
            for record in records:
                device = device_of(record)
                if record.state is RunState.QUEUED and device not in busy:
                    busy.add(device)
                    # Another manager may start another run at this moment; the worker asks again, and then holds the lock.
                    if not is_held(device_lock(self._root, device)):
                        self._guarded(self._spawn, record)

    def wait(self, run_id: str, timeout_s: float) -> RunRecord:
        """Block until the run is over; JobError after the timeout."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            record = self.folder(run_id).read_record()
            if not record.state.active:
                return record
            time.sleep(0.05)
        raise JobError(f"run {run_id} is not over after {timeout_s:g} s")

    def close(self) -> None:
        """Stop watching; the jobs go on."""
        self._closing.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._closing.wait(_TICK_S):
            try:
                self.poll()
            except OSError as error:
                self._complain(f"{self._runs}: {error}")

    def _guarded(self, action: _Action, record: RunRecord) -> None:
        try:
            action(record)
        except (OSError, StoreError) as error:
            self._complain(f"run {record.id}: {error}")

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            print(f"kvcanary: watching jobs: {text}", file=sys.stderr)

    def _taken(self, record: RunRecord) -> bool:
        """Whether a queued run is being started, here or by somebody else."""
        return record.id in self._workers or self.folder(record.id).claim_file.exists()

    def _spawn(self, record: RunRecord) -> None:
        folder = self.folder(record.id)
        package_root = str(Path(kvcanary.__file__).parents[1])
        search = os.pathsep.join(part for part in (package_root, os.environ.get("PYTHONPATH", "")) if part)
        try:
            with folder.log_file.open("ab") as log:
                self._workers[record.id] = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-m", "kvcanary.lab.worker", str(folder.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": search},
                    start_new_session=True,
                )
        except OSError as error:
            if folder.claim():
                cause = f"its worker could not be started: {error}"
                folder.update_record(
                    state=RunState.FAILED, finished_s=time.time(), sentence=f"Not run: {cause}.", error=cause, verdict=Verdict.NOT_RUN
                )

    def _notice_end(self, record: RunRecord) -> None:
        worker = self._workers.get(record.id)
        code = None if worker is None else worker.poll()
        if record.state is RunState.RUNNING and lifecycle.overdue(self.folder(record.id)):
            self.kill(record.id)
        if worker is not None:
            if code is None:
                return
            del self._workers[record.id]
            folder = self.folder(record.id)
            # Read after the worker was seen to end: the last thing that it does is to write its record.
            last = folder.read_record()
            if last.state.active and code not in (NOT_MINE, BUSY) and (last.pid == worker.pid or (last.pid is None and folder.claim())):
                lifecycle.mark_interrupted(folder, _exit_words(code or 0))
                return
        lifecycle.settle(self.folder(record.id))


def device_of(record: RunRecord) -> str:
    """The device that a run asks for."""
    return str(record.spec.get("device", "cpu"))


def _place(record: RunRecord, active: Sequence[RunRecord]) -> int:
    """Jobs that come before this one on its device."""
    if record.state is RunState.RUNNING:
        return 0
    others = [other for other in active if device_of(other) == device_of(record) and other.id != record.id]
    age = (record.created_s, record.id)
    return sum(other.state is RunState.RUNNING or (other.created_s, other.id) < age for other in others)


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"its worker ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often the system's answer to too little memory)" if name == "SIGKILL" else ""
    return f"its worker was ended by {name}{hint}"
