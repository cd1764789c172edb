"""Takes over runs of lines that were read at once, with the same result as if each line had been read by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvcanary.analysis.block_text import Bools, Int64, Words
from kvcanary.analysis.bulk_lines import BulkBlock, BulkNumbers
from kvcanary.analysis.bulk_messages import MESSAGE_LINES, BulkRecords, Heads
from kvcanary.analysis.bulk_wrappers import Piece
from kvcanary.analysis.canary_lines import Footer
from kvcanary.analysis.canary_log import LogBuilder, StreamState
from kvcanary.analysis.messages import OPEN_LINES, TRACE_LINES, LastRecord, MessageReader
from kvcanary.analysis.violations import Record

_PREFIXED = b"] "
BatchSizes = Callable[[Int64], Int64]


class _Signed(NamedTuple):
    """Whose each line is: codes into states [n], and times in seconds [n]."""

    codes: Int64
    states: Sequence[StreamState]
    times: npt.NDArray[np.float64]


class RunReader:
    """Adds runs of one log to a builder."""

    def __init__(self, builder: LogBuilder, messages: MessageReader, *, file: str) -> None:
        self._builder, self._messages, self._file = builder, messages, file
        self._piece = Piece(text=b"")

    def take(self, block: BulkBlock, lines: slice, before: int, batch_sizes: BatchSizes, piece: Piece) -> slice:
        """Take these lines of a block, or the first of them; which were taken.

        before: the number of the line before the first. batch_sizes: running requests before bytes of the block, -1 when unknown.
        piece: what the block was read from.
        """
        self._piece = piece
        lines = slice(lines.start, self._end(block.records[_within(block.records.heads, lines)], lines))
        offset = before + 1 - lines.start
        self._take_records(block.records[_within(block.records.heads, lines)], block.starts, offset, batch_sizes)
        for name, take in (("stats", self._take_stats), ("sweep", self._take_sweeps), ("overflow", self._take_overflow)):
            read = block.numbers[name]
            if len((read := read[_within(read.heads, lines)]).heads.lines):
                signed = self._sign(read.heads, offset)
                self._count(signed, np.ones(len(signed.codes), dtype=np.int64))
                take(read, signed)
        return lines

    def _end(self, records: BulkRecords, lines: slice) -> int:
        """A body without a prefix is told apart from that of another rank by order, so nothing may be open before it."""
        bare = np.flatnonzero(records.whole & ~_prefixed(records.heads))
        if not len(bare):
            return int(lines.stop)
        if self._messages.attending:
            return int(records.heads.lines[bare[0]])
        alone = np.flatnonzero(~records.whole)
        late = bare[bare > alone[0]] if len(alone) else bare[:0]
        return int(records.heads.lines[late[0]]) if len(late) else int(lines.stop)

    def _take_records(self, records: BulkRecords, starts: Int64, offset: int, batch_sizes: BatchSizes) -> None:
        heads = records.heads
        if not len(heads.lines):
            return
        numbers = heads.lines + offset
        signed = self._sign(heads, offset)
        self._count(signed, np.where(records.whole, MESSAGE_LINES, 1))
        first_row = len(self._builder.violations)
        self._builder.violations.extend(
            file=self._file,
            lines=numbers,
            streams=(signed.codes, [state.stream for state in signed.states]),
            tags=_names(records.tag),
            reasons=_names(records.reason),
            ints=records.ints,
            hashes=records.hashes,
            times=signed.times,
            totals=records.total,
            steps=records.step,
            overflow=records.overflow,
            running_reqs=batch_sizes(starts[heads.lines]),
        )
        lasts = []
        for code, state in enumerate(signed.states):
            mine = np.flatnonzero(signed.codes == code)
            state.now.listed += len(mine)
            whole = mine[records.whole[mine]]
            if len(whole):
                total, step, overflow = records.total[whole], records.step[whole], records.overflow[whole]
                state.on_footer(Footer(total=int(total.max()), ring_overflow=bool(overflow.any()), step=int(step.max())))
            lasts.append(
                _last_record(state, records, numbers, mine[mine > whole[-1]] if len(whole) else mine, first_row, closed=bool(len(whole)))
            )
        self._messages.reopen(lasts)

    def _sign(self, heads: Heads, offset: int) -> _Signed:
        """Ranks and times; a record without a prefix belongs to the traceback above it."""
        codes, leads = heads.lead.used()
        printed_times, texts = heads.time.used()
        times = np.array([self._messages.seconds(text.decode(errors="replace")) for text in texts])[printed_times]
        prefixed = np.array([lead.endswith(_PREFIXED) for lead in leads], dtype=bool)
        raised = np.array([lead.endswith(b"Error: ") for lead in leads], dtype=bool)
        traced = np.zeros(len(codes), dtype=bool)
        bare = np.flatnonzero(~prefixed[codes])
        if len(bare) and (collected := self._piece.collected) is not None:
            known, texts = collected[heads.lines[bare]].used()
            times[bare] = np.array([self._messages.seconds(text.decode(errors="replace").replace("T", " ")) for text in texts])[known]
        rank = ""
        if len(bare) and (trace := self._messages.trace_before(self._piece.source, int(heads.lines[bare[0]]) + offset)):
            numbers = heads.lines[bare] + offset
            far = np.flatnonzero(np.diff(numbers) > TRACE_LINES)
            bare = bare[: int(far[0]) + 1] if len(far) else bare
            traced[bare], times[bare], rank = True, self._messages.seconds(trace.time), trace.rank
            trace.used, trace.line = True, int(heads.lines[bare[-1]]) + offset
        keys = codes * 2 + traced
        _, firsts, dense = np.unique(keys, return_index=True, return_inverse=True)
        states: list[StreamState] = []
        places = np.zeros(len(firsts), dtype=np.int64)
        for group in np.argsort(firsts).tolist():
            first = int(firsts[group])
            lead, told = leads[int(codes[first])], bool(traced[first])
            printed = lead.removesuffix(_PREFIXED).decode(errors="replace").strip() if lead.endswith(_PREFIXED) else ""
            state = self._messages.state(rank if told else printed, self._piece.source)
            state.raised = state.raised or told or bool(raised[codes[first]])
            if state not in states:
                states.append(state)
            places[group] = states.index(state)
        signed = _Signed(codes=places[dense], states=states, times=times)
        for code, state in enumerate(states):
            known = times[signed.codes == code]
            known = known[~np.isnan(known)]
            for time in (known.min(), known.max()) if len(known) else ():
                state.seen(float(time))
        return signed

    def _count(self, signed: _Signed, lines: Int64) -> None:
        for code, state in enumerate(signed.states):
            count = int(lines[signed.codes == code].sum())
            state.canary_lines += count
            self._builder.canary_lines += count

    def _take_stats(self, read: BulkNumbers, signed: _Signed) -> None:
        for code, state in enumerate(signed.states):
            state.on_many_stats([values[signed.codes == code] for values in read.numbers])

    def _take_sweeps(self, read: BulkNumbers, signed: _Signed) -> None:
        for code, state in enumerate(signed.states):
            passes, steps = (values[signed.codes == code] for values in read.numbers)
            state.on_many_sweeps(passes, steps)

    def _take_overflow(self, read: BulkNumbers, signed: _Signed) -> None:
        for code, state in enumerate(signed.states):
            totals, capacities = (values[signed.codes == code] for values in read.numbers)
            state.on_overflow(int(totals.max()), int(capacities[-1]))


def _within(heads: Heads, lines: slice) -> slice:
    first, stop = np.searchsorted(heads.lines, (lines.start, lines.stop)).tolist()
    return slice(first, stop)


def _prefixed(heads: Heads) -> Bools:
    codes, texts = heads.lead.used()
    result: Bools = np.array([text.endswith(_PREFIXED) for text in texts], dtype=bool)[codes]
    return result


def _names(words: Words) -> tuple[Int64, list[str]]:
    codes, texts = words.used()
    return codes, [text.decode(errors="replace") for text in texts]


def _last_record(state: StreamState, records: BulkRecords, numbers: Int64, alone: Int64, first_row: int, *, closed: bool) -> LastRecord:
    """What the records of one rank that have no body leave open; alone: those behind its last whole message."""
    if not len(alone):
        return LastRecord(state=state)
    row = int(alone[-1])
    record = Record(
        launch_tag=records.tag.texts[records.tag.codes[row]].decode(errors="replace"),
        fail_reason=records.reason.texts[records.reason.codes[row]].decode(errors="replace"),
        numbers=tuple(int(values[row]) for values in (*records.ints, *records.hashes)),
    )
    lines = numbers[alone]
    gaps = np.flatnonzero(np.diff(lines) > OPEN_LINES)
    born = lines[gaps[-1] + 1] if len(gaps) else lines[0]
    return LastRecord(state=state, record=record, row=first_row + row, line=int(lines[-1]), born=int(born), fresh=closed or bool(len(gaps)))
