"""A block of log as lines that were read at once: records, counters, and lines between them that say nothing.

Runs of such lines follow each other without a gap, so that the reader of single lines takes over only where something else stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary.analysis.block_text import BlockText, Bools, Checked, Int64
from kvcanary.analysis.bulk_messages import MARK, MESSAGE_LINES, BulkRecords, Heads, read_records
from kvcanary.analysis.canary_lines import BODY_WORDS
from kvcanary.analysis.messages import OPEN_LINES, SERVER_WORDS, TRACEBACK

# Below this many canary lines a block is read faster one by one.
MIN_LINES = 64
_CANARY = b"canary"
_TIME_CHARS, _MAX_RANKS = 19, 40
_TIME = re.compile(rb"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)?")
_LEAD = re.compile(rb"(?:(?: [A-Z]{2,}\d+)*\] |RuntimeError: )?")
_RAISED = b"RuntimeError: "
# Lines of numbers: what stands before, between and behind them.
FORMS: Mapping[str, Sequence[bytes]] = {
    "stats": (
        b"[canary] step=",
        b" protected_tokens=",
        b" sweep_passes=",
        b" violations=",
        b" launch_tags_active=",
        b"/",
        b"",
    ),
    "sweep": (b"[canary] sweep succeeded ", b" times (last_step=", b")"),
    "overflow": (
        b"kv-canary: per-forward verify skipped this step due to overflow (total=",
        b", capacity=",
        b"); check ServerArgs / pool sizing",
    ),
}
# A line without any of these means nothing to the reader, whatever stands before it.
_TELLING = tuple(
    dict.fromkeys(
        word.encode()
        for word in (
            "canary",
            "launch_tag=",
            "total_violations=",
            "ring_overflow=",
            "step_when_pumped=",
            *BODY_WORDS,
            TRACEBACK,
            *SERVER_WORDS,
        )
        if word != "canary_kind:"
    )
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BulkNumbers:
    """Lines of one of the FORMS; numbers in the order printed, each int64 [n]."""

    heads: Heads
    numbers: tuple[Int64, ...]

    def __getitem__(self, items: slice | Bools) -> BulkNumbers:
        return BulkNumbers(heads=self.heads[items], numbers=tuple(values[items] for values in self.numbers))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BulkBlock:
    """What was read at once of a block.

    starts: int64 [lines + 1], bytes where lines begin. covered: bool [lines], lines of runs. run_ends: int64 [lines], the line behind the
    run, and the line itself where a reader cannot begin: outside of runs and inside of messages.
    """

    starts: Int64
    covered: Bools
    run_ends: Int64
    records: BulkRecords
    numbers: Mapping[str, BulkNumbers]

    def gaps(self, length: int, shortest: int) -> list[tuple[int, int]]:
        """What of a block of this length lies outside of runs of at least so many lines, as (start, end)."""
        first = np.flatnonzero(self.covered & ~np.append(False, self.covered[:-1]))
        long = first[self.run_ends[first] - first >= shortest]
        starts, ends = self.starts[long].tolist(), self.starts[self.run_ends[long]].tolist()
        return [(end, start) for end, start in zip([0, *ends], [*starts, length], strict=True) if end < start]

    def run_at(self, at: int) -> slice:
        """Lines of the run that begins or goes on at this byte; empty when none does."""
        line = int(np.searchsorted(self.starts, at))
        if line >= len(self.run_ends) or self.starts[line] != at:
            return slice(0, 0)
        return slice(line, int(self.run_ends[line]))


def read_block(block: bytes) -> BulkBlock | None:
    """All lines of a block that can be read at once; None when there are too few to be worth it."""
    if not _speaks_often(block):
        return None
    text = BlockText(block)
    if not len(text.starts):
        return None
    text_at, bracketed = _text_places(text)
    begins = text.data[text_at]

    def heads(word: bytes, among: Bools) -> Heads:
        maybe = np.flatnonzero(among & (begins == word[0]))
        return _heads(text, text_at, bracketed, maybe[text.says(text_at[maybe], word)])

    records = read_records(text, heads(MARK, np.ones(len(begins), dtype=bool)))
    numbers = {name: _numbers(text, heads(words[0], bracketed), words) for name, words in FORMS.items()}
    count = len(text.starts)
    covered, inside = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    for lines in (records.heads.lines, *(read.heads.lines for read in numbers.values())):
        covered[lines] = True
    for number in range(1, MESSAGE_LINES):
        inside[records.heads.lines[records.whole] + number] = True
    covered |= inside
    covered |= _silent(text, covered)
    borders = np.append(np.flatnonzero(~covered), count)
    lines = np.arange(count)
    run_ends = np.where(inside, lines, borders[np.searchsorted(borders, lines)])
    return BulkBlock(
        starts=np.append(text.starts, text.nexts[-1]),
        covered=covered,
        run_ends=run_ends,
        records=records,
        numbers=numbers,
    )


def _speaks_often(block: bytes) -> bool:
    place = -1
    for _ in range(MIN_LINES):
        place = block.find(_CANARY, place + 1)
        if place < 0:
            return False
    return True


def _text_places(text: BlockText) -> tuple[Int64, Bools]:
    """Where the text of each line begins, and which lines have a prefix. Prefixes of a log are alike in length, so few have to be tried."""
    starts, data = text.starts, text.data
    text_at = starts.copy()
    bracketed = data[starts] == ord("[")
    left = np.flatnonzero(bracketed)
    bracketed[left] = False
    for length in range(1 + _TIME_CHARS, 2 + _TIME_CHARS + _MAX_RANKS):
        there = text.says(starts[left] + length, b"] ")
        found = left[there]
        text_at[found] += length + 2
        bracketed[found] = True
        left = left[~there]
        if not len(left):
            break
    raised = ~bracketed & (data[starts] == ord("R"))
    raised[raised] = text.says(starts[raised], _RAISED)
    text_at[raised] += len(_RAISED)
    return text_at, bracketed


def _heads(text: BlockText, text_at: Int64, bracketed: Bools, lines: Int64) -> Heads:
    check = Checked(text, len(lines))
    starts, ends, prefixed = text.starts[lines], text_at[lines], bracketed[lines]
    time = check.words(starts + prefixed, np.where(prefixed, _TIME_CHARS, 0), _TIME)
    lead_at = starts + np.where(prefixed, 1 + _TIME_CHARS, 0)
    lead = check.words(lead_at, ends - lead_at, _LEAD)
    return Heads(lines=lines, text_at=ends, time=time, lead=lead)[check.good]


def _numbers(text: BlockText, heads: Heads, words: Sequence[bytes]) -> BulkNumbers:
    check = Checked(text, len(heads.lines))
    at, numbers = heads.text_at + len(words[0]), []
    for word in words[1:]:
        values, at = check.counts(at)
        at = check.expect(at, word)
        numbers.append(values)
    check.good &= at == text.ends[heads.lines]
    return BulkNumbers(heads=heads, numbers=tuple(numbers))[check.good]


def _silent(text: BlockText, covered: Bools) -> Bools:
    """Lines near others of the block that mean nothing even while a record waits for its body."""
    if covered.all():
        return covered
    lines = np.arange(len(covered))
    last = np.maximum.accumulate(np.where(covered, lines, -1 - OPEN_LINES))
    silent = ~covered & (lines - last <= OPEN_LINES)
    # Lines of these two beginnings have no wrapper around them.
    silent[silent] = text.says(text.starts[silent], b"[20") | text.says(text.starts[silent], b"INFO:")
    candidates = np.flatnonzero(silent)
    lengths = text.nexts - text.starts
    rest = text.data[: int(text.nexts[-1])][np.repeat(silent, lengths)].tobytes()
    borders = np.cumsum(lengths[candidates])
    for word in _TELLING:
        place = rest.find(word)
        while place >= 0:
            number = int(np.searchsorted(borders, place, side="right"))
            silent[candidates[number]] = False
            place = rest.find(word, int(borders[number]))
    if b"\r" in rest:
        silent[text.overwritten()] = False
    return silent
