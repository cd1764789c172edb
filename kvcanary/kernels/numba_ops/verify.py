"""The verify op, compiled: a fast pass that only counts, and an exact pass over what the fast one found wrong.

The fast pass works in blocks. While one block is hashed, the records of later ones are on their way from memory; its loop has no
branches, so that the compiler can gather and hash several entries per instruction. Each kind of real KV has a function of its own,
because what one kind needs would slow the loops of the others.
"""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.compiling import compiled, inlined
from kvcanary.kernels.numba_ops.hashing import (
    CHAIN_START,
    LOW_32_BITS,
    POSITION,
    PREV_HASH,
    REAL_HASH,
    TOKEN,
    fold_scratch,
    fold_two_words,
    hash_after,
    mix3,
    prefetch_rows,
    real_kv_hash,
    real_kv_hashes,
    two_word_source,
)
from kvcanary.kernels.numba_ops.memory import is_scattered, load, prefer_wide_vectors, prefetch
from kvcanary.kernels.numba_ops.report import report
from kvcanary.layout import FailReason

BLOCK = 128
AHEAD = 128
"""Entries per block, and how many entries ahead of a block its records are asked for: enough for a loop of the widest vectors and to
cover a trip to memory, few enough to stay in the first-level cache."""

_PADDING, _NO_TOKEN = layout.PADDING_SLOT, layout.NO_EXPECTED_TOKEN
_BAD_HASH, _BAD_POSITION = int(FailReason.VERIFY_CHAIN_HASH), int(FailReason.VERIFY_POSITION)
_BAD_REAL, _BAD_TOKEN = int(FailReason.VERIFY_REAL_KV_HASH), int(FailReason.VERIFY_TOKEN)
_NO_KV, _TWO_WORDS, _ANY_KV = range(3)
_NO_SOURCE = (np.int64(0),) * 2
_U64 = np.uint64


@compiled
def count_plain(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, first, last):
    """Check entries [first, last) whose real hashes must be 0; sources is empty.

    Returns (wrong, padding, unlinked): wrong is 0 when every entry passes, 1 when one does not, -1 when one lies outside the buffer.
    """
    return _count(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, _NO_KV, first, last)


@compiled
def count_two_words(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, first, last):
    """The same with the real KV that hashing.folds_two_words allows."""
    return _count(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, _TWO_WORDS, first, last)


@compiled
def count_folded(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, first, last):
    """The same with any real KV."""
    return _count(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, _ANY_KV, first, last)


@inlined
def _count(buffer, stride, num_slots, slots, tokens, positions, prevs, check_tokens, sources, real_kv, first, last):
    prefer_wide_vectors()
    real = np.zeros(BLOCK, np.uint64)
    scratch = fold_scratch()
    source = two_word_source(sources) if real_kv == _TWO_WORDS else _NO_SOURCE
    wrong, padding, unlinked = _U64(0), _U64(0), _U64(0)
    prefetch_records(buffer, stride, slots, first, min(first + AHEAD, last))
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        prefetch_records(buffer, stride, slots, min(begin + AHEAD, last), min(end + AHEAD, last))
        if real_kv != _NO_KV:
            prefetch_rows(sources, slots, min(begin + AHEAD, last), min(end + AHEAD, last))
        outside, at_padding, without_link = _scan_block(num_slots, slots, prevs, begin, end)
        if outside:
            return np.int64(-1), np.int64(0), np.int64(0)
        padding += at_padding
        unlinked += without_link
        if at_padding or without_link:
            wrong |= _check_special_block(buffer, stride, slots, positions, prevs, sources, begin, end)
        else:
            if real_kv == _ANY_KV:
                real_kv_hashes(sources, slots, begin, end - begin, scratch, real, 0)
            wrong |= _check_block(buffer, stride, slots, positions, prevs, source, real, real_kv, begin, end)
        if check_tokens:
            wrong |= _check_tokens(buffer, stride, slots, tokens, begin, end)
    return np.int64(wrong != 0), np.int64(padding), np.int64(unlinked)


@compiled
def prefetch_records(buffer, stride, slots, begin, end):
    """Start loading the records of slots[begin:end], unless the slots follow each other."""
    if is_scattered(slots, begin, end):
        for index in range(_U64(begin), _U64(end)):
            prefetch(buffer + slots[index] * stride)


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
def _check_block(buffer, stride, slots, positions, prevs, source, real, real_kv, begin, end):
    """Bits that differ anywhere in a block without slot 0; differences are collected, not branched on.

    The masks tell the compiler that 32-bit multiplications do, which are three times as fast in a vector.
    """
    wrong = _U64(0)
    for index in range(_U64(begin), _U64(end)):
        slot, prev = slots[index], prevs[index]
        record = buffer + (slot & LOW_32_BITS) * (stride & LOW_32_BITS)
        expected_hash = CHAIN_START
        if prev >= 0:
            predecessor = buffer + (prev & LOW_32_BITS) * (stride & LOW_32_BITS)
            expected_hash = mix3(load(predecessor + PREV_HASH), load(predecessor + TOKEN), load(predecessor + POSITION))
        real_hash = _U64(0)
        if real_kv == _TWO_WORDS:
            real_hash = fold_two_words(source, slot)
        if real_kv == _ANY_KV:
            real_hash = real[index - _U64(begin)]
        wrong |= load(record + PREV_HASH) ^ expected_hash
        wrong |= load(record + POSITION) ^ _U64(positions[index])
        wrong |= load(record + REAL_HASH) ^ real_hash
    return wrong


@compiled
def _check_special_block(buffer, stride, slots, positions, prevs, sources, begin, end):
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
        wrong |= load(record + REAL_HASH) ^ real_kv_hash(sources, slot)
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
