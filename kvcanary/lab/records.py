"""What a job leaves on disk: one folder per run, readable while it is written and after any crash.

run.json is the record (versioned, replaced atomically), progress.json the latest stage, points.jsonl one measured point per line as it is
measured and points.parquet the same at the end, slots.parquet and cards.json the per-slot map, worker.log what the worker said. `claim`
exists from the moment that somebody has taken the run out of the queue, `stop` from the moment that somebody wants it to end, and worker.lock is
locked as long as the worker lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kvcanary.errors import StoreError
from kvcanary.lab.cards import check_cards
from kvcanary.lab.points import SAMPLE_LIMIT as SAMPLE_LIMIT
from kvcanary.lab.points import Point as Point
from kvcanary.lab.points import Timing as Timing

# Version 2 added samples_s to each timing; a version 1 document lacks them and is read as it is.
RUN_SCHEMA, RUN_VERSION = "kvcanary.run", 2
# What a job appends to as it goes, one line for each finished point of a benchmark, or run of a campaign.
_LINES = ("points.jsonl", "campaign.jsonl")
# How an uncaught exception and a fatal signal announce themselves in a worker's log.
_ERROR_STARTS = ("Traceback (most recent call last)", "Fatal Python error")


class RunState(StrEnum):
    """Where a run is in its life; interrupted means that its worker ended without saying how."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"

    @property
    def active(self) -> bool:
        """Whether it may still change."""
        return self in (RunState.QUEUED, RunState.RUNNING)


class Verdict(StrEnum):
    """The outcome of a run; partial: nothing wrong was found in the part that ran."""

    PASS = "pass"
    FAIL = "fail"
    PARTIAL = "partial"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSpec:
    """What to run: flat settings, preset of effort, backend and device by name, seed, and whether faults are planted for the map.

    step_time_s is the time of one forward of the model, as the operator states it, to see the canary's share of it; None: not stated.
    """

    settings: dict[str, Any]
    preset: str = "quick"
    backend: str = "auto"
    device: str = "cpu"
    seed: int = 1
    faults: bool = True
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One check that has to hold before anything is timed."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything about a run but its points and arrays. Times are seconds since the epoch; empty dicts mean not known yet.

    host, pid and pid_started_s name its worker. sweep: 'name/point' of the sweep that it is a point of, else empty.
    """

    id: str
    kind: str
    state: RunState
    spec: dict[str, Any]
    created_s: float
    started_s: float | None = None
    finished_s: float | None = None
    verdict: Verdict = Verdict.NOT_RUN
    sentence: str = ""
    error: str = ""
    backend: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    gate: tuple[GateCheck, ...] = ()
    coverage: dict[str, int] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    faults: tuple[dict[str, Any], ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    host: str = ""
    pid: int | None = None
    pid_started_s: float | None = None
    owner: str = ""
    sweep: str = ""

    def to_document(self) -> dict[str, Any]:
        """The JSON document with its schema name and version first."""
        # Not asdict, which copies every value: this is written at each step, and read by the hundred thousand.
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {"schema": RUN_SCHEMA, "version": RUN_VERSION, **values, "gate": [asdict(check) for check in self.gate]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a document of this or an earlier version; StoreError for another schema or a newer version."""
        check_schema(document)
        values = {key: value for key, value in document.items() if key not in ("schema", "version")}
        if not isinstance(values.get("spec"), dict):
            raise StoreError(f"not a run: spec must be an object, got {type(values.get('spec')).__name__}")
        values["gate"] = tuple(GateCheck(**check) for check in values.get("gate", ()))
        values["faults"] = tuple(values.get("faults", ()))
        values |= {name: tuple(values.get(name, ())) for name in ("skipped", "notes")}
        values["state"], values["verdict"] = RunState(values["state"]), Verdict(values["verdict"])
        return cls(**values)


def owner_key(owner: str) -> str:
    """The stable part of 'name (key)', as a login names people; empty without an owner."""
    return owner.rpartition(" (")[2].removesuffix(")")


def check_schema(document: Mapping[str, Any]) -> None:
    """StoreError for a document that is no run, or one of a newer kvcanary."""
    if document.get("schema") != RUN_SCHEMA:
        raise StoreError(f"not a run: schema is {str(document.get('schema'))[:60]!r}, expected {RUN_SCHEMA!r}")
    version = document.get("version")
    if not isinstance(version, int):
        raise StoreError(f"not a run: version must be a whole number, got {str(version)[:60]!r}")
    if version > RUN_VERSION:
        raise StoreError(f"run was written by a newer kvcanary (version {version}, this one reads up to {RUN_VERSION}); update kvcanary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The latest stage of a running job: done of total steps, and the seconds it will about still take (None: not known)."""

    stage: str
    done: int
    total: int
    message: str
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run and their atomic reading and writing."""

    path: Path

    @property
    def stop_file(self) -> Path:
        """Its existence asks the worker to stop."""
        return self.path / "stop"

    @property
    def claim_file(self) -> Path:
        """Its existence says that the run has been taken out of the queue."""
        return self.path / "claim"

    @property
    def worker_lock(self) -> Path:
        """Locked as long as its worker lives."""
        return self.path / "worker.lock"

    @property
    def log_file(self) -> Path:
        """What the worker printed."""
        return self.path / "worker.log"

    @property
    def slots_file(self) -> Path:
        """Columns of the slot map."""
        return self.path / "slots.parquet"

    @property
    def points_file(self) -> Path:
        """All points of a finished run as a table."""
        return self.path / "points.parquet"

    def claim(self) -> bool:
        """Take the run out of the queue, to run it or to stop it; True for exactly one of all who ask, in whatever process."""
        try:
            os.close(os.open(self.claim_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def write_record(self, record: RunRecord) -> None:
        """Replace run.json; readers see the old or the new one, never half of it."""
        _write_atomically(self.path / "run.json", record.to_document())

    def read_record(self) -> RunRecord:
        """The record; StoreError names the folder when it is missing or damaged."""
        try:
            document = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
            record = RunRecord.from_document(document)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, StoreError) as error:
            raise StoreError(f"run {self.path.name} cannot be read: {error}") from error
        if record.id != self.path.name:
            raise StoreError(f"run {self.path.name} cannot be read: it says that it is run {str(record.id)[:60]!r}")
        return record

    def update_record(self, **changes: Any) -> RunRecord:
        """Read, change and write the record."""
        record = replace(self.read_record(), **changes)
        self.write_record(record)
        return record

    def write_progress(self, progress: Progress) -> None:
        """Replace progress.json."""
        _write_atomically(self.path / "progress.json", asdict(progress))

    def read_progress(self) -> Progress | None:
        """The latest stage, None before the first and where it cannot be read: a missing bar is no reason to show nothing else."""
        try:
            return Progress(**json.loads((self.path / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def signature(self) -> tuple[int, ...]:
        """Changes whenever the record was replaced or something was finished."""
        lines = sum((self.path / name).stat().st_size for name in _LINES if (self.path / name).exists())
        record = (self.path / "run.json").stat()
        return record.st_ino, record.st_mtime_ns, lines

    def size_bytes(self) -> int:
        """What its files take."""
        return sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file())

    def count_finished(self) -> int:
        """Whole points of a benchmark, or runs of a campaign, stored so far, without reading what is in them."""
        found = 0
        for name in _LINES:
            with contextlib.suppress(FileNotFoundError):
                found += (self.path / name).read_bytes().count(b"\n")
        return found

    def append_point(self, point: Point) -> None:
        """Add one measured point; it survives whatever happens next."""
        with (self.path / "points.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_points(self) -> list[Point]:
        """All whole points; a last line that was cut off by a crash is left out. StoreError for damage anywhere else."""
        return list(self._points())

    def _points(self) -> Iterator[Point]:
        path = self.path / "points.jsonl"
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"points of run {self.path.name} cannot be read: {error}") from error
        # What follows the last line end is empty, or what a crash left of a line.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                yield Point.from_dict(json.loads(line))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise StoreError(f"points of run {self.path.name} are damaged in line {number}: {error}") from error

    def write_result(self, document: dict[str, Any]) -> None:
        """Write the document of a plan or an inspection."""
        _write_atomically(self.path / "result.json", document)

    def read_result(self) -> dict[str, Any] | None:
        """The document of a plan or an inspection, None for a run of another kind."""
        try:
            document = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"result.json of run {self.path.name} cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise StoreError(f"result.json of run {self.path.name} must be an object, got {type(document).__name__}")
        return document

    def write_cards(self, cards: list[dict[str, Any]]) -> None:
        """Write the cards of bad slots."""
        _write_atomically(self.path / "cards.json", cards)

    def read_cards(self) -> list[dict[str, Any]]:
        """Cards of bad slots, empty where the run did not get that far. StoreError names the card and the field that is wrong."""
        try:
            return check_cards(json.loads((self.path / "cards.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError, StoreError) as error:
            raise StoreError(f"cards.json of run {self.path.name} cannot be read: {error}") from error

    def last_words(self, limit: int = 4000) -> str:
        """The end of what the worker printed, from its last error on; of a long one the beginning and the end."""
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        text = text[max(0, *(text.rfind(start) for start in _ERROR_STARTS)) :].strip()
        return text if len(text) <= limit else f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"


def _write_atomically(path: Path, document: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(json.dumps(document, indent=1), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
