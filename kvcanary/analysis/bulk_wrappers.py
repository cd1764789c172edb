"""Takes what a collector put around each line off a whole block at once, where it did the same on every line.

A container runtime, `kubectl logs --timestamps` and compose write one form for hours; what does not fit it stays as it is and is left to
the reader of single lines, who knows all forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvcanary.analysis.block_text import BlockText, Bools, Int64, Words
from kvcanary.importers.log_lines import LogLine

# A shorter run of wrapped lines is read faster one by one.
MIN_LINES = 200
_COLOURS = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\))")
_DOCKER, _STREAMS = b'{"log":"', (b'\\n","stream":"stderr","time":"', b'\\n","stream":"stdout","time":"')
_STREAM_QUOTES = 9  # Characters of the above that the text of a line may not hold.
_DATE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_COMPOSE = re.compile(rb"([A-Za-z0-9][\w.\-]*)\s*\| ")
_DATE_CHARS, _MAX_TIME = 19, 40


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Piece:
    """Part of a block: its lines without what the collector put around them.

    collected: when the collector wrote each line, as '2026-09-14T10:00:11', None where it did not say. inner_time: a time inside of the
    line counts before the collector's. source: who printed them, as in LogLine.
    """

    text: bytes
    collected: Words | None = None
    inner_time: bool = False
    source: str = ""

    def time_of(self, line: int) -> str:
        """When the collector wrote a line, as a LogLine has it."""
        if self.collected is None:
            return ""
        text = self.collected.texts[int(self.collected.codes[line])]
        return text.decode(errors="replace").replace("T", " ")

    def outside(self, line: LogLine, number: int) -> LogLine:
        """A line of the piece with what the collector told about it."""
        inner = line.prefixed or self.inner_time
        time = self.time_of(number)
        return replace(line, source=self.source or line.source, time=(line.time or time) if inner else (time or line.time))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Form:
    """Where the text of each line begins and ends, whether the line has the form, and when it was collected."""

    good: Bools
    begin: Int64
    end: Int64
    collected: Words | None = None
    inner_time: bool = False
    source: str = ""


def pieces_of(block: bytes) -> Iterator[Piece]:
    """The block as one piece, or cut where its lines begin and cease to have one form."""
    if b"\x1b" in block:
        block = _COLOURS.sub(b"", block)
    form_of = _form_of(block)
    text = BlockText(block) if form_of else None
    if form_of is None or text is None or not len(text.starts):
        yield Piece(text=block)
        return
    form = form_of(text)
    borders = np.flatnonzero(np.diff(form.good, prepend=False, append=False)).reshape(-1, 2)
    at = 0
    for first, stop in borders[borders[:, 1] - borders[:, 0] >= MIN_LINES].tolist():
        if (start := int(text.starts[first])) > at:
            yield Piece(text=block[at:start])
        yield _piece(text, form, slice(first, stop))
        at = int(text.nexts[stop - 1])
    if at < len(block):
        yield Piece(text=block[at:])


def _piece(text: BlockText, form: _Form, lines: slice) -> Piece:
    """The text of these lines, each with a line end."""
    start, stop = int(text.starts[lines.start]), int(text.nexts[lines.stop - 1])
    # One at the first byte of what is kept, minus one behind its last: the sum is the mask.
    steps = np.zeros(stop - start + 1, dtype=np.int8)
    steps[form.begin[lines] - start] += 1
    steps[form.end[lines] - start] -= 1
    steps[text.nexts[lines] - 1 - start] += 1
    steps[text.nexts[lines] - start] -= 1
    kept = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    return Piece(
        text=text.data[start:stop][kept].tobytes(),
        collected=form.collected[lines] if form.collected else None,
        inner_time=form.inner_time,
        source=form.source,
    )


def _form_of(block: bytes) -> Callable[[BlockText], _Form] | None:
    """What the first line seems to be wrapped in."""
    if block.startswith(_DOCKER):
        return _docker
    if _DATE.match(block):
        return _dated
    if match := _COMPOSE.match(block):
        lead, source = match[0], match[1].decode(errors="replace")
        return lambda text: _composed(text, lead, source)
    return None


def _composed(text: BlockText, lead: bytes, source: str) -> _Form:
    good = text.says(text.starts, lead) & _one_line(text)
    return _Form(good=good, begin=text.starts + len(lead), end=text.ends, source=source)


def _dated(text: BlockText) -> _Form:
    """A time and, of a container runtime, the stream and F for a full line."""
    starts = text.starts
    space = text.next_space(starts, _MAX_TIME)
    collected, good = text.words(starts, np.full(len(starts), _DATE_CHARS), _DATE)
    zulu = text.data[space - 1] == ord("Z")
    fraction_end = np.where(zulu, space - 1, space - 6)
    good &= fraction_end >= starts + _DATE_CHARS
    good &= zulu | (_among(text, fraction_end, b"+-") & text.says(space - 3, b":"))
    for place in (-5, -4, -2, -1):
        good &= zulu | _among(text, space + place, b"0123456789")
    good &= (fraction_end == starts + _DATE_CHARS) | (_among(text, starts + _DATE_CHARS, b".,") & (fraction_end > starts + _DATE_CHARS + 1))
    for place in range(_DATE_CHARS + 1, _MAX_TIME):
        good &= _among(text, starts + place, b"0123456789") | (starts + place >= fraction_end)
    std = text.says(space, b" stdout") | text.says(space, b" stderr")
    full = std & text.says(space + 7, b" F ")
    return _Form(
        good=good & (full | ~std) & (space < text.ends) & _one_line(text),
        begin=space + np.where(full, 10, 1),
        end=text.ends,
        collected=collected,
    )


def _docker(text: BlockText) -> _Form:
    """Lines of docker's json-file driver whose text needs no escapes but its line end."""
    data, starts, ends = text.data, text.starts, text.ends
    escapes = (data < 0x20) | (data > 0x7E) | (data == ord('"')) | (data == ord("\\"))
    places = np.append(np.flatnonzero(escapes), [len(data) - 1] * (_STREAM_QUOTES + 1))
    begin = starts + len(_DOCKER)
    first = np.searchsorted(places, begin)
    end = places[first]
    time_at = np.minimum(end + len(_STREAMS[0]), len(data) - _MAX_TIME)
    good = text.says(starts, _DOCKER) & (end < ends)
    good &= text.says(np.minimum(end, len(data) - 64), _STREAMS[0]) | text.says(np.minimum(end, len(data) - 64), _STREAMS[1])
    good &= (places[np.minimum(first + _STREAM_QUOTES, len(places) - 1)] == ends - 2) & text.says(ends - 2, b'"}')
    collected, dated = text.words(time_at, np.full(len(starts), _DATE_CHARS), _DATE)
    return _Form(good=good & dated, begin=begin, end=end, collected=collected, inner_time=True)


def _among(text: BlockText, at: Int64, characters: bytes) -> Bools:
    table = np.zeros(256, dtype=bool)
    table[list(characters)] = True
    result: Bools = table[text.data[at]]
    return result


def _one_line(text: BlockText) -> Bools:
    """Lines without a carriage return inside."""
    good = np.ones(len(text.starts), dtype=bool)
    good[text.overwritten()] = False
    return good
