"""The hash and the real-KV fold, compiled. Chains are serial by definition, rows are not: the fold runs many rows side by side."""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.memory import compiled, load, prefetch

TOKEN, POSITION, PREV_HASH, REAL_HASH = (8 * field for field in range(len(layout.SLOT_FIELDS)))
"""Byte offsets of the fields of a canary slot."""

CHAIN_START = np.uint64(layout.CHAIN_START)

SOURCE_FIELDS = ("address", "row_stride", "page_size", "page_shift", "num_bytes_per_token", "num_words")
"""Columns of the int64 table that describes the hashed sources; page_shift is -1 unless page_size is a power of two."""
_ADDRESS, _ROW_STRIDE, _PAGE_SIZE, _PAGE_SHIFT, _TOKEN_BYTES, _NUM_WORDS = range(len(SOURCE_FIELDS))

LOW_32_BITS = np.int64(0xFFFFFFFF)
"""Masks a slot or a stride: both fit, since req_to_token holds int32 slots and rows are narrower than 4 GiB."""

FOLD_LANES = 8
"""Rows folded side by side; enough to hide the latency of two multiplications."""

_M1, _M2 = np.uint64(layout.MIX_MULTIPLIER_1), np.uint64(layout.MIX_MULTIPLIER_2)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (np.uint64(bits) for bits in layout.MIX_SHIFTS)
_U64 = np.uint64


@compiled
def splitmix64(value):
    """SGLang's mixer of one uint64; zero stays zero."""
    value = (value ^ (value >> _SHIFT_1)) * _M1
    value = (value ^ (value >> _SHIFT_2)) * _M2
    return value ^ (value >> _SHIFT_3)


@compiled
def mix3(prev_hash, token, position):
    """Chain hash over three uint64: what the slot after this one must store."""
    return splitmix64(splitmix64(splitmix64(prev_hash) ^ token) ^ position)


@compiled
def hash_after(buffer, stride, slot):
    """Chain hash that the successor of a slot must store."""
    if slot < 0:
        return CHAIN_START
    record = buffer + slot * stride
    return mix3(load(record + PREV_HASH), load(record + TOKEN), load(record + POSITION))


@compiled
def row_address(source, slot):
    """Address of a slot's bytes in one source, a row of the source table."""
    page_size, shift = source[_PAGE_SIZE], source[_PAGE_SHIFT]
    row = slot >> shift if shift >= 0 else slot // page_size
    return source[_ADDRESS] + row * source[_ROW_STRIDE] + (slot - row * page_size) * source[_TOKEN_BYTES]


@compiled
def prefetch_rows(sources, slots, begin, end):
    """Start loading the first bytes of slots[begin:end] in every source whose pages are a power of two."""
    for source in range(sources.shape[0]):
        address, row_stride, token_bytes = sources[source, _ADDRESS], sources[source, _ROW_STRIDE], sources[source, _TOKEN_BYTES]
        shift, mask = sources[source, _PAGE_SHIFT], sources[source, _PAGE_SIZE] - 1
        if shift >= 0:
            for index in range(_U64(begin), _U64(end)):
                prefetch(address + (slots[index] >> shift) * row_stride + (slots[index] & mask) * token_bytes)


@compiled
def folds_two_words(sources):
    """Whether this is the everyday case that fold_two_words can do: PARTIAL mode with one source whose slots lie at one distance."""
    if sources.shape[0] != 1 or sources[0, _NUM_WORDS] != 2:
        return False
    page_size, row_stride, token_bytes = sources[0, _PAGE_SIZE], sources[0, _ROW_STRIDE], sources[0, _TOKEN_BYTES]
    return (page_size == 1 or row_stride == page_size * token_bytes) and row_stride <= LOW_32_BITS


@compiled
def two_word_source(sources):
    """What fold_two_words needs to know, read once before its loop: the first address, and the distance of two slots in bytes."""
    return sources[0, _ADDRESS], sources[0, _ROW_STRIDE] if sources[0, _PAGE_SIZE] == 1 else sources[0, _TOKEN_BYTES]


@compiled
def fold_two_words(source, slot):
    """real_kv_hash of a slot from a two_word_source; free of branches and stores, so that a loop over it vectorises.

    The masks tell the compiler that a 32-bit multiplication does, which is three times as fast in a vector.
    """
    address, distance = source
    row = address + (slot & LOW_32_BITS) * (distance & LOW_32_BITS)
    return splitmix64(splitmix64(splitmix64(load(row)) ^ load(row + 8)))


@compiled
def real_kv_hash(sources, slot):
    """real_kv_hash of one slot, for the paths that are not worth a block."""
    combined = _U64(0)
    for source in range(sources.shape[0]):
        address = row_address(sources[source], slot)
        folded = _U64(0)
        for word in range(sources[source, _NUM_WORDS]):
            folded = splitmix64(folded ^ load(address + 8 * word))
        combined = splitmix64(combined ^ folded)
    return combined


@compiled
def real_kv_hashes(sources, slots, first, count, addresses, folded, combined):
    """real_kv_hash of slots[first : first + count] into combined.

    addresses int64 and folded uint64 are scratch of at least count rounded up to FOLD_LANES.
    """
    for index in range(_U64(count)):
        combined[index] = _U64(0)
    for source in range(sources.shape[0]):
        for index in range(_U64(count)):
            addresses[index] = row_address(sources[source], slots[_U64(first) + index])
        _fold_rows(addresses, count, sources[source, _NUM_WORDS], folded)
        for index in range(_U64(count)):
            combined[index] = splitmix64(combined[index] ^ folded[index])


@compiled
def _fold_rows(addresses, count, num_words, folded):
    """Fold num_words words at each address; rows past count up to a whole group of lanes repeat the last one."""
    padded = -(-count // FOLD_LANES) * FOLD_LANES
    for index in range(count, padded):
        addresses[index] = addresses[count - 1]
    for group in range(0, padded, FOLD_LANES):
        for lane in range(_U64(FOLD_LANES)):
            folded[_U64(group) + lane] = _U64(0)
        for word in range(num_words):
            for lane in range(_U64(FOLD_LANES)):
                row = _U64(group) + lane
                folded[row] = splitmix64(folded[row] ^ load(addresses[row] + 8 * word))
