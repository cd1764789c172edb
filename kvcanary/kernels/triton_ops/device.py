"""What the kernels share: the hash, records by slot, the fold of real KV bytes, and the violation ring."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary import layout

MULTIPLIER_1 = tl.constexpr(layout.MIX_MULTIPLIER_1)
MULTIPLIER_2 = tl.constexpr(layout.MIX_MULTIPLIER_2)
SHIFT_1, SHIFT_2, SHIFT_3 = (tl.constexpr(bits) for bits in layout.MIX_SHIFTS)
CHAIN_START = tl.constexpr(layout.CHAIN_START)
TOKEN = tl.constexpr(layout.FIELD_TOKEN)
POSITION = tl.constexpr(layout.FIELD_POSITION)
PREV_HASH = tl.constexpr(layout.FIELD_PREV_HASH)
REAL_KV_HASH = tl.constexpr(layout.FIELD_REAL_KV_HASH)
RING_WIDTH = tl.constexpr(len(layout.RING_FIELDS))


@triton.jit
def splitmix64(x):
    """Mixer S; x is uint64, so that shifts are logical."""
    x = (x ^ (x >> SHIFT_1)) * MULTIPLIER_1
    x = (x ^ (x >> SHIFT_2)) * MULTIPLIER_2
    return x ^ (x >> SHIFT_3)


@triton.jit
def mix3(prev_hash, token, position):
    """Chain step; the hash is uint64, token and position are int64."""
    inner = splitmix64(splitmix64(prev_hash) ^ token.to(tl.uint64, bitcast=True))
    return splitmix64(inner ^ position.to(tl.uint64, bitcast=True))


@triton.jit
def hash_after(records, stride, num_slots, slot, mask):
    """uint64 hash that the successor of each slot must store, the anchor's hash where the slot is negative."""
    inside = mask & (slot >= 0) & (slot < num_slots)
    record = records + slot * stride
    token = tl.load(record + TOKEN, mask=inside, other=0)
    position = tl.load(record + POSITION, mask=inside, other=0)
    prev_hash = tl.load(record + PREV_HASH, mask=inside, other=0)
    after = mix3(prev_hash.to(tl.uint64, bitcast=True), token, position)
    return tl.where(slot < 0, tl.full(slot.shape, CHAIN_START, tl.uint64), after)


@triton.jit
def fold_source(words, row_units, token_units, num_units, PAGE_SIZE: tl.constexpr, slot, mask, BLOCK: tl.constexpr):
    """uint64 hash of one source for each slot; row_units, token_units and num_units count 16 bytes, the alignment of real KV.

    The words of a row are serial. Each step loads 16 bytes of every row of the block, so that many rows are in flight.
    """
    first = (slot // PAGE_SIZE) * row_units + (slot % PAGE_SIZE) * token_units
    hashed = tl.zeros([BLOCK], tl.uint64)
    for unit in range(num_units):
        # Times two at the end shows the compiler that a load of two words is aligned.
        pair = words + ((first + unit) * 2)[:, None] + tl.arange(0, 2)[None, :]
        even, odd = tl.split(tl.load(pair, mask=mask[:, None], other=0).to(tl.uint64, bitcast=True))
        hashed = splitmix64(splitmix64(hashed ^ even) ^ odd)
    return hashed


@triton.jit
def real_kv_hash(
    words_0, row_units_0, token_units_0, num_units_0,
    words_1, row_units_1, token_units_1, num_units_1,
    words_2, row_units_2, token_units_2, num_units_2,
    words_3, row_units_3, token_units_3, num_units_3,
    NUM_SOURCES: tl.constexpr, PAGE_0: tl.constexpr, PAGE_1: tl.constexpr, PAGE_2: tl.constexpr, PAGE_3: tl.constexpr,
    slot, mask, BLOCK: tl.constexpr,
):  # fmt: skip
    """uint64 real-KV hash of each slot over the first NUM_SOURCES sources, 0 without sources."""
    combined = tl.zeros([BLOCK], tl.uint64)
    if NUM_SOURCES > 0:
        combined = splitmix64(combined ^ fold_source(words_0, row_units_0, token_units_0, num_units_0, PAGE_0, slot, mask, BLOCK))
    if NUM_SOURCES > 1:
        combined = splitmix64(combined ^ fold_source(words_1, row_units_1, token_units_1, num_units_1, PAGE_1, slot, mask, BLOCK))
    if NUM_SOURCES > 2:
        combined = splitmix64(combined ^ fold_source(words_2, row_units_2, token_units_2, num_units_2, PAGE_2, slot, mask, BLOCK))
    if NUM_SOURCES > 3:
        combined = splitmix64(combined ^ fold_source(words_3, row_units_3, token_units_3, num_units_3, PAGE_3, slot, mask, BLOCK))
    return combined


@triton.jit
def report(
    ring_rows, write_index, ring_capacity, slot_flags, num_slots, HAS_FLAGS: tl.constexpr, tag,
    slot, position, token, expected_token, chain_hash, expected_aux, bits,
):  # fmt: skip
    """Append a violation for every lane whose bits are not 0: one atomic for the block, rows kept while the ring has room."""
    bad = bits != 0
    count = tl.sum(bad.to(tl.int32), axis=0)
    if count > 0:
        index = tl.atomic_add(write_index, count) + tl.cumsum(bad.to(tl.int32), axis=0) - 1
        kept = bad & (index >= 0) & (index < ring_capacity)
        row = ring_rows + index.to(tl.int64) * RING_WIDTH
        tl.store(row + 0, tl.zeros_like(slot) + tag, mask=kept)
        tl.store(row + 1, slot, mask=kept)
        tl.store(row + 2, position, mask=kept)
        tl.store(row + 3, token, mask=kept)
        tl.store(row + 4, expected_token, mask=kept)
        tl.store(row + 5, chain_hash, mask=kept)
        tl.store(row + 6, expected_aux, mask=kept)
        tl.store(row + 7, bits.to(tl.int64), mask=kept)
        if HAS_FLAGS:
            # There is no atomic on bytes; an aligned word that holds a valid byte is mapped memory, and or-ing 0 changes no neighbour.
            address = (slot_flags + slot).to(tl.int64)
            word = ((address >> 2) << 2).to(tl.pointer_type(tl.int32))
            shift = ((address & 3) * 8).to(tl.int32)
            tl.atomic_or(word, bits << shift, mask=bad & (slot >= 0) & (slot < num_slots), sem="relaxed")
