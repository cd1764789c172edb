"""Compiled inner loops of the numba backend: plain functions over numpy views, no locks, no Python objects, callable from any thread.

All hash values are uint64, all indices int64; numba turns a mix of the two into float64, hence the casts. Real-KV sources come as one
int64 table with a row per source (SOURCE_FIELDS), because a compiled function cannot take a tuple of varying length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kvcanary import layout
from kvcanary.layout import FailReason

SOURCE_FIELDS = ("address", "row_stride", "page_size", "num_bytes_per_token", "num_words")

_M1 = np.uint64(layout.MIX_MULTIPLIER_1)
_M2 = np.uint64(layout.MIX_MULTIPLIER_2)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (np.uint64(bits) for bits in layout.MIX_SHIFTS)
_CHAIN_START = np.uint64(layout.CHAIN_START)
_TOKEN, _POSITION, _PREV_HASH, _REAL_HASH = range(4)
_PADDING, _NO_TOKEN = layout.PADDING_SLOT, layout.NO_EXPECTED_TOKEN
_BAD_HASH, _BAD_POSITION = int(FailReason.VERIFY_CHAIN_HASH), int(FailReason.VERIFY_POSITION)
_BAD_REAL, _BAD_TOKEN = int(FailReason.VERIFY_REAL_KV_HASH), int(FailReason.VERIFY_TOKEN)
_BAD_WRITE_TOKEN, _BAD_WRITE_POSITION = int(FailReason.WRITE_TOKEN), int(FailReason.WRITE_POSITION)

_compile = njit(cache=True, nogil=True, boundscheck=False)


def _emit_load_u64(typingctx, address):
    """The uint64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.PointerType(ir.IntType(64))))

    return types.uint64(types.int64), codegen


_load_u64: Any = intrinsic(_emit_load_u64)


@_compile
def splitmix64(value):
    value = (value ^ (value >> _SHIFT_1)) * _M1
    value = (value ^ (value >> _SHIFT_2)) * _M2
    return value ^ (value >> _SHIFT_3)


@_compile
def mix3(prev_hash, token, position):
    return splitmix64(splitmix64(splitmix64(prev_hash) ^ token) ^ position)


@_compile
def hash_after(records, slot):
    if slot < 0:
        return _CHAIN_START
    return mix3(records[slot, _PREV_HASH], records[slot, _TOKEN], records[slot, _POSITION])


@_compile
def real_kv_hash(sources, slot):
    combined = np.uint64(0)
    for source in range(sources.shape[0]):
        page_size = sources[source, 2]
        row = slot // page_size
        address = sources[source, 0] + row * sources[source, 1] + (slot - row * page_size) * sources[source, 3]
        folded = np.uint64(0)
        for word in range(sources[source, 4]):
            folded = splitmix64(folded ^ _load_u64(address + 8 * word))
        combined = splitmix64(combined ^ folded)
    return combined


@_compile
def report(ring_rows, write_index, slot_flags, tag, slot, position, token, expected_token, stored_hash, expected_aux, bits):
    index = write_index[0]
    if 0 <= index < ring_rows.shape[0]:
        row = ring_rows[index]
        row[0], row[1], row[2], row[3] = tag, slot, position, token
        row[4], row[5], row[6], row[7] = expected_token, stored_hash, expected_aux, bits
    write_index[0] = index + 1
    if slot_flags.shape[0]:
        slot_flags[slot] |= np.uint8(bits)


@_compile
def plan_entries(
    req_rows, prefix_lens, table, window, lut, expected, valid_lens, offset, starts, first, last, slots, tokens, positions, prevs
):
    """Fill the entries of requests [first, last); starts[r] is the index of request r's first entry. Returns a bad table cell or -1."""
    for request in range(first, last):
        row, out = req_rows[request], starts[request]
        count = starts[request + 1] - out
        window_start = prefix_lens[request] - count
        prev = np.int64(layout.CHAIN_HEAD)
        if count and window_start > 0:
            prev = np.int64(table[row, window_start - 1])
            if lut.shape[0] and prev >= 0:
                if prev >= lut.shape[0]:
                    return prev
                prev = lut[prev]
        for position in range(window_start, window_start + count):
            slot = np.int64(table[row, position])
            if lut.shape[0] and slot >= 0:
                if slot >= lut.shape[0]:
                    return slot
                slot = lut[slot]
            token = np.int64(_NO_TOKEN)
            index = position + offset
            if valid_lens.shape[0] and 0 <= index < valid_lens[request]:
                token = np.int64(expected[row, index])
            slots[out], tokens[out], positions[out], prevs[out] = slot, token, position, prev
            prev = slot
            out += 1
    return np.int64(-1)


@_compile
def stamp_serial(
    records,
    offsets,
    seeds,
    tokens,
    positions,
    slots,
    sources,
    expected_tokens,
    expected_positions,
    armed,
    tag,
    ring_rows,
    write_index,
    slot_flags,
):
    """Stamp every request in order with all asserts; the exact order of the reference. Returns tokens stamped and skipped."""
    stamped = skipped = 0
    for request in range(seeds.shape[0]):
        first, last, seed = offsets[request], offsets[request + 1], seeds[request]
        if last <= first:
            continue
        running = hash_after(records, seed)
        check_next = armed and seed >= 0
        previous = np.int64(records[seed, _POSITION]) if check_next else np.int64(0)
        for index in range(first, last):
            slot = slots[index]
            if slot < 0:
                skipped += 1
                continue
            token, position = tokens[index], positions[index]
            if expected_tokens.shape[0]:
                bits = 0
                if token != expected_tokens[index]:
                    bits |= _BAD_WRITE_TOKEN
                if position != expected_positions[index]:
                    bits |= _BAD_WRITE_POSITION
                if bits:
                    report(
                        ring_rows, write_index, slot_flags, tag, slot, position, token,
                        expected_tokens[index], np.int64(running), expected_positions[index], bits,
                    )  # fmt: skip
            if check_next:
                if position != previous + 1:
                    report(
                        ring_rows, write_index, slot_flags, tag, slot, position, token,
                        token, np.int64(running), previous + 1, _BAD_WRITE_POSITION,
                    )  # fmt: skip
                previous = position
            records[slot, _TOKEN], records[slot, _POSITION] = np.uint64(token), np.uint64(position)
            records[slot, _PREV_HASH], records[slot, _REAL_HASH] = running, real_kv_hash(sources, slot)
            running = mix3(running, np.uint64(token), np.uint64(position))
            stamped += 1
    return stamped, skipped


@_compile
def verify_range(records, first, last, slots, tokens, positions, prevs, check_tokens, sources, tag, ring_rows, write_index, slot_flags):
    """Check entries [first, last) in order. Returns entries at slot 0, and checked entries whose predecessor is slot 0."""
    padding = unlinked = 0
    for index in range(first, last):
        slot, prev = slots[index], prevs[index]
        if slot == _PADDING:
            padding += 1
            continue
        stored_hash, stored_position = records[slot, _PREV_HASH], np.int64(records[slot, _POSITION])
        stored_token = np.int64(records[slot, _TOKEN])
        expected_hash = stored_hash
        if prev == _PADDING:
            unlinked += 1
        else:
            expected_hash = hash_after(records, prev)
        bits = 0
        if stored_hash != expected_hash:
            bits |= _BAD_HASH
        if stored_position != positions[index]:
            bits |= _BAD_POSITION
        if records[slot, _REAL_HASH] != real_kv_hash(sources, slot):
            bits |= _BAD_REAL
        expected_token = tokens[index] if check_tokens else np.int64(_NO_TOKEN)
        if expected_token != _NO_TOKEN and stored_token != expected_token:
            bits |= _BAD_TOKEN
        if bits:
            report(
                ring_rows, write_index, slot_flags, tag, slot, stored_position, stored_token,
                expected_token, np.int64(stored_hash), np.int64(expected_hash), bits,
            )  # fmt: skip
    return padding, unlinked
