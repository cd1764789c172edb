"""KV bytes without a model: a hash of token, position and strip, so that a wrong row is a different row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcanary.serving.pool import Int64Array
from kvcanary.serving.tokens import UInt64Array, splitmix64

UInt8Array = NDArray[np.uint8]


def kv_rows(tokens: Int64Array, positions: Int64Array, strip: int, row_bytes: int) -> UInt8Array:
    """Bytes of n tokens in one strip (a layer's K or V), uint8 [n, row_bytes], row_bytes a multiple of 8; no 8-byte word is zero."""
    rows: UInt8Array = kv_strips(tokens, positions, (strip,), row_bytes)[0]
    return rows


def kv_strips(tokens: Int64Array, positions: Int64Array, strips: Sequence[int], row_bytes: int) -> UInt8Array:
    """Bytes of n tokens in several strips at once, uint8 [strips, n, row_bytes]."""
    keys = splitmix64(splitmix64(tokens.astype(np.uint64) + np.uint64(1)) ^ positions.astype(np.uint64))
    words: UInt64Array = np.arange(1, row_bytes // 8 + 1, dtype=np.uint64)
    # Zero bytes hash to zero, as an unset field does, so a zero word would hide a fault.
    mixed: UInt64Array = splitmix64((keys ^ _strip_bits(strips))[:, :, None] + words) | np.uint64(1)
    return mixed.view(np.uint8)


def _strip_bits(strips: Sequence[int]) -> UInt64Array:
    return np.array(strips, dtype=np.uint64)[:, None] << np.uint64(40)


def noise_row(seed: int, row_bytes: int) -> UInt8Array:
    """Bytes of nobody, uint8 [row_bytes]: what a stray writer leaves behind."""
    row: UInt8Array = kv_rows(np.array([seed]), np.array([-1]), 255, row_bytes)[0]
    return row
