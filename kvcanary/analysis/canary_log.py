"""What a log says in sum: violations, and for each rank what its counters, sweeps, skipped steps and settings tell about coverage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from kvcanary.analysis.canary_lines import Footer, Scalar, Values
from kvcanary.analysis.violations import Stream, ViolationTable, to_datetime
from kvcanary.layout import VERIFY_CAPACITY_FACTOR

# Rare lines are kept whole up to this many of a kind; more are counted.
MAX_EVENTS = 10_000
MAX_SAMPLES = 20
Int64 = npt.NDArray[np.int64]
_MARK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """A line worth keeping beside the violations.

    kind: perturb, divergence, install, attach, health, error (another error of the server), sigquit, tree, ready, server_args.
    """

    kind: str
    stream: Stream
    file: str
    line: int
    time: datetime | None
    text: str
    values: Mapping[str, Scalar]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """What one rank's lines tell. None means: the text does not tell.

    counter: the largest violation counter, summed over restarts. unattached_counters: footers that could belong to several records.
    ring_lost: violations that left no record because the ring was full. pool_slots: a third of the verify capacity. steps_verified:
    steps of the last stats line without those that an overflow skipped. runners: canary runners that print under this prefix (target
    and draft of a speculative server share it, so their counters cannot be told apart). canary_lines: lines of the canary itself.
    """

    stream: Stream
    canary_lines: int
    listed: int
    truncated: int
    counter: int | None
    unattached_counters: tuple[int, ...]
    ring_overflow: bool | None
    ring_capacity: int | None
    ring_lost: int | None
    last_step: int | None
    stats_lines: int
    protected_tokens: int | None
    sweep_passes: int | None
    sweep_interval: int | None
    overflow_steps: int
    verify_capacity: int | None
    pool_slots: int | None
    steps_verified: int | None
    tags_active: tuple[int, int] | None
    install: Mapping[str, Scalar]
    starts: int
    runners: int
    raised: bool
    health_error: LogEvent | None
    first_time: datetime | None
    last_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLog:
    """Everything read from one or several logs.

    unread: lines that speak of the canary and could not be read, with up to 20 samples. seconds and bytes are of the reading itself.
    complete: False when the reading was stopped or a compressed file ended early. line_marks: (line, byte) of some lines of each file.
    """

    violations: ViolationTable
    streams: tuple[StreamReport, ...]
    events: tuple[LogEvent, ...]
    event_counts: Mapping[str, int]
    files: tuple[str, ...]
    bytes_read: int
    lines: int
    canary_lines: int
    unread: int
    unread_samples: tuple[str, ...]
    complete: bool
    notes: tuple[str, ...] = ()
    line_marks: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def events_of(self, *kinds: str) -> list[LogEvent]:
        """Events of these kinds, in the order read."""
        return [event for event in self.events if event.kind in kinds]


@dataclass(slots=True)
class _Start:
    """One life of the server on one rank; counters begin again at the next."""

    counter: int | None = None
    attached_total: int | None = None
    overflow_seen: bool | None = None
    listed: int = 0
    last_step: int | None = None
    stats_step: int | None = None
    protected: int | None = None
    passes: int | None = None
    sweep_lines: int = 0
    last_sweep: int | None = None
    sweep_gap: int = 0
    skipped: int = 0
    capacity: int | None = None
    install: Values = field(default_factory=dict)
    runners: int = 0
    # Target and draft runner print a stats line each for the same step: the k-th line of a step is the k-th runner's.
    by_runner: list[tuple[int, int, int]] = field(default_factory=list)
    stats_place: int = 0

    @property
    def active(self) -> bool:
        return bool(self.listed or self.skipped or self.sweep_lines) or self.last_step is not None

    def lost(self) -> int | None:
        """Violations without a record because the ring was full, None when the text cannot tell them from cut lines."""
        if self.counter is None:
            return None if self.listed else 0
        capacity = self.install.get("ring_capacity")
        if isinstance(capacity, int):
            return max(0, self.counter - capacity * max(1, self.runners))
        missing = max(0, self.counter - self.listed)
        if self.overflow_seen:
            return missing
        return 0 if not missing or self.counter == self.attached_total else None


class StreamState:
    """Adds up the lines of one rank."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.starts = [_Start()]
        self.canary_lines = 0
        self.truncated = 0
        self.raised = False
        self.health: LogEvent | None = None
        self.tags_active: tuple[int, int] | None = None
        self.unattached: list[int] = []
        self.first_time = math.inf
        self.last_time = -math.inf

    @property
    def now(self) -> _Start:
        """The current life of the server."""
        return self.starts[-1]

    def seen(self, time: float) -> None:
        """Note that the rank printed something at this time."""
        if time == time and time != self.last_time:  # not NaN
            self.first_time = min(self.first_time, time)
            self.last_time = max(self.last_time, time)

    def on_record(self, *, truncated: bool) -> None:
        """A violation record was listed."""
        self.now.listed += 1
        self.truncated += truncated

    def on_footer(self, footer: Footer) -> None:
        """The footer of one of this rank's records."""
        now = self.now
        now.counter = max(now.counter or 0, footer.total)
        now.attached_total = max(now.attached_total or 0, footer.total)
        if footer.ring_overflow is not None:
            now.overflow_seen = bool(now.overflow_seen) or footer.ring_overflow
        if footer.step is not None:
            now.last_step = max(now.last_step or 0, footer.step)

    def on_stats(self, step: int, protected: int, passes: int, violations: int, active: tuple[int, int] | None) -> None:
        """A stats line."""
        now = self.now
        now.stats_place = now.stats_place + 1 if step == now.stats_step and now.stats_place + 1 < now.runners else 0
        if now.stats_place == len(now.by_runner):
            now.by_runner.append((0, 0, 0))
        known = now.by_runner[now.stats_place]
        now.by_runner[now.stats_place] = (max(known[0], violations), max(known[1], protected), max(known[2], passes))
        counted, checked, swept = (sum(values) for values in zip(*now.by_runner, strict=True))
        now.counter = max(now.counter or 0, counted)
        now.stats_step = max(now.stats_step or 0, step)
        now.last_step = max(now.last_step or 0, step)
        now.protected = max(now.protected or 0, checked)
        now.passes = max(now.passes or 0, swept)
        self.tags_active = active or self.tags_active

    def on_many_stats(self, numbers: Sequence[Int64]) -> None:
        """Stats lines in order; numbers: step, protected tokens, sweep passes, violations, active tags, tags, each int64 [n]."""
        if self.now.runners > 1:
            for step, protected, passes, violations, active, tags in zip(*(values.tolist() for values in numbers), strict=True):
                self.on_stats(step, protected, passes, violations, (active, tags))
            return
        step, protected, passes, violations = (int(values.max()) for values in numbers[:4])
        self.on_stats(step, protected, passes, violations, (int(numbers[4][-1]), int(numbers[5][-1])))

    def on_many_sweeps(self, passes: Int64, last_steps: Int64) -> None:
        """Sweep lines in order, each int64 [n]."""
        now = self.now
        before = last_steps[:1] if now.last_sweep is None else [now.last_sweep]
        gaps = np.diff(np.concatenate([before, last_steps]))
        now.sweep_gap = int(np.gcd.reduce(np.append(now.sweep_gap, gaps[gaps > 0])))
        now.sweep_lines += len(passes) - 1
        now.last_sweep = None
        now.last_step = max(now.last_step or 0, int(last_steps.max()))
        self.on_sweep(int(passes.max()), int(last_steps[-1]))

    def on_sweep(self, passes: int, last_step: int) -> None:
        """A sweep line; the distance of sweeps gives the interval."""
        now = self.now
        now.passes = max(now.passes or 0, passes)
        now.sweep_lines += 1
        if now.last_sweep is not None and last_step > now.last_sweep:
            now.sweep_gap = math.gcd(now.sweep_gap, last_step - now.last_sweep)
        now.last_sweep = last_step
        now.last_step = max(now.last_step or 0, last_step)

    def on_overflow(self, total: int, capacity: int) -> None:
        """An overflow warning; total is cumulative, so the largest counts."""
        self.now.skipped = max(self.now.skipped, total)
        self.now.capacity = capacity

    def on_install(self, values: Values) -> None:
        """An install line; one that follows activity begins a new life of the server."""
        if self.now.active:
            self.starts.append(_Start())
        now = self.now
        now.runners += 1
        # The draft runner installs after the target; its settings are the same, its pool may differ.
        now.install = values if not now.install else now.install
        capacity = values.get("per_forward_verify_capacity")
        if isinstance(capacity, int) and now.capacity is None:
            now.capacity = capacity

    def report(self) -> StreamReport:
        """The sum over all lives of the server."""
        starts, now = self.starts, self.now
        counters = [start.counter for start in starts if start.counter is not None]
        lost = [start.lost() for start in starts]
        overflow = [start.overflow_seen for start in starts if start.overflow_seen is not None]
        protected = [start.protected for start in starts if start.protected is not None]
        passes = [start.passes for start in starts if start.passes is not None]
        steps = [start.last_step for start in starts if start.last_step is not None]
        stats_steps = [start.stats_step for start in starts if start.stats_step is not None]
        skipped = sum(start.skipped for start in starts)
        install = next((start.install for start in reversed(starts) if start.install), {})
        capacity = next((start.capacity for start in reversed(starts) if start.capacity), None)
        ring = install.get("ring_capacity")
        if ring is None and now.overflow_seen and now.listed:
            ring = now.listed  # The ring keeps its first rows and prints each of them once.
        interval = install.get("sweep_interval")
        exact_pool = capacity is not None and capacity % VERIFY_CAPACITY_FACTOR == 0
        return StreamReport(
            stream=self.stream,
            canary_lines=self.canary_lines,
            listed=sum(start.listed for start in starts),
            truncated=self.truncated,
            counter=sum(counters) if counters else None,
            unattached_counters=tuple(self.unattached),
            ring_overflow=any(overflow) if overflow else None,
            ring_capacity=ring if isinstance(ring, int) else None,
            ring_lost=None if None in lost else sum(value or 0 for value in lost),
            last_step=sum(steps) if steps else None,
            stats_lines=sum(start.stats_step is not None for start in starts),
            protected_tokens=sum(protected) if protected else None,
            sweep_passes=sum(passes) if passes else None,
            sweep_interval=interval if isinstance(interval, int) else (now.sweep_gap or None),
            overflow_steps=skipped,
            verify_capacity=capacity,
            pool_slots=capacity // VERIFY_CAPACITY_FACTOR if capacity is not None and exact_pool else None,
            steps_verified=sum(stats_steps) - skipped if stats_steps and sum(stats_steps) >= skipped else None,
            tags_active=self.tags_active,
            install=install,
            starts=len(starts),
            runners=max(start.runners for start in starts),
            raised=self.raised,
            health_error=self.health,
            first_time=to_datetime(self.first_time),
            last_time=to_datetime(self.last_time),
        )


class LogBuilder:
    """Collects what the readers of one or several logs find."""

    def __init__(self) -> None:
        self.violations = ViolationTable()
        self.states: dict[Stream, StreamState] = {}
        self.events: list[LogEvent] = []
        self.event_counts: Counter[str] = Counter()
        self.unread = 0
        self.unread_samples: list[str] = []
        self.canary_lines = 0
        self.lines = 0
        self.bytes_read = 0
        self.complete = True
        self.files: list[str] = []
        self.line_marks: dict[str, list[tuple[int, int]]] = {}
        self.notes: list[str] = []

    def state(self, stream: Stream) -> StreamState:
        """The state of one rank, made on first sight."""
        if stream not in self.states:
            self.states[stream] = StreamState(stream)
        return self.states[stream]

    def add_event(self, event: LogEvent) -> None:
        """Keep a rare line, or count it when there are too many of its kind."""
        self.event_counts[event.kind] += 1
        if self.event_counts[event.kind] <= MAX_EVENTS:
            self.events.append(event)

    def mark_line(self, file: str, line: int, place: int) -> None:
        """Remember the byte of the plain text where a line begins; one in several MiB is kept."""
        marks = self.line_marks.setdefault(file, [])
        if place == 0:
            marks.clear()  # A file that was rotated or cut begins anew under its name.
        if not marks or place >= marks[-1][1] + _MARK_BYTES:
            marks.append((line, place))

    def add_unread(self, text: str) -> None:
        """A line that speaks of the canary in a form that is not known."""
        self.unread += 1
        if len(self.unread_samples) < MAX_SAMPLES:
            self.unread_samples.append(text[:200])

    def build(self) -> CanaryLog:
        """The log as read so far; the violation table is shared, the rest is a copy."""
        return CanaryLog(
            violations=self.violations,
            streams=tuple(self.states[stream].report() for stream in sorted(self.states)),
            events=tuple(self.events),
            event_counts=dict(self.event_counts),
            files=tuple(self.files),
            bytes_read=self.bytes_read,
            lines=self.lines,
            canary_lines=self.canary_lines,
            unread=self.unread,
            unread_samples=tuple(self.unread_samples),
            complete=self.complete,
            notes=tuple(dict.fromkeys(self.notes)),
            line_marks=self.line_marks,
        )
