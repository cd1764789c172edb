"""Where run folders lie, which of them are still to run, and what becomes of one whose worker has died."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

from kvcanary.errors import JobError, StoreError
from kvcanary.lab.leases import is_held
from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict

# Run folders, and an empty file for each that is queued or running, so that nobody has to read all of them.
RUNS_FOLDER, ACTIVE_FOLDER = "runs", "active"
# A worker writes its record within milliseconds of its claim; a claim without one for so long belongs to a worker that died between.
_CLAIM_GRACE_S = 10.0
# A worker looks for a stop between two timed calls, of which the longest take seconds.
_STOP_GRACE_S = 20.0
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z]+(?:-[0-9a-f]+)?")


def new_folder(runs: Path, kind: str) -> RunFolder:
    """A new folder for a run, whose name no other host has given either: several may share a store. JobError when the disk is full."""
    try:
        while True:
            path = runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{kind}-{secrets.token_hex(4)}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return RunFolder(path)
    except OSError as error:
        raise JobError(f"the run cannot be stored under {runs}: {error.strerror}") from error


def enlist(folder: RunFolder) -> None:
    """Put a run on the list of those that managers look after."""
    active = folder.path.parents[1] / ACTIVE_FOLDER
    active.mkdir(exist_ok=True)
    (active / folder.path.name).touch()


def active_records(root: Path) -> list[RunRecord]:
    """Queued and running ones, oldest first; what cannot be read is left to `Store.damaged` to name."""
    records = []
    for marker in _markers(root):
        folder = RunFolder(root / RUNS_FOLDER / marker.name)
        try:
            record = folder.read_record()
        except StoreError:
            # Its writer may be between marker and record; one that was removed by hand will not come back.
            if not folder.path.is_dir():
                marker.unlink(missing_ok=True)
            continue
        if record.state.active:
            records.append(record)
        else:
            marker.unlink(missing_ok=True)
    return sorted(records, key=lambda record: (record.created_s, record.id))


def _markers(root: Path) -> list[Path]:
    try:
        return [path for path in (root / ACTIVE_FOLDER).iterdir() if RUN_ID.fullmatch(path.name)]
    except FileNotFoundError:
        return []


def list_active_once(root: Path) -> None:
    """Make the list for folders of versions that did not keep one."""
    if (root / ACTIVE_FOLDER).is_dir():
        return
    fresh = root / f".{ACTIVE_FOLDER}.{os.getpid()}.{threading.get_ident()}"
    fresh.mkdir()
    for path in (root / RUNS_FOLDER).iterdir():
        if RUN_ID.fullmatch(path.name):
            try:
                active = RunFolder(path).read_record().state.active
            except StoreError:
                continue
            if active:
                (fresh / path.name).touch()
    try:
        fresh.rename(root / ACTIVE_FOLDER)
    except OSError:
        # Somebody else was first, and has put runs on it already.
        shutil.rmtree(fresh)


def settle(folder: RunFolder) -> RunRecord:
    """The record of a run; one whose worker has died without a word is marked as interrupted first. StoreError when it cannot be read."""
    record = folder.read_record()
    gone = record.state is RunState.RUNNING and not _alive(folder, record)
    if gone:
        # Read again: the last thing that a worker does is to write its record.
        record = folder.read_record()
    if gone and record.state.active:
        return mark_interrupted(folder, "its worker is gone (killed, or the machine was restarted)")
    if record.state is RunState.QUEUED and _age_s(folder.claim_file) > _CLAIM_GRACE_S:
        return mark_interrupted(folder, "its worker ended before it began")
    return record


def _alive(folder: RunFolder, record: RunRecord) -> bool:
    """Whether the worker still runs, here or on another host that shares the folder. Earlier versions kept a pid and no lock."""
    if folder.worker_lock.is_file():
        return is_held(folder.worker_lock)
    return record.pid is not None and lives(record.pid, record.pid_started_s)


def lives(pid: int, started_s: float | None) -> bool:
    """Whether a process runs; its start time guards against a pid that was given out again."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - (started_s or 0)) < 2)
    except psutil.Error:
        return False


def mark_interrupted(folder: RunFolder, cause: str) -> RunRecord:
    """Close a run whose worker ended without closing it; what it measured makes it partial."""
    if overdue(folder):
        cause = "its worker did not react to the request to stop and was ended"
    finished, parts = folder.count_finished(), "runs" if folder.read_record().kind == "campaign" else "points"
    return folder.update_record(
        state=RunState.INTERRUPTED,
        finished_s=time.time(),
        verdict=Verdict.PARTIAL if finished else Verdict.NOT_RUN,
        sentence=f"Interrupted after {finished} {parts}: {cause}. What was measured is kept.",
        error=f"{cause}\n{folder.last_words()}".strip(),
    )


def overdue(folder: RunFolder) -> bool:
    """Whether the worker was asked to stop so long ago that it will not."""
    return _age_s(folder.stop_file) > _STOP_GRACE_S


def _age_s(path: Path) -> float:
    """Seconds since a file was written; 0 when there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
