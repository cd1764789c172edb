"""Append-only columns of integers that take no more bytes than their values need."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

_CODES: tuple[Literal["b", "h", "i", "q"], ...] = ("b", "h", "i", "q")


class IntColumn:
    """Signed integers of up to 64 bits; the column becomes wider with the first value that needs it."""

    def __init__(self) -> None:
        self._values: array[int] = array(_CODES[0])

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __getitem__(self, row: int) -> int:
        return self._values[row]

    def __setitem__(self, row: int, value: int) -> None:
        self._widen(value, value)
        self._values[row] = value

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return len(self._values) * self._values.itemsize

    def append(self, value: int) -> None:
        """Add one value; OverflowError beyond 64 bits."""
        try:
            self._values.append(value)
        except OverflowError:
            self._widen(value, value)
            self._values.append(value)

    def extend(self, values: npt.NDArray[np.integer]) -> None:
        """Add an array [n] of signed integers."""
        if len(values):
            self._widen(int(values.min()), int(values.max()))
            self._values.frombytes(values.astype(np.dtype(self._values.typecode), copy=False).tobytes())

    def array(self, dtype: type[np.integer] = np.int64) -> npt.NDArray[np.integer]:
        """All values [n], as a copy."""
        return np.array(self._values, dtype=dtype)

    def _widen(self, low: int, high: int) -> None:
        if not _fits(self._values.itemsize, low, high):
            code = next((code for code in _CODES if _fits(array(code).itemsize, low, high)), _CODES[-1])
            self._values = array(code, self._values)


def _fits(size_bytes: int, low: int, high: int) -> bool:
    limit = 1 << 8 * size_bytes - 1
    return -limit <= low and high < limit
