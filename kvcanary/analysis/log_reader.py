"""Reads one growing log: blocks of bytes in, violations and events out; state between blocks, so that a file can be followed.

Most lines of a server log do not concern the canary, so a block is searched for a few words with bytes.find and only the lines around a
hit are decoded. While a message is open, every line is looked at.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace

import numpy as np

from kvcanary.analysis import canary_lines
from kvcanary.analysis.block_text import Int64
from kvcanary.analysis.bulk_lines import BulkBlock, read_block
from kvcanary.analysis.bulk_messages import MESSAGE_LINES
from kvcanary.analysis.bulk_runs import RunReader
from kvcanary.analysis.bulk_wrappers import Piece, pieces_of
from kvcanary.analysis.canary_lines import Footer
from kvcanary.analysis.canary_log import LogBuilder, StreamState
from kvcanary.analysis.messages import TRACEBACK, MessageReader
from kvcanary.analysis.violations import Record
from kvcanary.importers.log_lines import LogLine, unwrap

_CANARY = b"canary"
_SERVER_ARGS = b"server_args="
# Printed soon after the server's arguments, so looked for only in the blocks that follow a start.
_START_WORDS = (b"max_total_num_tokens=", b"Tree cache initialized")
_START_BLOCKS = 4
# Errors matter beside violations; a traceback header may stand at the end of the block before.
_ERROR_WORDS = (TRACEBACK.encode(), b"Error: ", b"Received sigquit")
_TROUBLE = (b"canary violation", b"kernel_run_counter")
_TAIL_BYTES = 1 << 16
_NOWHERE = sys.maxsize
# While a message is open, a line without any of these is not part of it.
_BODY_WORDS = (b"=", b": ")
MAX_LINE_BYTES = 1 << 20
_BATCH = b"#running-req: "
_SAMPLED_LINES = 40
# A shorter run of lines is read faster one by one.
_BULK_RUN = 12
_UNKNOWN = -1


class LogReader:
    """Feed it bytes in order; call finish() at the end. Several readers may share one builder.

    server names the log in Stream keys (rotated files of one server share it), file is the path kept with each violation.
    """

    def __init__(self, builder: LogBuilder, *, server: str, file: str) -> None:
        self._builder, self._file = builder, file
        self._messages = MessageReader(builder, server=server, file=file, running_reqs=self._running_reqs)
        self._tail = b""
        self._lines = 0
        self._start_blocks = _START_BLOCKS
        self._block, self._at, self._batch_from = b"", 0, 0
        self._batch: int | None = None
        self._states: dict[tuple[str, bytes], StreamState] = {}
        self._time: tuple[bytes, float] = (b"", math.nan)
        self._bulk: BulkBlock | None = None
        self._runs = RunReader(builder, self._messages, file=file)
        self._piece, self._piece_line = Piece(text=b""), 0
        self._place = 0
        self._gaps: list[tuple[int, int]] = []
        self._partial: dict[str, LogLine] = {}
        builder.files.append(file)

    def feed(self, data: bytes) -> None:
        """Read more of the log; an unfinished last line waits for the next call."""
        self._builder.bytes_read += len(data)
        cut = data.rfind(b"\n") + 1
        if not cut and len(self._tail) + len(data) <= MAX_LINE_BYTES:
            self._tail += data
            return
        cut = cut or len(data)  # No log line is that long: look at what there is and go on.
        block = b"".join((self._tail, memoryview(data)[:cut]))
        self._tail = data[cut:]
        self._read_block(block)

    def finish(self) -> None:
        """The log ends here: read the last line without its line end and settle what is open."""
        if self._tail:
            block, self._tail = self._tail, b""
            self._read_block(block)
        for line in self._partial.values():
            self._messages.read(line, self._lines)
        self._partial.clear()
        self._messages.finish()

    def _read_block(self, block: bytes) -> None:
        self._sample(block)
        self._builder.mark_line(self._file, self._lines + 1, self._place)
        self._place += len(block)
        self._start_blocks -= 1
        speaks, before = _CANARY in block, self._lines
        troubled = speaks and any(word in block for word in _TROUBLE)
        for piece in pieces_of(block) if speaks else (Piece(text=block),):
            self._read_piece(piece, troubled=troubled)
        self._builder.lines += self._lines - before

    def _read_piece(self, piece: Piece, *, troubled: bool) -> None:
        block = piece.text
        self._piece, self._piece_line = piece, self._lines
        self._block, self._batch_from = block, 0
        self._bulk = read_block(block)
        self._gaps = self._bulk.gaps(len(block), _BULK_RUN) if self._bulk is not None else [(0, len(block))]
        hits = self._first_hits(block, troubled=troubled)
        at, counted = 0, 0
        while at < len(block):
            attending = self._messages.attending or bool(self._partial)
            if not attending:
                hit = min(hits.values())
                if hit == _NOWHERE:
                    break
                at = max(at, block.rfind(b"\n", at, hit) + 1)
            self._lines += block.count(b"\n", counted, at)
            counted = self._at = at
            if (end := self._read_fast(block, at)) > at:
                at = counted = end
            else:
                at = self._read_slow(block, at, attending)
            for word in [word for word, place in hits.items() if place < at]:
                hits[word] = self._find(block, word, at)
        self._lines += block.count(b"\n", counted) + (not block.endswith(b"\n"))
        self._at = len(block)
        self._running_reqs()

    def _first_hits(self, block: bytes, *, troubled: bool) -> dict[bytes, int]:
        """Where each word that matters in this block stands first."""
        hits = {word: self._find(block, word, 0) for word in (_CANARY, _SERVER_ARGS)}
        if hits[_SERVER_ARGS] != _NOWHERE:
            self._start_blocks = _START_BLOCKS
        if self._start_blocks > 0:
            hits |= {word: self._find(block, word, 0) for word in _START_WORDS}
        since = 0 if troubled else max(0, len(block) - _TAIL_BYTES)
        hits |= {word: self._find(block, word, since) for word in _ERROR_WORDS}
        return hits

    def _find(self, block: bytes, word: bytes, start: int) -> int:
        """Where a word stands next. Messages that are read at once hold nothing else, so they are searched for the canary alone."""
        if word is _CANARY:
            place = block.find(word, start)
            return _NOWHERE if place < 0 else place
        for low, high in self._gaps:
            if high > start and (place := block.find(word, max(low, start), high)) >= 0:
                return place
        return _NOWHERE

    def _read_slow(self, block: bytes, at: int, attending: bool) -> int:
        stop = block.find(b"\n", at)
        stop = len(block) if stop < 0 else stop
        raw = block[at:stop]
        if not attending or self._partial or self._messages.wrapped or any(word in raw for word in _BODY_WORDS):
            number = self._lines - self._piece_line
            for part in raw.decode(errors="replace").split("\r"):
                for line in unwrap(part) if part else ():
                    self._read_line(self._piece.outside(line, number))
        return stop + 1

    def _read_line(self, line: LogLine) -> None:
        if (held := self._partial.pop(line.source, None)) is not None:
            line = replace(held, text=held.text + line.text, partial=line.partial)
        if line.partial and len(line.text) < MAX_LINE_BYTES:
            self._partial[line.source] = line
            return
        # A message inside a repr has its line ends spelled out.
        first, *rest = line.text.split("\\n") if "canary" in line.text else [line.text]
        self._messages.read(replace(line, text=first), self._lines + 1)
        for text in filter(None, rest):
            self._messages.read(LogLine(text=text, source=line.source, time=line.time), self._lines + 1)

    def _read_fast(self, block: bytes, at: int) -> int:
        """Read as many lines of the forms that a busy log repeats as follow each other here; where they end."""
        if self._partial or self._messages.wrapped:
            return at
        while True:
            self._at = at
            if self._bulk is not None and (end := self._read_run(self._bulk, at)) > at:
                at = end
                continue
            if match := canary_lines.FAST_MESSAGE.match(block, at):
                lines = MESSAGE_LINES
                state = self._fast_message(match)
            elif match := canary_lines.FAST_SWEEP.match(block, at):
                lines = 1
                state, _ = self._prefix_state(match["ranks"], match["time"])
                state.on_sweep(int(match["passes"]), int(match["step"]))
            elif match := canary_lines.FAST_STATS.match(block, at):
                lines = 1
                state, _ = self._prefix_state(match["ranks"], match["time"])
                stats = (int(match["step"]), int(match["protected"]), int(match["passes"]), int(match["violations"]))
                state.on_stats(*stats, (int(match["active"]), int(match["tags"])))
            else:
                break
            at = match.end()
            state.canary_lines += lines
            self._builder.canary_lines += lines
            self._lines += lines
        return at

    def _read_run(self, bulk: BulkBlock, at: int) -> int:
        """Take over the lines that were read at once and follow each other here; where they end."""
        run = bulk.run_at(at)
        if run.stop - run.start < _BULK_RUN:
            return at
        taken = self._runs.take(bulk, run, self._lines, self._batch_sizes, self._piece)
        self._lines += taken.stop - taken.start
        return int(bulk.starts[taken.stop])

    def _batch_sizes(self, places: Int64) -> Int64:
        """Batch sizes before places of the block, in order and behind the line being read."""
        known = self._running_reqs()
        found = list(canary_lines.BATCH.finditer(self._block, self._at, int(places[-1])))
        if found:
            self._batch = int(found[-1][1])
        self._batch_from = int(places[-1])
        sizes = np.array([_UNKNOWN if known is None else known, *(int(match[1]) for match in found)], dtype=np.int64)
        result: Int64 = sizes[np.searchsorted([match.start() for match in found], places)]
        return result

    def _fast_message(self, match: re.Match[bytes]) -> StreamState:
        state, time = self._prefix_state(match["ranks"], match["time"])
        numbers = (int(match["slot"]), int(match["position"]), int(match["token"]), int(match["expected"]))
        record = Record(
            launch_tag=match["tag"].decode(),
            fail_reason=match["reason"].decode(),
            numbers=(*numbers, int(match["hash"], 16), int(match["aux"], 16)),
        )
        footer = Footer(total=int(match["total"]), ring_overflow=match["overflow"] == b"True", step=int(match["step"]))
        self._messages.add_whole(state, record, footer, time, self._lines + 1)
        return state

    def _prefix_state(self, ranks: bytes, time: bytes) -> tuple[StreamState, float]:
        key = (self._piece.source, ranks)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._messages.state(ranks.decode().strip(), self._piece.source)
        if time != self._time[0]:
            self._time = (time, self._messages.seconds(time.decode()))
        state.seen(self._time[1])
        return state, self._time[1]

    def _sample(self, block: bytes) -> None:
        """Ranks and times of a few lines of each block, so that a rank whose canary is silent is not forgotten."""
        head = block[: _SAMPLED_LINES * 400].split(b"\n", _SAMPLED_LINES)[:-1]
        tail = block[-4000:].split(b"\n")[1:]
        for raw in (*head, *tail):
            for line in unwrap(raw.decode(errors="replace")) if b"[" in raw else ():
                if line.prefixed:
                    self._messages.state(line.rank, line.source).seen(self._messages.seconds(line.time))

    def _running_reqs(self) -> int | None:
        """Batch size of the nearest batch line before the line being read."""
        place = self._at
        while (place := self._block.rfind(_BATCH, self._batch_from, place)) >= 0:
            if match := canary_lines.BATCH.match(self._block, place):
                self._batch = int(match[1])
                break
        self._batch_from = self._at
        return self._batch
