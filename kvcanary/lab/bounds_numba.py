"""The CPU bounds as compiled loops."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

_Array = np.ndarray


@njit(parallel=True, cache=True, nogil=True)
def gather(fields: _Array, slots: _Array, previous: _Array, positions: _Array, words: _Array) -> np.int64:
    """Read slot record, predecessor and hashed KV words of each entry; the sum keeps the loads alive."""
    total = np.int64(0)
    for entry in prange(slots.shape[0]):
        slot, before = slots[entry], previous[entry]
        found = fields[slot, 0] ^ fields[slot, 1] ^ fields[slot, 2] ^ fields[slot, 3] ^ positions[entry]
        found ^= fields[before, 0] ^ fields[before, 1] ^ fields[before, 2]
        for word in range(words.shape[1]):
            found ^= words[slot, word]
        total += found
    return total


@njit(parallel=True, cache=True, nogil=True)
def scatter(fields: _Array, slots: _Array, tokens: _Array, positions: _Array, words: _Array) -> None:
    """Store one record per token from what was read for it."""
    for entry in prange(slots.shape[0]):
        slot = slots[entry]
        found = np.int64(0)
        for word in range(words.shape[1]):
            found ^= words[slot, word]
        fields[slot, 0] = tokens[entry]
        fields[slot, 1] = positions[entry]
        fields[slot, 2] = tokens[entry]
        fields[slot, 3] = found
