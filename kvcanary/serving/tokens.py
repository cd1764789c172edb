"""Token ids without a model: a hash of who and where, so that a run needs no weights and repeats exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcanary import layout
from kvcanary.serving.pool import Int32Array, Int64Array

UInt64Array = NDArray[np.uint64]
_M1, _M2 = np.uint64(layout.MIX_MULTIPLIER_1), np.uint64(layout.MIX_MULTIPLIER_2)
_SHIFTS = tuple(np.uint64(shift) for shift in layout.MIX_SHIFTS)


def splitmix64(values: UInt64Array) -> UInt64Array:
    """layout.splitmix64 on uint64 [n]."""
    x = values.astype(np.uint64, copy=True)
    x ^= x >> _SHIFTS[0]
    x *= _M1
    x ^= x >> _SHIFTS[1]
    x *= _M2
    x ^= x >> _SHIFTS[2]
    return x


def oracle_tokens(rids: Int64Array | np.int64, positions: Int64Array, vocab_size: int) -> Int32Array:
    """SGLang's token oracle: S(req_id xor position) mod vocab, int32 [n]."""
    mixed = splitmix64(rids.astype(np.uint64) ^ positions.astype(np.uint64))
    mixed %= np.uint64(vocab_size)
    return mixed.astype(np.int32)


def block_tokens(block_ids: Int64Array, block_size: int, vocab_size: int, seed: int) -> Int32Array:
    """Tokens of prefix blocks, int32 [len(block_ids) * block_size]: equal ids give equal tokens, whatever stands before them."""
    # Two rounds keep nearby block ids and offsets apart; the seed gives another text for the same trace.
    start = splitmix64(block_ids.astype(np.uint64) + np.uint64(1) + (np.uint64(seed) << np.uint64(32)))
    offsets: UInt64Array = np.arange(1, block_size + 1, dtype=np.uint64)
    mixed = splitmix64((start[:, None] + offsets).ravel())
    return (mixed % np.uint64(vocab_size)).astype(np.int32)
