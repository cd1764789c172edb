"""The bytes of a block of log, read at many places at once with NumPy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

HEX_DIGITS = 16
_MAX_DIGITS = 18
_NEWLINE, _RETURN, _MINUS, _SPACE = 10, 13, 45, 32
# Reads behind the end of a block meet zeros, which no check accepts.
_PADDING = bytes(1024)
_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
_SHIFTS = np.arange(60, -1, -4, dtype=np.uint64)
_WORD_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
_KEY = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Words:
    """A text per item: codes int64 [n] into the distinct texts."""

    codes: Int64
    texts: Sequence[bytes]

    def __getitem__(self, items: slice | Bools | Int64) -> Words:
        return Words(codes=self.codes[items], texts=self.texts)

    def used(self) -> tuple[Int64, list[bytes]]:
        """Codes and texts of those that are used, in order of their first use."""
        _, firsts, dense = np.unique(self.codes, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return places[dense], [self.texts[code] for code in self.codes[np.sort(firsts)].tolist()]


class BlockText:
    """A block that ends with a line end, or whose last line is left out; wherever they fit, eight bytes are compared as one number.

    starts, ends: int64 [lines], where the text of each ended line begins and ends; nexts: where the line behind it begins.
    """

    def __init__(self, block: bytes) -> None:
        self.data = np.frombuffer(block + _PADDING, dtype=np.uint8)
        newlines = np.flatnonzero(self.data[: len(block)] == _NEWLINE)
        self.nexts: Int64 = newlines + 1
        self.starts: Int64 = np.append(0, self.nexts[:-1]) if len(newlines) else newlines
        self.ends: Int64 = newlines - (self.data[newlines - 1] == _RETURN) * (newlines > self.starts)
        self._eights = np.ndarray((len(self.data) - 7,), dtype="<u8", buffer=self.data, strides=(1,))
        self._spaces: Int64 | None = None

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

    def next_spaces(self, at: Int64, count: int) -> tuple[Int64, ...]:
        """The next `count` spaces at or behind each place; the end of the block stands for one that is missing."""
        if self._spaces is None:
            length = len(self.data) - len(_PADDING)
            self._spaces = np.append(np.flatnonzero(self.data[:length] == _SPACE), [length] * count)
        first = np.searchsorted(self._spaces, at)
        return tuple(self._spaces[np.minimum(first + number, len(self._spaces) - 1)] for number in range(count))

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
        nibbles = _NIBBLES[self.data[starts[:, None] + np.arange(HEX_DIGITS)]]
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


class Checked:
    """Candidates that are read field by field; `good` says which of them are still what they seem."""

    def __init__(self, text: BlockText, count: int) -> None:
        self.text = text
        self.good: Bools = np.ones(count, dtype=bool)

    def expect(self, at: Int64, word: bytes) -> Int64:
        """The word has to stand here; where it ends."""
        self.good &= self.text.says(at, word)
        return at + len(word)

    def repeat(self, at: Int64, start: Int64, length: Int64) -> Int64:
        """What stands at start has to be repeated here; where it ends."""
        self.good &= self.text.same(at, start, length)
        return at + length

    def integers(self, at: Int64) -> tuple[Int64, Int64]:
        """A number has to stand here; the values and where they end."""
        values, ends, good = self.text.integers(at)
        self.good &= good
        return values, ends

    def counts(self, at: Int64) -> tuple[Int64, Int64]:
        """A number that is not negative."""
        values, ends = self.integers(at)
        self.good &= self.text.data[at] != _MINUS
        return values, ends

    def hexadecimals(self, at: Int64) -> UInt64:
        """Sixteen hexadecimal digits."""
        values, good = self.text.hexadecimals(at)
        self.good &= good
        return values

    def words(self, at: Int64, lengths: Int64, form: re.Pattern[bytes]) -> Words:
        """A text of this form."""
        words, good = self.text.words(at, lengths, form)
        self.good &= good
        return words
