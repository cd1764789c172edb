"""The CPU bounds as compiled loops over a range of entries; the GIL is released, threads are the caller's business.

They go through memory as the backend does, in its blocks and asking ahead where it asks: a bound that reads more slowly than the kernel
beside it would be none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary.kernels.numba_ops.compiling import compiled
from kvcanary.kernels.numba_ops.hashing import CHAIN_START, LOW_32_BITS, POSITION, PREV_HASH, REAL_HASH, TOKEN, mix3
from kvcanary.kernels.numba_ops.memory import CACHE_LINE, is_scattered, load, prefer_wide_vectors, prefetch, store
from kvcanary.kernels.numba_ops.verify import AHEAD, BLOCK, prefetch_records

_Array = np.ndarray
_U64 = np.uint64


def _gather(
    fields: _Array, slots: _Array, previous: _Array, positions: _Array, words: _Array, count: int, start: int, stop: int
) -> np.uint64:
    """Read what verify compares of each entry, what it hashes of the predecessor, and `count` KV words; the sum keeps the loads alive."""
    prefer_wide_vectors()
    total = np.uint64(0)
    buffer, stride = np.int64(fields.ctypes.data), np.int64(fields.strides[0])
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        prefetch_records(buffer, stride, slots, min(begin + AHEAD, stop), min(end + AHEAD, stop))
        if count:
            prefetch_words(words, count, slots, min(begin + AHEAD, stop), min(end + AHEAD, stop))
        for index in range(_U64(begin), _U64(end)):
            record = buffer + (slots[index] & LOW_32_BITS) * (stride & LOW_32_BITS)
            before = buffer + (previous[index] & LOW_32_BITS) * (stride & LOW_32_BITS)
            total ^= load(record + POSITION) ^ load(record + PREV_HASH) ^ load(record + REAL_HASH) ^ _U64(positions[index])
            total ^= load(before + TOKEN) ^ load(before + POSITION) ^ load(before + PREV_HASH)
        for index in range(_U64(begin), _U64(end)):
            for word in range(count):
                total ^= _U64(words[slots[index], word])
    return total


def _scatter(fields: _Array, slots: _Array, tokens: _Array, positions: _Array, words: _Array, count: int, start: int, stop: int) -> None:
    """Store one record per token from what was read for it."""
    buffer, stride = np.int64(fields.ctypes.data), np.int64(fields.strides[0])
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        if count:
            prefetch_words(words, count, slots, min(begin + AHEAD, stop), min(end + AHEAD, stop))
        for index in range(_U64(begin), _U64(end)):
            slot, found = slots[index], _U64(0)
            for word in range(count):
                found ^= _U64(words[slot, word])
            record = buffer + slot * stride
            store(record + TOKEN, _U64(tokens[index]))
            store(record + POSITION, _U64(positions[index]))
            store(record + PREV_HASH, _U64(tokens[index]))
            store(record + REAL_HASH, found)


def _prefetch_words(words: _Array, count: int, slots: _Array, begin: int, end: int) -> None:
    """Ask for every line of the KV words of slots[begin:end], unless they lie side by side."""
    if is_scattered(slots, begin, end) or words.strides[0] - 8 * count > CACHE_LINE:
        for index in range(begin, end):
            for word in range(0, count, CACHE_LINE // 8):
                prefetch(np.int64(words.ctypes.data) + slots[index] * words.strides[0] + word * 8)


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
    prefer_wide_vectors()
    found = np.uint64(0)
    for index in range(start, stop):
        found ^= mix3(np.uint64(index), np.uint64(index), np.uint64(index))
    return found


prefetch_words: Any = compiled(_prefetch_words)
read: Any = compiled(_read)
walk: Any = compiled(_walk)
hash_all: Any = compiled(_hash_all)
gather: Any = compiled(_gather)
scatter: Any = compiled(_scatter)
