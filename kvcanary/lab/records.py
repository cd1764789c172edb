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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np

from kvcanary.errors import StoreError

# Version 2 added samples_s to each timing; a version 1 document lacks them and is read as it is.
# What a job appends to as it goes, one line for each finished point of a benchmark, or run of a campaign.
_LINES = ("points.jsonl", "campaign.jsonl")
RUN_SCHEMA, RUN_VERSION = "kvcanary.run", 2
SAMPLE_LIMIT = 128
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
class Timing:
    """One operation: quantiles of its seconds over `repeats`, the items it handled and the bytes it moved each time.

    samples_s holds single repeats in the order in which they ran, at most SAMPLE_LIMIT of them and evenly spread, so that two runs can be
    compared with an interval; runs of before version 2 have none.
    """

    p20_s: float
    p50_s: float
    p80_s: float
    repeats: int
    items: int
    bytes_moved: int
    samples_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, times_s: Sequence[float], *, items: int, bytes_moved: int) -> Self:
        """Quantiles and samples of measured seconds."""
        p20, p50, p80 = (float(value) for value in np.quantile(times_s, (0.2, 0.5, 0.8)))
        kept = np.unique(np.linspace(0, len(times_s) - 1, min(len(times_s), SAMPLE_LIMIT)).round().astype(int))
        # A tenth of a nanosecond is below every clock's step, and keeps the stored number short.
        samples = tuple(round(float(times_s[index]), 10) for index in kept)
        return cls(
            p20_s=p20, p50_s=p50, p80_s=p80, repeats=len(times_s), items=items, bytes_moved=bytes_moved, samples_s=samples
        )  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of asdict."""
        return cls(**{**values, "samples_s": tuple(values.get("samples_s", ()))})

    @property
    def items_per_s(self) -> float:
        """Items per second at the median."""
        return self.items / self.p50_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second at the median."""
        return self.bytes_moved / self.p50_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured workload. `stamp` and `verify` are timed apart; a bound moves the same bytes without hashing, in the same run.

    workload: decode, prefill or sweep; layout: contiguous or shuffled slots; batch requests with `prefix` tokens each. warm_up_s is the
    first call, which the quantiles leave out. stamp and verify are TAIL launches; head_stamp and head_verify are measured where they differ
    from them, which is where TAIL hashes real KV. plan is the one launch per forward that finds the slots. On an accelerator that captures
    graphs, stamp_graph and verify_graph are the same launches replayed from a graph. halves is 2 where the V half has launches of its own.
    """

    workload: str
    layout: str
    hash_mode: str
    batch: int
    prefix: int
    stamp: Timing | None = None
    stamp_bound: Timing | None = None
    verify: Timing | None = None
    verify_bound: Timing | None = None
    plan: Timing | None = None
    head_stamp: Timing | None = None
    head_verify: Timing | None = None
    stamp_graph: Timing | None = None
    verify_graph: Timing | None = None
    warm_up_s: float = 0.0
    halves: int = 1

    @property
    def forward_s(self) -> float | None:
        """Predicted canary time of one forward of the full group: plan once, then for each half HEAD and TAIL each verify and stamp.

        The K half is measured and the V half taken to be like it. None for a sweep, which is no forward. A batch without prefix has nothing
        to verify.
        """
        if self.workload == "sweep" or self.stamp is None or (self.prefix and self.verify is None):
            return None
        launches = (self.head_verify or self.verify, self.head_stamp or self.stamp, self.verify, self.stamp)
        half_s = sum(launch.p50_s for launch in launches if launch is not None)
        return self.halves * half_s + (self.plan.p50_s if self.plan is not None else 0.0)

    def share_of_bound(self, op: str) -> float | None:
        """Median of the bound over the median of the operation, 1.0 is the limit; None where not measured."""
        timing: Timing | None = getattr(self, op)
        bound: Timing | None = getattr(self, f"{op}_bound")
        return None if timing is None or bound is None else bound.p50_s / timing.p50_s

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of asdict."""
        timings = {name: Timing.from_dict(values[name]) for name in _TIMINGS if values.get(name)}
        return cls(**{**values, **timings})


_TIMINGS = ("stamp", "stamp_bound", "verify", "verify_bound", "plan", "head_stamp", "head_verify", "stamp_graph", "verify_graph")


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
        if document.get("schema") != RUN_SCHEMA:
            raise StoreError(f"not a run: schema is {document.get('schema')!r}, expected {RUN_SCHEMA!r}")
        version = document.get("version")
        if not isinstance(version, int):
            raise StoreError(f"not a run: version must be a whole number, got {version!r}")
        if version > RUN_VERSION:
            raise StoreError(
                f"run was written by a newer kvcanary (version {version}, this one reads up to {RUN_VERSION}); update kvcanary"
            )
        values = {key: value for key, value in document.items() if key not in ("schema", "version")}
        if not isinstance(values.get("spec"), dict):
            raise StoreError(f"not a run: spec must be an object, got {type(values.get('spec')).__name__}")
        values["gate"] = tuple(GateCheck(**check) for check in values.get("gate", ()))
        values["faults"] = tuple(values.get("faults", ()))
        values |= {name: tuple(values.get(name, ())) for name in ("skipped", "notes")}
        values["state"], values["verdict"] = RunState(values["state"]), Verdict(values["verdict"])
        return cls(**values)


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
        except (OSError, ValueError, TypeError):
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
            except (ValueError, TypeError, AttributeError) as error:
                raise StoreError(f"points of run {self.path.name} are damaged in line {number}: {error}") from error

    def write_result(self, document: dict[str, Any]) -> None:
        """Write the document of a plan or an inspection."""
        _write_atomically(self.path / "result.json", document)

    def read_result(self) -> dict[str, Any] | None:
        """The document of a plan or an inspection, None for a run of another kind."""
        try:
            document: dict[str, Any] = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"result of run {self.path.name} cannot be read: {error}") from error
        return document

    def write_cards(self, cards: list[dict[str, Any]]) -> None:
        """Write the cards of bad slots."""
        _write_atomically(self.path / "cards.json", cards)

    def read_cards(self) -> list[dict[str, Any]]:
        """Cards of bad slots, empty where the run did not get that far."""
        try:
            cards: list[dict[str, Any]] = json.loads((self.path / "cards.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"cards of run {self.path.name} cannot be read: {error}") from error
        return cards

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
