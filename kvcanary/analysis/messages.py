"""Puts the lines of a log together into messages: records with their bodies and footers, wrapped and cut ones, and whose they are.

A footer is attached only where one record alone can own it; lines of ranks that write at once may be mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kvcanary.analysis import canary_lines
from kvcanary.analysis.canary_lines import MARKER, CanaryEvent, Footer, State, Values
from kvcanary.analysis.canary_log import LogBuilder, LogEvent, StreamState
from kvcanary.analysis.violations import NO_RANK, RECORD_FIELDS, Record, Stream, to_datetime
from kvcanary.importers.log_lines import LogLine

TRACEBACK = "Traceback (most recent call last)"
# Words that make a line worth an event, beside the canary's own.
SERVER_WORDS = {
    "Received sigquit": "sigquit",
    "Tree cache initialized": "tree",
    "server_args=": "server_args",
    "max_total_num_tokens=": "ready",
    "Error: ": "error",
}
_FIELD = "launch_tag="
_NUMBERS = len(RECORD_FIELDS) - 2
# How many lines may stand between the parts of one message: lines of other ranks, not of this one.
OPEN_LINES = 40
_WRAP_LINES = 16
# A raised message with a full ring is 7000 lines long, but each record in it keeps the traceback's rank alive.
TRACE_LINES = 600
_EVENT_CHARS = 4000
_BEFORE_CHARS = 200


@dataclass(slots=True)
class _OpenRecord:
    """A record whose body may still follow."""

    row: int
    state: StreamState
    record: Record
    line: int
    has_header: bool = False
    contested: bool = False


@dataclass(slots=True)
class _Wrapped:
    """A record whose structured line has not ended yet."""

    line: LogLine
    text: str
    first_line: int
    last_line: int


@dataclass(slots=True)
class Trace:
    """The traceback header above an unprefixed record: it carries the rank."""

    rank: str
    time: str
    line: int
    used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """What one rank's records that were read elsewhere leave open.

    record: the last one, None when it has its body; row, line: where it stands in the table and in the file. born: the line since which
    one or another of the rank's records was open. fresh: it was not open before that line.
    """

    state: StreamState
    record: Record | None = None
    row: int = -1
    line: int = 0
    born: int = 0
    fresh: bool = True


class MessageReader:
    """Takes the lines of one log in order and fills a builder.

    server and file name the log (see LogReader); running_reqs tells the batch size before the line being read.
    """

    def __init__(self, builder: LogBuilder, *, server: str, file: str, running_reqs: Callable[[], int | None]) -> None:
        self._builder, self._server, self._file = builder, server, file
        self._running_reqs = running_reqs
        self._line = 0
        self._open: dict[Stream, _OpenRecord] = {}
        self._wrapped: _Wrapped | None = None
        self._traces: dict[str, Trace] = {}
        self._half_footer: tuple[int, Footer, int] | None = None
        self._times: tuple[str, float] = ("", math.nan)

    @property
    def attending(self) -> bool:
        """A message is open, so the next line may belong to it whatever it says."""
        return bool(self._open or self._wrapped)

    @property
    def wrapped(self) -> bool:
        """A record waits for the rest of its wrapped line."""
        return self._wrapped is not None

    def state(self, rank: str, source: str = "") -> StreamState:
        """Counters of one rank of this log."""
        return self._builder.state(Stream(self._server, source, rank or NO_RANK))

    def seconds(self, time: str) -> float:
        """'YYYY-MM-DD HH:MM:SS' in seconds, as if it were UTC; NaN when it is no time."""
        if time != self._times[0]:
            try:
                seconds = datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp() if time else math.nan
            except ValueError:
                seconds = math.nan
            self._times = (time, seconds)
        return self._times[1]

    def add_whole(self, state: StreamState, record: Record, footer: Footer, time: float, line_number: int) -> None:
        """A message that was read at once, with its own footer."""
        self._open.pop(state.stream, None)
        row = self._append(state, record, time, line_number)
        self._set_footer(row, state, footer)

    def reopen(self, lasts: Sequence[LastRecord]) -> None:
        """Records were read elsewhere: those at the end of each rank's may still get a body, in the order as if each had been read here."""
        for last in sorted(lasts, key=lambda last: last.born):
            known = self._open.get(last.state.stream)
            if known is None or last.fresh or last.record is None or last.born - known.line > OPEN_LINES:
                self._open.pop(last.state.stream, None)
            if last.record is not None:
                self._open[last.state.stream] = _OpenRecord(row=last.row, state=last.state, record=last.record, line=last.line)

    def trace_before(self, source: str, line: int) -> Trace | None:
        """The traceback header that an unprefixed record on this line belongs to."""
        trace = self._traces.get(source)
        return trace if trace and line - trace.line <= TRACE_LINES else None

    def read(self, line: LogLine, number: int) -> None:
        """The next line of interest; number is its place in the file."""
        self._line = number
        self._age()
        if (wrapped := self._wrapped) is not None and wrapped.line.source == line.source:
            joined = None if line.prefixed else canary_lines.join_wrapped(wrapped.text, line.text)
            if joined is not None:
                wrapped.text, wrapped.last_line = joined, number
                self._count(self._state(wrapped.line))
                self._try_wrapped(wrapped)
                return
            self._settle_wrapped()
        rest = self._read_records(line)
        if rest is not None:
            self._read_other(replace(line, text=rest))

    def finish(self) -> None:
        """The log ends: settle what is open."""
        self._settle_wrapped()
        self._open.clear()

    # Records

    def _read_records(self, line: LogLine) -> str | None:
        """Emit the records of a line; the text left for other readers, None when an unfinished record takes the rest."""
        text = line.text
        starts = _places(text, _FIELD)
        if not starts:
            return self._cut_marker(line)
        rest = text
        for start, stop in zip(starts, (*starts[1:], len(text)), strict=True):
            # Slices, because a line may hold many records: what stands before one matters only at its end.
            before = text[max(0, start - _BEFORE_CHARS) : start]
            marked = before.rstrip().endswith(MARKER)
            reading = canary_lines.read_record(text[start:stop], 0)
            if marked and stop == len(text) and reading.state is State.OPEN:
                self._wait_for_rest(line, start - len(before) + before.rindex(MARKER))
                return None
            # Cut and run into the next line: what was read is certain once the slot is.
            cut = marked and reading.record is not None and len(reading.record.numbers) > 0
            if reading.record is not None and (reading.state is State.COMPLETE or cut):
                self._emit(replace(line, text=before.rstrip().removesuffix(MARKER)), reading.record, self._line)
                rest = text[start + reading.end : stop]
        return rest

    def _cut_marker(self, line: LogLine) -> str | None:
        """A hard wrap inside the marker itself: the line ends with the beginning of the marker."""
        start = line.text.rfind("kv_canary")
        if start >= 0 and f"{MARKER} {_FIELD}".startswith(line.text[start:].rstrip()):
            self._wait_for_rest(line, start)
            return None
        return line.text

    def _wait_for_rest(self, line: LogLine, start: int) -> None:
        before = replace(line, text=line.text[:start])
        self._wrapped = _Wrapped(line=before, text=line.text[start:], first_line=self._line, last_line=self._line)

    def _try_wrapped(self, wrapped: _Wrapped) -> None:
        reading = canary_lines.read_marked(wrapped.text)
        if reading.state is State.COMPLETE and reading.record:
            self._wrapped = None
            self._emit(wrapped.line, reading.record, wrapped.first_line)
            if rest := wrapped.text[reading.end :]:
                self._read_other(LogLine(text=rest, source=wrapped.line.source))

    def _settle_wrapped(self) -> None:
        """No further line continues it: keep what was read."""
        wrapped, self._wrapped = self._wrapped, None
        if wrapped is None:
            return
        if record := canary_lines.read_marked(wrapped.text).record:
            self._emit(wrapped.line, record, wrapped.first_line)
        else:
            self._builder.add_unread(wrapped.text)

    def _emit(self, line: LogLine, record: Record, line_number: int) -> None:
        """A record was read; line.text is what stands before it on its line."""
        raised = line.text.rstrip().endswith("RuntimeError:")
        if trace := self._trace_of(line):
            line, raised = replace(line, rank=trace.rank, time=trace.time), True
            trace.used, trace.line = True, self._line
        state, time = self._state(line), self.seconds(line.time)
        state.raised = state.raised or raised
        state.seen(time)
        self._count(state)
        row = self._append(state, record, time, line_number)
        if len(record.numbers) == _NUMBERS:
            self._open[state.stream] = _OpenRecord(row=row, state=state, record=record, line=self._line)

    def _append(self, state: StreamState, record: Record, time: float, line_number: int) -> int:
        state.on_record(truncated=len(record.numbers) < _NUMBERS)
        return self._builder.violations.append(
            record, file=self._file, line=line_number, stream=state.stream, time=time, running_reqs=self._running_reqs()
        )

    # Bodies

    def _read_body(self, line: LogLine) -> bool:
        """Body lines of open records; True when the line was one."""
        text = line.text
        records = [record for stream, record in self._open.items() if stream.source == line.source]
        if (half := self._half_footer) is not None:
            self._half_footer = None
            if half[2] == self._line - 1 and (rest := canary_lines.FOOTER_REST.match(text)):
                overflow = half[1].ring_overflow if rest[1] is None else rest[1] == "True"
                step = None if rest[2] is None else int(rest[2])
                self._builder.violations.set_footer(half[0], total=half[1].total, ring_overflow=overflow, step=step)
                return True
        if header := canary_lines.HEADER.search(text):
            key = (header["tag"], int(header["slot"]), int(header["position"]))
            for item in records:
                mine = (item.record.launch_tag, *item.record.numbers[:2]) == key
                item.has_header = item.has_header or mine
                item.line = self._line
            if not any((item.record.launch_tag, *item.record.numbers[:2]) == key for item in records):
                # The header of a record whose own line is missing here: its footer will come and is nobody's.
                for item in records:
                    item.contested = True
        elif (footer := canary_lines.read_footer(text)) is not None:
            self._on_footer(line, records, footer)
        elif not any(word in text for word in canary_lines.BODY_WORDS):
            return False
        self._count(records[0].state if records else self._state(line))
        return True

    def _on_footer(self, line: LogLine, records: list[_OpenRecord], footer: Footer) -> None:
        candidates = [item for item in records if item.has_header] or records
        if len(candidates) == 1 and not candidates[0].contested:
            item = candidates[0]
            self._set_footer(item.row, item.state, footer)
            if footer.step is None:
                self._half_footer = (item.row, footer, self._line)
                item.contested = True
            else:
                del self._open[item.state.stream]
            return
        for item in candidates:
            item.contested = True
        (candidates[0].state if candidates else self._state(line)).unattached.append(footer.total)

    def _set_footer(self, row: int, state: StreamState, footer: Footer) -> None:
        self._builder.violations.set_footer(row, total=footer.total, ring_overflow=footer.ring_overflow, step=footer.step)
        state.on_footer(footer)

    # Everything else

    def _read_other(self, line: LogLine) -> None:
        text = line.text
        if self._open and self._read_body(line):
            return
        event = canary_lines.read_event(text) if "canary" in text else None
        if event is not None:
            self._on_event(line, event)
        elif "canary" in text and TRACEBACK not in text:
            state = self._state(line)
            if canary_lines.HEADER.search(text) or any(word in text for word in canary_lines.BODY_WORDS):
                self._count(state)  # The body of a record that is not in this text.
            elif not self._on_server_line(line):
                self._builder.add_unread(text)
        elif TRACEBACK in text:
            self._on_trace(line)
        else:
            self._on_server_line(line)

    def _on_event(self, line: LogLine, event: CanaryEvent) -> None:
        if trace := self._trace_of(line):
            line = replace(line, rank=trace.rank, time=trace.time)
        state, time, values = self._state(line), self.seconds(line.time), event.values
        state.seen(time)
        self._count(state)
        numbers = [value for value in values.values() if isinstance(value, int)]
        if event.kind == "stats":
            step, protected, passes, violations, *active = numbers
            state.on_stats(step, protected, passes, violations, (active[0], active[1]) if active else None)
        elif event.kind == "sweep":
            state.on_sweep(*numbers)
        elif event.kind == "overflow":
            state.on_overflow(*numbers)
        else:
            kept = self._event(line, event.kind, values, event.tags)
            if event.kind == "health":
                state.health = kept
            elif event.kind == "install":
                state.on_install(values)

    def _on_trace(self, line: LogLine) -> None:
        if not line.prefixed:
            return
        rank = line.rank or NO_RANK
        old = self._traces.get(line.source)
        # Two ranks fail at once and the first has not shown its error yet: which error is whose cannot be told.
        mixed = old is not None and not old.used and old.rank != rank and self._line - old.line < OPEN_LINES
        self._traces[line.source] = Trace(rank=NO_RANK if mixed else rank, time=line.time, line=self._line)

    def _trace_of(self, line: LogLine) -> Trace | None:
        return None if line.prefixed else self.trace_before(line.source, self._line)

    def _on_server_line(self, line: LogLine) -> bool:
        kind = next((kind for word, kind in SERVER_WORDS.items() if word in line.text), None)
        if kind is None:
            return False
        values = canary_lines.pairs(line.text) if kind in ("server_args", "ready", "tree") else {}
        self._event(line, kind, values, ())
        return True

    def _event(self, line: LogLine, kind: str, values: Values, tags: tuple[str, ...]) -> LogEvent:
        event = LogEvent(
            kind=kind,
            stream=self._state(line).stream,
            file=self._file,
            line=self._line,
            time=to_datetime(self.seconds(line.time)),
            text=line.text.strip()[:_EVENT_CHARS],
            values=values,
            tags=tags,
        )
        self._builder.add_event(event)
        return event

    def _state(self, line: LogLine) -> StreamState:
        return self.state(line.rank, line.source)

    def _count(self, state: StreamState) -> None:
        state.canary_lines += 1
        self._builder.canary_lines += 1

    def _age(self) -> None:
        """Stop waiting for the rest of messages that did not come."""
        if self._open:
            for stream in [stream for stream, item in self._open.items() if self._line - item.line > OPEN_LINES]:
                del self._open[stream]
        if self._wrapped and self._line - self._wrapped.last_line > _WRAP_LINES:
            self._settle_wrapped()


def _places(text: str, word: str) -> list[int]:
    places, at = [], text.find(word)
    while at >= 0:
        places.append(at)
        at = text.find(word, at + 1)
    return places
