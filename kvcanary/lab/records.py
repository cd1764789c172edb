"""What a job leaves on disk: one folder per run, readable while it is written and after any crash.

run.json is the record (versioned, replaced atomically), progress.json the latest stage, points.jsonl one measured point per line as it is
measured, slots.npz and cards.json the per-slot map, worker.log what the worker said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kvcanary.errors import StoreError

RUN_SCHEMA, RUN_VERSION = "kvcanary.run", 1


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
    """What to run: flat settings, preset of effort, backend and device by name, seed, and whether faults are planted for the map."""

    settings: dict[str, Any]
    preset: str = "quick"
    backend: str = "auto"
    device: str = "cpu"
    seed: int = 1
    faults: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One operation: quantiles of its seconds over `repeats`, the items it handled and the bytes it moved each time."""

    p20_s: float
    p50_s: float
    p80_s: float
    repeats: int
    items: int
    bytes_moved: int

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
    first call, which the quantiles leave out.
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
    warm_up_s: float = 0.0

    @property
    def forward_s(self) -> float | None:
        """Predicted canary time of one forward: HEAD and TAIL each verify and stamp. None unless both were measured."""
        return None if self.stamp is None or self.verify is None else 2 * (self.stamp.p50_s + self.verify.p50_s)

    def share_of_bound(self, op: str) -> float | None:
        """Median of the bound over the median of the operation, 1.0 is the limit; None where not measured."""
        timing: Timing | None = getattr(self, op)
        bound: Timing | None = getattr(self, f"{op}_bound")
        return None if timing is None or bound is None else bound.p50_s / timing.p50_s

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of asdict."""
        timings = {name: Timing(**values[name]) for name in ("stamp", "stamp_bound", "verify", "verify_bound") if values.get(name)}
        return cls(**{**values, **timings})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One check that has to hold before anything is timed."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything about a run but its points and arrays. Times are seconds since the epoch; empty dicts mean not known yet."""

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
    faults: tuple[dict[str, Any], ...] = ()
    skipped: tuple[str, ...] = ()
    pid: int | None = None
    pid_started_s: float | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON document with its schema name and version first."""
        return {"schema": RUN_SCHEMA, "version": RUN_VERSION, **asdict(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a document of this or an earlier version; StoreError for another schema or a newer version."""
        if document.get("schema") != RUN_SCHEMA:
            raise StoreError(f"not a run: schema is {document.get('schema')!r}, expected {RUN_SCHEMA!r}")
        version = document.get("version")
        if not isinstance(version, int) or version > RUN_VERSION:
            raise StoreError(
                f"run was written by a newer kvcanary (version {version}, this one reads up to {RUN_VERSION}); update kvcanary"
            )
        values = {key: value for key, value in document.items() if key not in ("schema", "version")}
        values["gate"] = tuple(GateCheck(**check) for check in values.get("gate", ()))
        values["faults"] = tuple(values.get("faults", ()))
        values["skipped"] = tuple(values.get("skipped", ()))
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
    def log_file(self) -> Path:
        """What the worker printed."""
        return self.path / "worker.log"

    @property
    def slots_file(self) -> Path:
        """Arrays of the slot map."""
        return self.path / "slots.npz"

    def write_record(self, record: RunRecord) -> None:
        """Replace run.json; readers see the old or the new one, never half of it."""
        _write_atomically(self.path / "run.json", record.to_document())

    def read_record(self) -> RunRecord:
        """The record; StoreError names the folder when it is missing or damaged."""
        try:
            return RunRecord.from_document(json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(f"run {self.path.name} cannot be read: {error}") from error

    def update_record(self, **changes: Any) -> RunRecord:
        """Read, change and write the record."""
        record = replace(self.read_record(), **changes)
        self.write_record(record)
        return record

    def write_progress(self, progress: Progress) -> None:
        """Replace progress.json."""
        _write_atomically(self.path / "progress.json", asdict(progress))

    def read_progress(self) -> Progress | None:
        """The latest stage, None before the first."""
        try:
            return Progress(**json.loads((self.path / "progress.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def append_point(self, point: Point) -> None:
        """Add one measured point; it survives whatever happens next."""
        with (self.path / "points.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_points(self) -> list[Point]:
        """All whole points; a line cut off by a crash is left out."""
        return list(self._points())

    def _points(self) -> Iterator[Point]:
        try:
            lines = (self.path / "points.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield Point.from_dict(json.loads(line))
            except json.JSONDecodeError:
                return

    def write_cards(self, cards: list[dict[str, Any]]) -> None:
        """Write the cards of bad slots."""
        _write_atomically(self.path / "cards.json", cards)

    def read_cards(self) -> list[dict[str, Any]]:
        """Cards of bad slots, empty where the run did not get that far."""
        try:
            cards: list[dict[str, Any]] = json.loads((self.path / "cards.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return cards

    def last_words(self, limit: int = 2000) -> str:
        """The end of what the worker printed."""
        try:
            return self.log_file.read_text(encoding="utf-8", errors="replace")[-limit:].strip()
        except FileNotFoundError:
            return ""


def _write_atomically(path: Path, document: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1), encoding="utf-8")
    os.replace(temporary, path)
