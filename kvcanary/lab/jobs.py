"""Jobs: one worker process per run, one at a time per device, others queue; all state is on disk, so anybody can find it again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

import kvcanary
from kvcanary.errors import JobError, StoreError
from kvcanary.lab.campaign_job import CampaignSpec, plan_of
from kvcanary.lab.records import BenchmarkSpec, Progress, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.workloads import plan_benchmark

RUNS_FOLDER = "runs"
_TICK_S = 0.3
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z]+(?:-[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job as a page or a command shows it. `place` is 0 while it runs, 1 for the next in the queue, None when it is over."""

    record: RunRecord
    progress: Progress | None
    place: int | None


class JobManager:
    """Starts, queues, watches and stops jobs under one data folder. Thread-safe; several managers may share a folder.

    A job belongs to nobody: it goes on when this process ends, and the next manager finds it. Call `close` to stop watching.
    """

    def __init__(self, root: Path) -> None:
        self._runs = root / RUNS_FOLDER
        self._runs.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="kvcanary-jobs", daemon=True)
        self.poll()
        self._watcher.start()

    def start(self, spec: BenchmarkSpec | CampaignSpec) -> str:
        """Queue a run and return its id; ConfigError when the spec cannot run, before anything is started."""
        if isinstance(spec, CampaignSpec):
            plan_of(spec)
            kind = "campaign"
        else:
            plan_benchmark(spec)
            kind = "benchmark"
        with self._lock:
            run_id = self._new_id(kind)
            folder = self.folder(run_id)
            folder.path.mkdir()
            folder.write_record(RunRecord(id=run_id, kind=kind, state=RunState.QUEUED, spec=asdict(spec), created_s=time.time()))
            self.poll()
        return run_id

    def stop(self, run_id: str) -> None:
        """Ask a job to stop; what it has measured is kept. JobError when it is over already."""
        with self._lock:
            folder = self.folder(run_id)
            record = folder.read_record()
            if not record.state.active:
                raise JobError(f"run {run_id} is {record.state}; only a queued or running job can be stopped")
            folder.stop_file.touch()
            if record.state is RunState.QUEUED and run_id not in self._workers:
                folder.update_record(state=RunState.STOPPED, finished_s=time.time(), sentence="Stopped while it was queued; nothing ran.")

    def kill(self, run_id: str) -> None:
        """End a worker that does not react to `stop`."""
        pid = self.folder(run_id).read_record().pid
        if pid is not None and self._alive(self.folder(run_id).read_record()):
            os.kill(pid, signal.SIGKILL)

    def status(self, run_id: str) -> JobStatus:
        """The job's record, its latest progress, and its place in the queue."""
        folder = self.folder(run_id)
        record = folder.read_record()
        return JobStatus(record=record, progress=folder.read_progress(), place=self._place(record))

    def active(self) -> list[JobStatus]:
        """Running and queued jobs, oldest first."""
        return [self.status(record.id) for record in self._records() if record.state.active]

    def folder(self, run_id: str) -> RunFolder:
        """The folder of a run; JobError for something that is no run id."""
        if not _RUN_ID.fullmatch(run_id):
            raise JobError(f"run id must look like 20260131-235959-benchmark, got {run_id[:60]!r}")
        return RunFolder(self._runs / run_id)

    def poll(self) -> None:
        """Notice workers that ended, then start what can start."""
        with self._lock:
            records = [record for record in self._records() if record.state.active]
            for record in records:
                self._notice_end(record)
            busy = set()
            for record in (self.folder(record.id).read_record() for record in records):
                if not record.state.active:
                    continue
                device = record.spec["device"]
                if record.state is RunState.QUEUED and device not in busy and record.id not in self._workers:
                    self._spawn(record)
                busy.add(device)

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
            except (OSError, StoreError) as error:
                # A full disk or a folder deleted by hand must not end the watching of all other jobs.
                print(f"kvcanary: watching jobs: {error}", file=sys.stderr)

    def _spawn(self, record: RunRecord) -> None:
        folder = self.folder(record.id)
        package_root = str(Path(kvcanary.__file__).parents[1])
        search = os.pathsep.join(part for part in (package_root, os.environ.get("PYTHONPATH", "")) if part)
        with folder.log_file.open("ab") as log:
            self._workers[record.id] = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "kvcanary.lab.worker", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": search},
                start_new_session=True,
            )

    def _notice_end(self, record: RunRecord) -> None:
        worker = self._workers.get(record.id)
        if worker is None:
            if record.state is RunState.RUNNING and not self._alive(record):
                self._mark_interrupted(record.id, "its worker is gone (killed, or the machine was restarted)")
            return
        code = worker.poll()
        if code is None:
            return
        del self._workers[record.id]
        if self.folder(record.id).read_record().state.active:
            self._mark_interrupted(record.id, _exit_words(code))

    def _mark_interrupted(self, run_id: str, cause: str) -> None:
        folder = self.folder(run_id)
        points = len(folder.read_points())
        words = folder.last_words()
        folder.update_record(
            state=RunState.INTERRUPTED,
            finished_s=time.time(),
            verdict=Verdict.PARTIAL if points else Verdict.NOT_RUN,
            sentence=f"Interrupted after {points} points: {cause}. What was measured is kept.",
            error=f"{cause}\n{words}".strip(),
        )

    def _place(self, record: RunRecord) -> int | None:
        if not record.state.active:
            return None
        same_device = [other.id for other in self._records() if other.state.active and other.spec["device"] == record.spec["device"]]
        return same_device.index(record.id)

    def _records(self) -> list[RunRecord]:
        paths = [path for path in self._runs.iterdir() if _RUN_ID.fullmatch(path.name) and (path / "run.json").exists()]
        return sorted((RunFolder(path).read_record() for path in paths), key=lambda record: (record.created_s, record.id))

    def _new_id(self, kind: str) -> str:
        stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{kind}"
        taken = {path.name for path in self._runs.glob(f"{stem}*")}
        return next(name for number in range(1, 10_000) if (name := stem if number == 1 else f"{stem}-{number}") not in taken)

    @staticmethod
    def _alive(record: RunRecord) -> bool:
        """Whether the recorded worker still runs; the start time guards against a pid that was given out again."""
        if record.pid is None:
            return False
        try:
            process = psutil.Process(record.pid)
            return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - (record.pid_started_s or 0)) < 2)
        except psutil.Error:
            return False


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"its worker ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often the system's answer to too little memory)" if name == "SIGKILL" else ""
    return f"its worker was ended by {name}{hint}"
