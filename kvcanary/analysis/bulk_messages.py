"""Whole violation messages of a block of log, read all at once with NumPy: what a broken server prints most, thousands a second.

Only messages of the plain form count here: a prefix in brackets, one structured line, six body lines that repeat the record. Everything
else is left to the reader of single lines, so nothing is lost by being strict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

LINES = 7
# Below this many messages a block is read faster one by one.
MIN_MESSAGES = 64
_MARK = b"] kv_canary violation: launch_tag="
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_RANKS, _TAG, _REASON = re.compile(rb"(?: [A-Z]{2,}\d+)*"), re.compile(rb"[A-Z0-9_]+"), re.compile(rb"[a-z_+]+")
_KIND, _BODY_REASON = re.compile(rb"[a-z_]+"), re.compile(rb"[a-z_ ]+")
_TIME_CHARS, _MAX_RANKS, _MAX_WORD, _MAX_DIGITS, _HEX = 19, 40, 160, 18, 16
_NEWLINE, _RETURN, _MINUS = 10, 13, 45
# Reads behind the end of a block meet zeros, which no check accepts.
_PADDING = bytes(1024)
_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
_SHIFTS = np.arange(60, -1, -4, dtype=np.uint64)
_WORD_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
_KEY = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Words:
    """A text per message: codes int64 [n] into the distinct texts."""

    codes: Int64
    texts: Sequence[bytes]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BulkMessages:
    """Messages in the order of the block; every array is [n].

    starts, ends: bytes of the block. run_ends: index behind the last message that follows this one without a gap. ints: slot_idx,
    position, stored_token, expected_token; hashes: stored_chain_hash, expected_aux; total, step, overflow: the footer.
    """

    starts: Int64
    ends: Int64
    run_ends: Int64
    time: Words
    ranks: Words
    tag: Words
    reason: Words
    ints: tuple[Int64, ...]
    hashes: tuple[UInt64, ...]
    total: Int64
    step: Int64
    overflow: Bools

    def gaps(self, length: int, shortest: int) -> list[tuple[int, int]]:
        """What of a block of this length lies outside of runs of at least so many messages, as (start, end)."""
        first = np.flatnonzero(np.append(True, self.starts[1:] != self.ends[:-1])) if len(self.starts) else np.zeros(0, dtype=np.int64)
        long = first[self.run_ends[first] - first >= shortest]
        starts, ends = self.starts[long].tolist(), self.ends[self.run_ends[long] - 1].tolist()
        return [(end, start) for end, start in zip([0, *ends], [*starts, length], strict=True) if end < start]

    def run_at(self, at: int) -> slice:
        """Messages of the run that begins at this byte; empty when none begins there."""
        index = int(np.searchsorted(self.starts, at))
        if index == len(self.starts) or self.starts[index] != at:
            return slice(0, 0)
        return slice(index, int(self.run_ends[index]))


def read_messages(block: bytes) -> BulkMessages | None:
    """All plain messages of a block; None when there are too few to be worth it."""
    count = block.count(_MARK)
    if count < MIN_MESSAGES:
        return None
    text = _Text(block)
    return _Reader(text, _marks(text, count)).read()


def _marks(text: _Text, count: int) -> Int64:
    """Places of the mark behind a bracketed prefix, in order. Prefixes of a log are alike in length, so few lengths have to be tried."""
    starts = np.append(0, text.newlines + 1)
    starts = starts[text.data[starts] == ord("[")]
    found: list[Int64] = []
    for length in range(1 + _TIME_CHARS, 2 + _TIME_CHARS + _MAX_RANKS):
        there = text.says(starts + length, _MARK)
        found.append(starts[there] + length)
        starts = starts[~there]
        count -= len(found[-1])
        if not count or not len(starts):
            break
    return np.sort(np.concatenate(found))


class _Text:
    """The bytes of a block, read at many places at once; wherever they fit, eight bytes are compared as one number."""

    def __init__(self, block: bytes) -> None:
        self.data = np.frombuffer(block + _PADDING, dtype=np.uint8)
        self.newlines = np.flatnonzero(self.data[: len(block)] == _NEWLINE)
        self._eights = np.ndarray((len(self.data) - 7,), dtype="<u8", buffer=self.data, strides=(1,))

    def says(self, at: Int64, word: bytes) -> Bools:
        """Whether the word stands at each place."""
        good = np.ones(len(at), dtype=bool)
        for start in range(0, len(word), 8):
            part = word[start : start + 8]
            good &= (self._eights[at + start] & _WORD_MASKS[len(part)]) == np.uint64(int.from_bytes(part, "little"))
        return good

    def same(self, one: Int64, other: Int64, lengths: Int64) -> Bools:
        """Whether two stretches of equal length are equal."""
        good = np.ones(len(one), dtype=bool)
        for start in range(0, int(lengths.max(initial=0)), 8):
            masks = _WORD_MASKS[np.clip(lengths - start, 0, 8)]
            good &= ((self._eights[one + start] ^ self._eights[other + start]) & masks) == 0
        return good

    def integers(self, starts: Int64) -> tuple[Int64, Int64, Bools]:
        """Decimal numbers of up to 18 digits that end before something else: values, where they end, and which are numbers."""
        negative = self.data[starts] == _MINUS
        first = starts + negative
        values, ends = np.zeros(len(starts), dtype=np.int64), first.copy()
        inside = np.ones(len(starts), dtype=bool)
        for place in range(_MAX_DIGITS + 1):
            digits = self.data[first + place] - np.uint8(48)  # Wraps below '0', so one comparison is enough.
            inside &= digits <= 9
            if not inside.any():
                break
            values = np.where(inside, values * 10 + digits, values)
            ends += inside
        good = (ends > first) & (ends - first <= _MAX_DIGITS)
        return np.where(negative, -values, values), ends, good

    def hexadecimals(self, starts: Int64) -> tuple[UInt64, Bools]:
        """Numbers of 16 lower-case hexadecimal digits."""
        nibbles = _NIBBLES[self.data[starts[:, None] + np.arange(_HEX)]]
        values: UInt64 = (nibbles.astype(np.uint64) << _SHIFTS).sum(axis=1, dtype=np.uint64)
        return values, (nibbles < 16).all(axis=1)

    def words(self, starts: Int64, lengths: Int64, form: re.Pattern[bytes]) -> tuple[Words, Bools]:
        """Texts as codes, and which of them have the form."""
        keys = lengths.astype(np.uint64)
        for start in range(0, int(lengths.max(initial=0)), 8):
            masks = _WORD_MASKS[np.clip(lengths - start, 0, 8)]
            keys = (keys ^ (self._eights[starts + start] & masks)) * _KEY
            keys ^= keys >> np.uint64(29)
        _, firsts, codes = np.unique(keys, return_index=True, return_inverse=True)
        data = self.data
        texts = [data[starts[at] : starts[at] + lengths[at]].tobytes() for at in firsts.tolist()]
        fits = np.array([form.fullmatch(text) is not None for text in texts], dtype=bool)
        # Two texts may share a key; the first of them is what the code stands for.
        model = firsts[codes]
        exact = (lengths == lengths[model]) & self.same(starts, starts[model], lengths)
        return Words(codes=codes.astype(np.int64), texts=texts), fits[codes] & exact


class _Reader:
    """Reads the candidates field by field; `good` says which of them are still whole messages."""

    def __init__(self, text: _Text, marks: Int64) -> None:
        lines = np.searchsorted(text.newlines, marks)
        whole = lines + LINES <= len(text.newlines)
        self._text, self._marks, lines = text, marks[whole], lines[whole]
        line_starts = np.append(0, text.newlines + 1)
        self._begin = [line_starts[lines + number] for number in range(LINES)]
        ends = [text.newlines[lines + number] for number in range(LINES)]
        self._end = [end - (text.data[end - 1] == _RETURN) for end in ends]
        self._next = ends[-1] + 1
        prefix = self._marks - self._begin[0]
        self._good = (text.data[self._begin[0]] == ord("[")) & (prefix > _TIME_CHARS) & (prefix <= 1 + _TIME_CHARS + _MAX_RANKS)

    def read(self) -> BulkMessages:
        text, begin, end = self._text, self._begin, self._end
        # The body's lines are as long as what they repeat, so nothing has to be searched for.
        tag_at = self._marks + len(_MARK)
        forward = text.says(begin[2], b"canary_kind:       per_forward_")
        tag_length = np.clip(end[2] - begin[2] - np.where(forward, 31, 19), 0, _MAX_WORD)
        reason_length = np.clip(end[3] - begin[3] - len(b"  fail_reasons: "), 0, _MAX_WORD)
        at = self._expect(tag_at + tag_length, b" fail_reason=")
        reason_at, at = at, at + reason_length
        ints, places = [], []
        for key in (b" slot_idx=", b" position=", b" stored_token=", b" expected_token="):
            start = self._expect(at, key)
            values, at = self._integers(start)
            ints.append(values)
            places.append((start, at - start))
        hash_at = self._expect(at, b" stored_chain_hash=0x")
        aux_at = self._expect(hash_at + _HEX, b" expected_aux=0x")
        hashes = (self._hexadecimals(hash_at), self._hexadecimals(aux_at))
        self._good &= aux_at + _HEX == end[0]
        self._body((tag_at, tag_length), places, hash_at)
        self._words(begin[2] + 19, np.clip(end[2] - begin[2] - 19, 0, _MAX_WORD), _KIND)
        self._words(begin[3] + 16, reason_length, _BODY_REASON)
        total, overflow, step = self._footer()
        one = begin[0] + 1
        time, ranks = self._words(one, np.full(len(one), _TIME_CHARS), _TIME), self._words(one + _TIME_CHARS, self._rank_lengths(), _RANKS)
        tag, reason = self._words(tag_at, tag_length, _TAG), self._words(reason_at, reason_length, _REASON)
        good = self._good
        starts, ends = begin[0][good], self._next[good]
        return BulkMessages(
            starts=starts,
            ends=ends,
            run_ends=_run_ends(starts, ends),
            time=Words(codes=time.codes[good], texts=time.texts),
            ranks=Words(codes=ranks.codes[good], texts=ranks.texts),
            tag=Words(codes=tag.codes[good], texts=tag.texts),
            reason=Words(codes=reason.codes[good], texts=reason.texts),
            ints=tuple(values[good] for values in ints),
            hashes=tuple(values[good] for values in hashes),
            total=total[good],
            step=step[good],
            overflow=overflow[good],
        )

    def _rank_lengths(self) -> Int64:
        lengths: Int64 = np.clip(self._marks - self._begin[0] - 1 - _TIME_CHARS, 0, _MAX_RANKS)
        return lengths

    def _expect(self, at: Int64, word: bytes) -> Int64:
        self._good &= self._text.says(at, word)
        return at + len(word)

    def _integers(self, at: Int64) -> tuple[Int64, Int64]:
        values, ends, good = self._text.integers(at)
        self._good &= good
        return values, ends

    def _hexadecimals(self, at: Int64) -> UInt64:
        values, good = self._text.hexadecimals(at)
        self._good &= good
        return values

    def _words(self, at: Int64, lengths: Int64, form: re.Pattern[bytes]) -> Words:
        words, good = self._text.words(at, lengths, form)
        self._good &= good
        return words

    def _body(self, tag: tuple[Int64, Int64], places: Sequence[tuple[Int64, Int64]], hash_at: Int64) -> None:
        """The lines below belong to the record: they repeat tag, slot, position and hash."""
        text, begin, end = self._text, self._begin, self._end
        at = self._expect(begin[1], b"KV cache canary violation detected (kernel_kind=")
        for (start, length), behind in ((tag, b", slot_idx="), (places[0], b", position="), (places[1], b")")):
            self._good &= text.same(at, start, length)
            at = self._expect(at + length, behind)
        self._good &= at == end[1]
        for number, word in ((2, b"canary_kind:       "), (3, b"  fail_reasons: "), (5, b"  expected: ")):
            self._expect(begin[number], word)
        at = begin[4]
        self._good &= text.says(at, b"  stored:") | text.says(at, b"  actual:")
        at = self._expect(at + 9, b"   token_id=")
        for (start, length), behind in ((places[2], b"   position="), (places[1], b" prev_hash=0x")):
            self._good &= text.same(at, start, length)
            at = self._expect(at + length, behind)
        self._good &= (at + _HEX == end[4]) & text.same(at, hash_at, np.full(len(hash_at), _HEX))

    def _footer(self) -> tuple[Int64, Bools, Int64]:
        total, at = self._integers(self._expect(self._begin[-1], b"  total_violations="))
        at = self._expect(at, b" ring_overflow=")
        overflow = self._text.says(at, b"True ")
        self._good &= overflow | self._text.says(at, b"False ")
        step, at = self._integers(self._expect(at + np.where(overflow, 4, 5), b" step_when_pumped="))
        self._good &= (at == self._end[-1]) & (total >= 0) & (step >= 0)
        return total, overflow, step


def _run_ends(starts: Int64, ends: Int64) -> Int64:
    """Index behind the last message of each message's run."""
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    borders = np.append(breaks, len(starts))
    result: Int64 = borders[np.searchsorted(breaks, np.arange(len(starts)), side="right")]
    return result
