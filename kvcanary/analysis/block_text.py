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
# Texts are compared up to this length.
_MAX_TEXT = 192
_MASKS = np.frombuffer(b"".join((b"\xff" * count).ljust(_MAX_TEXT, b"\0") for count in range(_MAX_TEXT + 1)), dtype="<u8").reshape(
    -1, _MAX_TEXT // 8
)
_KEY, _SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


def _every_byte(value: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([value]) * 8, "little"))


_ONE, _LOW, _HIGH, _SIX, _ZERO = (_every_byte(value) for value in (1, 0x0F, 0xF0, 6, ord("0")))
# From "9" to "a" the characters jump by so many more than the digits do.
_LETTERS = np.uint64(ord("a") - ord("9") - 1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Words:
    """A text per item: codes int64 [n] into the distinct texts."""

    codes: Int64
    texts: Sequence[bytes]

    def __getitem__(self, items: slice | Bools | Int64) -> Words:
        return Words(codes=self.codes[items], texts=self.texts)

    def used(self) -> tuple[Int64, list[bytes]]:
        """Codes and texts of those that are used, in order of their first use."""
        count = len(self.codes)
        if count < len(self.texts):
            # A few items of many texts, as in a log where runs are short: what is not used costs nothing.
            found, places, dense = np.unique(self.codes, return_index=True, return_inverse=True)
            order = np.argsort(places)
            places[order] = np.arange(len(order))
            return places[dense], [self.texts[code] for code in found[order].tolist()]
        firsts = np.full(len(self.texts), count)
        # Backwards, so that the first use of a text is the one that stays.
        firsts[self.codes[::-1]] = np.arange(count - 1, -1, -1)
        order = np.argsort(firsts)[: int((firsts < count).sum())]
        places = np.zeros(len(self.texts), dtype=np.int64)
        places[order] = np.arange(len(order))
        return places[self.codes], [self.texts[code] for code in order.tolist()]


class BlockText:
    """A block that ends with a line end, or whose last line is left out; many bytes are compared as one number.

    starts, ends: int64 [lines], where the text of each ended line begins and ends; nexts: where the line behind it begins.
    """

    def __init__(self, block: bytes) -> None:
        self.data = np.frombuffer(block + _PADDING, dtype=np.uint8)
        newlines = np.flatnonzero(self.data[: len(block)] == _NEWLINE)
        self.nexts: Int64 = newlines + 1
        self.starts: Int64 = np.append(0, self.nexts[:-1]) if len(newlines) else newlines
        self.ends: Int64 = newlines - (self.data[newlines - 1] == _RETURN) * (newlines > self.starts)

    def bytes_at(self, at: Int64, width: int) -> npt.NDArray[np.uint8]:
        """uint8 [n, width], what stands at each place; at most as much as the padding is fetched."""
        rows = np.ndarray((len(self.data) - width + 1,), dtype=f"V{width}", buffer=self.data, strides=(1,))
        return rows[at].view(np.uint8).reshape(-1, width)

    def _eights_at(self, at: Int64, length: int) -> UInt64:
        """uint64 [n, length / 8 rounded up]: one gather costs much the same for 8 bytes as for 64."""
        return self.bytes_at(at, max(1, -(-length // 8)) * 8).view("<u8")

    def says(self, at: Int64, word: bytes) -> Bools:
        """Whether the word stands at each place."""
        found = self._eights_at(at, len(word))
        wanted = np.frombuffer(word.ljust(found.shape[1] * 8, b"\0"), dtype="<u8")
        wrong = np.zeros(len(at), dtype=np.uint64)
        for place in range(found.shape[1]):
            wrong |= (found[:, place] ^ wanted[place]) & _MASKS[len(word), place]
        good: Bools = wrong == 0
        return good

    def same(self, one: Int64, other: Int64, lengths: Int64) -> Bools:
        """Whether two stretches of equal length are equal."""
        length = int(lengths.max(initial=1))
        differ = self._eights_at(one, length) ^ self._eights_at(other, length)
        wrong = np.zeros(len(one), dtype=np.uint64)
        for place in range(differ.shape[1]):
            wrong |= differ[:, place] & _MASKS[lengths, place]
        good: Bools = wrong == 0
        return good

    def overwritten(self) -> Int64:
        """Numbers of the lines with a carriage return inside, as a progress bar writes several into one."""
        returns = np.flatnonzero(self.data[: int(self.nexts[-1])] == _RETURN)
        lines: Int64 = np.searchsorted(self.nexts, returns[self.data[returns + 1] != _NEWLINE], side="right")
        return lines

    def next_space(self, at: Int64, limit: int) -> Int64:
        """The next space at or behind each place; the place itself when none stands within the limit of bytes."""
        place: Int64 = at + (self.bytes_at(at, limit) == _SPACE).argmax(axis=1)
        return place

    def integers(self, starts: Int64) -> tuple[Int64, Int64, Bools]:
        """Decimal numbers of up to 18 digits that end before something else: values, where they end, and which are numbers."""
        negative = self.data[starts] == _MINUS
        first = starts + negative
        digits = self.bytes_at(first, _MAX_DIGITS + 1) - np.uint8(48)  # Wraps below '0', so one comparison is enough.
        values, counts = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=np.int64)
        inside = np.ones(len(starts), dtype=bool)
        for place in range(_MAX_DIGITS + 1):
            inside &= digits[:, place] <= 9
            if not inside.any():
                break
            np.copyto(values, values * 10 + digits[:, place], where=inside)
            counts += inside
        good = (counts > 0) & (counts <= _MAX_DIGITS)
        return np.where(negative, -values, values), first + counts, good

    def hexadecimals(self, starts: Int64) -> tuple[UInt64, Bools]:
        """Numbers of 16 lower-case hexadecimal digits."""
        values, good = np.zeros(len(starts), dtype=np.uint64), np.ones(len(starts), dtype=bool)
        characters = self.bytes_at(starts, HEX_DIGITS).view(">u8").astype(np.uint64)
        for half in range(2):
            text = characters[:, half]
            digits = (text & _LOW) + ((text >> np.uint64(6)) & _ONE) * np.uint64(9)
            letters = ((digits + _SIX) >> np.uint64(4)) & _ONE
            good &= ((digits & _HIGH) == 0) & (digits + _ZERO + letters * _LETTERS == text)
            values = (values << np.uint64(32)) | _packed(digits)
        return values, good

    def words(self, starts: Int64, lengths: Int64, form: re.Pattern[bytes]) -> tuple[Words, Bools]:
        """Texts of up to 192 bytes as codes, and which of them have the form."""
        keys = lengths.astype(np.uint64)
        found = self._eights_at(starts, int(lengths.max(initial=1)))
        found &= _MASKS[lengths, : found.shape[1]]
        for place in range(found.shape[1]):
            keys = (keys ^ found[:, place]) * _KEY
            keys ^= keys >> _SPREAD
        # Neighbours are often alike, and a few are sorted sooner than many.
        heads = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, dtype=np.int64)
        _, firsts, codes = np.unique(keys[heads], return_index=True, return_inverse=True)
        firsts, codes = heads[firsts], np.repeat(codes, np.diff(heads, append=len(keys)))
        data = self.data
        texts = [data[starts[at] : starts[at] + lengths[at]].tobytes() for at in firsts.tolist()]
        fits = np.array([form.fullmatch(text) is not None for text in texts], dtype=bool)
        # Two texts may share a key; the first of them is what the code stands for.
        model = firsts[codes]
        good = fits[codes] & (lengths == lengths[model]) & (found == found[model]).all(axis=1)
        return Words(codes=codes.astype(np.int64), texts=texts), good


def _packed(digits: UInt64) -> UInt64:
    """Eight bytes of four bits each as one number of 32 bits."""
    for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        digits = (digits | (digits >> np.uint64(bits))) & np.uint64(mask)
    return digits


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
