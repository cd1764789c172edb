"""The verify op, compiled: a fast pass that only counts, and an exact pass over what the fast one found wrong.

The fast pass works in blocks. While one block is hashed, the records of the next are on their way from memory; its loop has no
branches, so that the compiler can gather and hash several entries per instruction.
"""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.hashing import (
    CHAIN_START,
    POSITION,
    PREV_HASH,
    REAL_HASH,
    TOKEN,
    hash_after,
    mix3,
    real_kv_hash,
    real_kv_hashes,
)
from kvcanary.kernels.numba_ops.memory import compiled, inlined, load, prefetch
from kvcanary.kernels.numba_ops.report import report
from kvcanary.layout import FailReason

BLOCK = 64
"""Entries per block: enough loads in flight to cover a trip to memory, few enough to stay in the first-level cache."""

_PADDING, _NO_TOKEN = layout.PADDING_SLOT, layout.NO_EXPECTED_TOKEN
_BAD_HASH, _BAD_POSITION = int(FailReason.VERIFY_CHAIN_HASH), int(FailReason.VERIFY_POSITION)
_BAD_REAL, _BAD_TOKEN = int(FailReason.VERIFY_REAL_KV_HASH), int(FailReason.VERIFY_TOKEN)
_U64 = np.uint64


@compiled
def count_range(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, first, last):
    """Check entries [first, last). Returns (wrong, padding, unlinked); wrong is -1 when an entry lies outside the buffer.

    wrong is 0 if and only if every entry passes; otherwise it says how much went wrong, not how many rows will be reported.
    """
    real = np.zeros(BLOCK, np.uint64)
    folded = np.zeros(BLOCK, np.uint64)
    addresses = np.zeros(BLOCK, np.int64)
    wrong, padding, unlinked = _U64(0), _U64(0), _U64(0)
    _prefetch_block(buffer, stride, slots, first, min(first + BLOCK, last))
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        _prefetch_block(buffer, stride, slots, end, min(end + BLOCK, last))
        if _outside(num_slots, slots, prevs, begin, end):
            return np.int64(-1), np.int64(0), np.int64(0)
        if sources.shape[0]:
            real_kv_hashes(sources, slots, begin, end - begin, addresses, folded, real)
        if stride == layout.SLOT_BYTES:
            counts = _count_block(buffer, layout.SLOT_BYTES, slots, positions, prevs, real, begin, end)
        else:
            counts = _count_block(buffer, stride, slots, positions, prevs, real, begin, end)
        wrong, padding, unlinked = wrong + counts[0], padding + counts[1], unlinked + counts[2]
        if check_tokens:
            wrong += _wrong_tokens(buffer, stride, slots, tokens, begin, end)
    return np.int64(wrong), np.int64(padding), np.int64(unlinked)


@compiled
def _prefetch_block(buffer, stride, slots, begin, end):
    """Start loading the records of a block, unless its slots look consecutive: then the hardware does it alone."""
    if end - begin > 1 and slots[end - 1] - slots[begin] != end - 1 - begin:
        for index in range(_U64(begin), _U64(end)):
            prefetch(buffer + slots[index] * stride)


@compiled
def _outside(num_slots, slots, prevs, begin, end):
    outside = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        slot_outside = _U64(slots[index]) >= _U64(num_slots)
        prev_outside = (prevs[index] >= num_slots) & (slots[index] != _PADDING)
        outside |= _U64(slot_outside) | _U64(prev_outside)
    return outside != 0


@inlined
def _count_block(buffer, stride, slots, positions, prevs, real, begin, end):
    wrong, padding, unlinked = _U64(0), _U64(0), _U64(0)
    for index in range(_U64(begin), _U64(end)):
        slot, prev = slots[index], prevs[index]
        record = buffer + slot * stride
        stored_hash = load(record + PREV_HASH)
        expected_hash = CHAIN_START
        if prev >= 0 and slot != _PADDING:
            predecessor = buffer + prev * stride
            expected_hash = mix3(load(predecessor + PREV_HASH), load(predecessor + TOKEN), load(predecessor + POSITION))
        if prev == _PADDING:
            expected_hash = stored_hash
        bad_hash = _U64(stored_hash != expected_hash)
        bad_position = _U64(load(record + POSITION) != _U64(positions[index]))
        bad_real = _U64(load(record + REAL_HASH) != real[index - _U64(begin)])
        checked = _U64(slot != _PADDING)
        padding += _U64(slot == _PADDING)
        unlinked += _U64(prev == _PADDING) & checked
        wrong += (bad_hash | bad_position | bad_real) & checked
    return wrong, padding, unlinked


@compiled
def _wrong_tokens(buffer, stride, slots, tokens, begin, end):
    wrong = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        differs = load(buffer + slots[index] * stride + TOKEN) != _U64(tokens[index])
        wrong += _U64(differs) & _U64(tokens[index] != _NO_TOKEN) & _U64(slots[index] != _PADDING)
    return wrong


@compiled
def report_range(
    buffer, stride, slots, tokens, positions, prevs, check_tokens, sources, first, last, tag, ring_rows, write_index, slot_flags
):  # fmt: skip
    """Check entries [first, last) one after the other and report each that fails, in their order."""
    for index in range(first, last):
        slot, prev = slots[index], prevs[index]
        if slot == _PADDING:
            continue
        record = buffer + slot * stride
        stored_hash, stored_token, stored_position = load(record + PREV_HASH), load(record + TOKEN), load(record + POSITION)
        expected_hash = stored_hash if prev == _PADDING else hash_after(buffer, stride, prev)
        expected_token = tokens[index] if check_tokens else np.int64(_NO_TOKEN)
        bits = 0
        if stored_hash != expected_hash:
            bits |= _BAD_HASH
        if stored_position != _U64(positions[index]):
            bits |= _BAD_POSITION
        if load(record + REAL_HASH) != real_kv_hash(sources, slot):
            bits |= _BAD_REAL
        if expected_token != _NO_TOKEN and stored_token != _U64(expected_token):
            bits |= _BAD_TOKEN
        if bits:
            report(
                ring_rows, write_index, slot_flags, tag, slot, np.int64(stored_position), np.int64(stored_token),
                expected_token, np.int64(stored_hash), np.int64(expected_hash), bits,
            )  # fmt: skip
