"""The hash and the real-KV fold, compiled. Chains are serial by definition, rows are not: the fold runs many rows side by side."""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops import wide
from kvcanary.kernels.numba_ops.compiling import compiled
from kvcanary.kernels.numba_ops.memory import CACHE_LINE, cache_lines, is_scattered, load, prefer_wide_vectors, prefetch, store

TOKEN, POSITION, PREV_HASH, REAL_HASH = (8 * field for field in range(len(layout.SLOT_FIELDS)))
"""Byte offsets of the fields of a canary slot."""

CHAIN_START = np.uint64(layout.CHAIN_START)

SOURCE_FIELDS = ("address", "row_stride", "page_size", "page_shift", "num_bytes_per_token", "num_words")
"""Columns of the int64 table that describes the hashed sources; page_shift is -1 unless page_size is a power of two."""
_ADDRESS, _ROW_STRIDE, _PAGE_SIZE, _PAGE_SHIFT, _TOKEN_BYTES, _NUM_WORDS = range(len(SOURCE_FIELDS))

LOW_32_BITS = np.int64(0xFFFFFFFF)
"""Masks a slot or a stride: both fit, since req_to_token holds int32 slots and rows are narrower than 4 GiB."""

FOLD_LANES = 8
"""Rows folded side by side where there is no tile of them; enough to hide the latency of two multiplications."""

_ROWS_AT, _FOLDED, _COMBINED, _TILE = (8 * wide.ROWS * part for part in range(4))
_SCRATCH_BYTES = _TILE + 8 * wide.ROWS * wide.WORDS
"""Where the parts of fold_scratch begin: the addresses of the rows, two sums of each, and the words of a tile."""

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
    return _address(source[_ADDRESS], source[_ROW_STRIDE], source[_PAGE_SIZE], source[_PAGE_SHIFT], source[_TOKEN_BYTES], slot)


@compiled
def _address(address, row_stride, page_size, shift, token_bytes, slot):
    row = slot >> shift if shift >= 0 else slot // page_size
    return address + row * row_stride + (slot - row * page_size) * token_bytes


@compiled
def prefetch_rows(sources, slots, begin, end):
    """Start loading the first bytes of slots[begin:end] in every source whose pages are a power of two.

    The hardware foresees rows that lie side by side, but no longer when each is on a cache line of its own.
    """
    scattered = is_scattered(slots, begin, end)
    for source in range(sources.shape[0]):
        address, row_stride, token_bytes = sources[source, _ADDRESS], sources[source, _ROW_STRIDE], sources[source, _TOKEN_BYTES]
        shift, mask = sources[source, _PAGE_SHIFT], sources[source, _PAGE_SIZE] - 1
        if shift >= 0 and (scattered or token_bytes > CACHE_LINE):
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
def fold_scratch():
    """Room for one call of real_kv_hashes at a time; a single array, since each one that is passed on costs two atomic counts."""
    return cache_lines(_SCRATCH_BYTES // 8)


@compiled
def real_kv_hashes(sources, slots, first, count, scratch, hashes, into):
    """real_kv_hash of slots[first : first + count] into hashes[into:], uint64; scratch: see fold_scratch."""
    room = np.int64(scratch.ctypes.data)
    done = _hash_pairs(sources, slots, first, count, hashes, into) if wide.AVAILABLE and folds_two_words(sources) else 0
    for begin in range(done, count, wide.ROWS):
        rows = min(wide.ROWS, count - begin)
        in_tile = wide.AVAILABLE and rows >= wide.ROWS // 2
        # Rows past the last, up to a whole tile or a whole group of lanes, repeat it.
        padded = wide.ROWS if in_tile else -(-rows // FOLD_LANES) * FOLD_LANES
        _clear(room + _COMBINED)
        for source in range(sources.shape[0]):
            _row_addresses(sources, source, slots, first + begin, rows, room + _ROWS_AT)
            for row in range(rows, padded):
                store(room + _ROWS_AT + 8 * row, load(room + _ROWS_AT + 8 * (rows - 1)))
            _clear(room + _FOLDED)
            if in_tile:
                _fold_in_tile(room, sources[source, _NUM_WORDS])
            else:
                _fold_in_lanes(room, padded, sources[source, _NUM_WORDS])
        for row in range(rows):
            hashes[_U64(into + begin + row)] = load(room + _COMBINED + 8 * row)


@compiled
def _hash_pairs(sources, slots, first, count, hashes, into):
    """The same for as many whole tiles as there are, where folds_two_words holds. Returns how many slots that were."""
    prefer_wide_vectors()
    address, distance = two_word_source(sources)
    slots_at, hashes_at = np.int64(slots.ctypes.data) + 8 * first, np.int64(hashes.ctypes.data) + 8 * into
    whole = count - count % wide.ROWS
    for row in range(0, 8 * whole, 8 * wide.ROWS):
        wide.hash_pairs(slots_at + row, address, distance, hashes_at + row)
    return whole


@compiled
def _clear(words):
    for row in range(wide.ROWS):
        store(words + 8 * row, _U64(0))


@compiled
def _row_addresses(sources, source, slots, first, count, into):
    """row_address of slots[first : first + count]; what describes the source is read before the loop, not again after each store."""
    address, row_stride, page_size = sources[source, _ADDRESS], sources[source, _ROW_STRIDE], sources[source, _PAGE_SIZE]
    shift, token_bytes = sources[source, _PAGE_SHIFT], sources[source, _TOKEN_BYTES]
    for index in range(count):
        found = _address(address, row_stride, page_size, shift, token_bytes, slots[_U64(first + index)])
        store(into + 8 * index, _U64(found))


@compiled
def _fold_in_lanes(room, padded, num_words):
    """Fold num_words words at each address into the sums at _FOLDED, which are 0, and those into the sums at _COMBINED."""
    for group in range(room, room + 8 * padded, 8 * FOLD_LANES):
        for word in range(0, 8 * num_words, 8):
            for row in range(group, group + 8 * FOLD_LANES, 8):
                value = load(np.int64(load(row + _ROWS_AT)) + word)
                store(row + _FOLDED, splitmix64(load(row + _FOLDED) ^ value))
        for row in range(group, group + 8 * FOLD_LANES, 8):
            store(row + _COMBINED, splitmix64(load(row + _COMBINED) ^ load(row + _FOLDED)))


@compiled
def _fold_in_tile(room, num_words):
    """The same for exactly one tile of rows. Rows are whole multiples of 16 bytes, see layout.REAL_KV_ALIGNMENT."""
    prefer_wide_vectors()
    for first in range(0, num_words, wide.WORDS):
        words = min(wide.WORDS, num_words - first)
        for row in range(room, room + 8 * wide.ROWS, 8 * wide.WORDS):
            if words == wide.WORDS:
                # So many rows at once are too many for the hardware to foresee the next line of each.
                for address in range(row, row + 8 * wide.WORDS, 8):
                    prefetch(np.int64(load(address + _ROWS_AT)) + 8 * (first + wide.WORDS))
                wide.load_line(row + _ROWS_AT, 8 * first, row + _TILE)
            else:
                for pair in range(0, words, 2):
                    wide.load_pair(row + _ROWS_AT, 8 * (first + pair), row + _TILE + 8 * wide.ROWS * pair)
        wide.fold_tile(room + _TILE, words, room + _FOLDED)
    wide.fold_tile(room + _FOLDED, 1, room + _COMBINED)
