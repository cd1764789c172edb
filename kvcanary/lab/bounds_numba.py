"""The CPU bounds as compiled loops over a range of entries; the GIL is released, threads are the caller's business.

They prefetch as the backend does: a bound that waits for memory more often than the kernel beside it would be none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary.kernels.numba_ops.hashing import CHAIN_START, mix3
from kvcanary.kernels.numba_ops.memory import compiled, prefetch, prefetch_for_write

_Array = np.ndarray
AHEAD = 24
WORDS_PER_LINE = 8


def _gather(
    fields: _Array, slots: _Array, previous: _Array, positions: _Array, words: _Array, count: int, start: int, stop: int
) -> np.int64:
    """Read slot record, predecessor and `count` KV words of each entry; the sum keeps the loads alive."""
    total = np.int64(0)
    field_base, word_base = np.int64(fields.ctypes.data), np.int64(words.ctypes.data)
    for entry in range(start, stop):
        if entry + AHEAD < stop:
            ahead = slots[entry + AHEAD]
            prefetch(np.int64(field_base + ahead * fields.strides[0]))
            for word in range(0, count, WORDS_PER_LINE):
                prefetch(np.int64(word_base + ahead * words.strides[0] + word * 8))
        slot, before = slots[entry], previous[entry]
        found = fields[slot, 0] ^ fields[slot, 1] ^ fields[slot, 2] ^ fields[slot, 3] ^ positions[entry]
        found ^= fields[before, 0] ^ fields[before, 1] ^ fields[before, 2]
        for word in range(count):
            found ^= words[slot, word]
        total += found
    return total


def _scatter(fields: _Array, slots: _Array, tokens: _Array, positions: _Array, words: _Array, count: int, start: int, stop: int) -> None:
    """Store one record per token from what was read for it."""
    field_base, word_base = np.int64(fields.ctypes.data), np.int64(words.ctypes.data)
    for entry in range(start, stop):
        if entry + AHEAD < stop:
            ahead = slots[entry + AHEAD]
            prefetch_for_write(np.int64(field_base + ahead * fields.strides[0]))
            for word in range(0, count, WORDS_PER_LINE):
                prefetch(np.int64(word_base + ahead * words.strides[0] + word * 8))
        slot = slots[entry]
        found = np.int64(0)
        for word in range(count):
            found ^= words[slot, word]
        fields[slot, 0] = tokens[entry]
        fields[slot, 1] = positions[entry]
        fields[slot, 2] = tokens[entry]
        fields[slot, 3] = found


def _read(words: _Array, start: int, stop: int) -> np.int64:
    """Sum words[start:stop] in order; the loop vectorises, so memory is all that it waits for."""
    total = np.int64(0)
    for index in range(start, stop):
        total += words[index]
    return total


def _walk(tokens: int) -> np.uint64:
    """One chain of so many hashes, each of which needs the one before; nothing is loaded or stored."""
    running = CHAIN_START
    for position in range(tokens):
        running = mix3(running, np.uint64(position), np.uint64(position))
    return running


def _hash_all(start: int, stop: int) -> np.uint64:
    """As many hashes that do not need each other; nothing is loaded or stored."""
    found = np.uint64(0)
    for index in range(start, stop):
        found ^= mix3(np.uint64(index), np.uint64(index), np.uint64(index))
    return found


read: Any = compiled(_read)
walk: Any = compiled(_walk)
hash_all: Any = compiled(_hash_all)
gather: Any = compiled(_gather)
scatter: Any = compiled(_scatter)
