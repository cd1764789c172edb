"""KV bytes without a model: a hash of token, position and strip, so that a wrong row is a different row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcanary.serving.pool import Int64Array
from kvcanary.serving.tokens import UInt64Array, splitmix64

UInt8Array = NDArray[np.uint8]


def kv_rows(tokens: Int64Array, positions: Int64Array, strip: int, row_bytes: int) -> UInt8Array:
    """Bytes of n tokens in one strip (a layer's K or V), uint8 [n, row_bytes], row_bytes a multiple of 8; no 8-byte word is zero."""
    keys = splitmix64(splitmix64(tokens.astype(np.uint64) + np.uint64(1)) ^ positions.astype(np.uint64)) ^ np.uint64(strip << 40)
    words: UInt64Array = np.arange(1, row_bytes // 8 + 1, dtype=np.uint64)
    # Zero bytes hash to zero, as an unset field does, so a zero word would hide a fault.
    mixed: UInt64Array = splitmix64((keys[:, None] + words).ravel()) | np.uint64(1)
    return mixed.reshape(len(tokens), len(words)).view(np.uint8)


def noise_row(seed: int, row_bytes: int) -> UInt8Array:
    """Bytes of nobody, uint8 [row_bytes]: what a stray writer leaves behind."""
    row: UInt8Array = kv_rows(np.array([seed]), np.array([-1]), 255, row_bytes)[0]
    return row
