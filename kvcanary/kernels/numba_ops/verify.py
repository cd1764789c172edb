"""The verify op, compiled: a fast pass that only counts, and an exact pass over what the fast one found wrong.

The fast pass works in blocks. While one block is hashed, the records of later ones are on their way from memory; its loop has no
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
    fold_two_words,
    folds_two_words,
    hash_after,
    mix3,
    prefetch_rows,
    real_kv_hash,
    real_kv_hashes,
)
from kvcanary.kernels.numba_ops.memory import compiled, inlined, load, prefetch
from kvcanary.kernels.numba_ops.report import report
from kvcanary.layout import FailReason

BLOCK = 32
AHEAD = 64
"""Entries per block, and how many entries ahead of a block its records are asked for: enough loads in flight to cover a trip to
memory, few enough to stay in the first-level cache."""

_PADDING, _NO_TOKEN = layout.PADDING_SLOT, layout.NO_EXPECTED_TOKEN
_BAD_HASH, _BAD_POSITION = int(FailReason.VERIFY_CHAIN_HASH), int(FailReason.VERIFY_POSITION)
_BAD_REAL, _BAD_TOKEN = int(FailReason.VERIFY_REAL_KV_HASH), int(FailReason.VERIFY_TOKEN)
_U64 = np.uint64


@compiled
def count_range(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, first, last):
    """Check entries [first, last). Returns (wrong, padding, unlinked); wrong is -1 when an entry lies outside the buffer.

    wrong is 0 when every entry passes, else 1.
    """
    two_words = folds_two_words(sources, num_slots)
    real = np.zeros(BLOCK, np.uint64)
    folded = np.zeros(BLOCK, np.uint64)
    addresses = np.zeros(BLOCK, np.int64)
    wrong, padding, unlinked = _U64(0), _U64(0), _U64(0)
    _prefetch(buffer, stride, slots, sources, first, min(first + AHEAD, last))
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        _prefetch(buffer, stride, slots, sources, min(begin + AHEAD, last), min(end + AHEAD, last))
        outside, at_padding, without_link = _scan_block(num_slots, slots, prevs, begin, end)
        if outside:
            return np.int64(-1), np.int64(0), np.int64(0)
        padding += at_padding
        unlinked += without_link
        if sources.shape[0] and (at_padding or without_link or not two_words):
            real_kv_hashes(sources, slots, begin, end - begin, addresses, folded, real)
        if at_padding or without_link:
            wrong |= _check_special_block(buffer, stride, slots, positions, prevs, real, begin, end)
        elif two_words:
            wrong |= _check_block(buffer, stride, slots, positions, prevs, real, sources[0], True, begin, end)
        elif stride == layout.SLOT_BYTES:
            wrong |= _check_block(buffer, layout.SLOT_BYTES, slots, positions, prevs, real, real, False, begin, end)
        else:
            wrong |= _check_block(buffer, stride, slots, positions, prevs, real, real, False, begin, end)
        if check_tokens:
            wrong |= _check_tokens(buffer, stride, slots, tokens, begin, end)
    return np.int64(wrong != 0), np.int64(padding), np.int64(unlinked)


@compiled
def _prefetch(buffer, stride, slots, sources, begin, end):
    """Start loading the records and rows of entries [begin, end), unless they look consecutive: then the hardware foresees them."""
    if end - begin > 1 and slots[end - 1] - slots[begin] != end - 1 - begin:
        for index in range(_U64(begin), _U64(end)):
            prefetch(buffer + slots[index] * stride)
        prefetch_rows(sources, slots, begin, end)


@compiled
def _scan_block(num_slots, slots, prevs, begin, end):
    """(entries outside the buffer, entries at slot 0, other entries whose predecessor is slot 0)."""
    outside, padding, unlinked = _U64(0), _U64(0), _U64(0)
    for index in range(_U64(begin), _U64(end)):
        is_padding = _U64(slots[index] == _PADDING)
        slot_outside = _U64(_U64(slots[index]) >= _U64(num_slots))
        prev_outside = _U64(prevs[index] >= num_slots)
        padding += is_padding
        outside += slot_outside | (prev_outside & ~is_padding)
        unlinked += _U64(prevs[index] == _PADDING) & ~is_padding
    return outside, padding, unlinked


@inlined
def _check_block(buffer, stride, slots, positions, prevs, real, source, two_words, begin, end):
    """Bits that differ anywhere in a block without slot 0; differences are collected, not branched on.

    The real hashes stand in real, or with two_words are folded on the way from source.
    """
    wrong = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        record, prev = buffer + slots[index] * stride, prevs[index]
        expected_hash = CHAIN_START
        if prev >= 0:
            predecessor = buffer + prev * stride
            expected_hash = mix3(load(predecessor + PREV_HASH), load(predecessor + TOKEN), load(predecessor + POSITION))
        wrong |= load(record + PREV_HASH) ^ expected_hash
        wrong |= load(record + POSITION) ^ _U64(positions[index])
        real_hash = fold_two_words(source, slots[index]) if two_words else real[index - _U64(begin)]
        wrong |= load(record + REAL_HASH) ^ real_hash
    return wrong


@compiled
def _check_special_block(buffer, stride, slots, positions, prevs, real, begin, end):
    """The same for a block in which slot 0 stands somewhere, as an entry or as a predecessor."""
    wrong = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        slot, prev = slots[index], prevs[index]
        if slot == _PADDING:
            continue
        record = buffer + slot * stride
        if prev != _PADDING:
            wrong |= load(record + PREV_HASH) ^ hash_after(buffer, stride, prev)
        wrong |= load(record + POSITION) ^ _U64(positions[index])
        wrong |= load(record + REAL_HASH) ^ real[index - _U64(begin)]
    return wrong


@compiled
def _check_tokens(buffer, stride, slots, tokens, begin, end):
    wrong = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        if tokens[index] != _NO_TOKEN and slots[index] != _PADDING:
            wrong |= load(buffer + slots[index] * stride + TOKEN) ^ _U64(tokens[index])
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
