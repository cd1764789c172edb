"""The stamp op, compiled: an exact serial walk, and a fast one for launches in which order cannot matter.

Only the chain hash is serial, and only within a request. The fast walk advances LANES requests side by side, so that the latency of
one hash is filled with the others. The real-KV hashes are folded beside it, or, when there are too few requests to keep every thread
busy, in a second pass that is parallel over tokens.
"""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.hashing import (
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
    two_word_source,
)
from kvcanary.kernels.numba_ops.memory import compiled, load, prefetch_for_write, store
from kvcanary.kernels.numba_ops.report import report
from kvcanary.layout import FailReason

LANES = 8
STEPS = 16
"""Requests side by side, and tokens of each that are hashed before they are stored."""

BLOCK = 64
"""Tokens whose real-KV hashes are computed together."""

_BITS_PER_TOKEN = 512
"""A pool that is wider than so many slots per token takes longer to clear as a bit map than the tokens take to sort."""

_BAD_TOKEN, _BAD_POSITION = int(FailReason.WRITE_TOKEN), int(FailReason.WRITE_POSITION)
_PADDING = layout.PADDING_SLOT
_NO_SOURCE = (np.int64(0),) * 2
_U64 = np.uint64


@compiled
def offsets_fit(offsets, seeds, num_tokens, num_slots):
    """Whether the requests' token ranges are in order and inside the inputs, and the seeds of those that write inside the buffer."""
    if seeds.shape[0] and offsets[0] < 0:
        return False
    for request in range(seeds.shape[0]):
        if offsets[request + 1] < offsets[request] or offsets[request + 1] > num_tokens:
            return False
        if offsets[request + 1] > offsets[request] and seeds[request] >= num_slots:
            return False
    return True


@compiled
def inspect_tokens(slots, num_slots, tokens, positions, expected_tokens, expected_positions, first, last):
    """Look at tokens [first, last) before anything is written: (outside the buffer, at slot 0, negative, unlike the expected input)."""
    outside, at_padding, negative, unexpected = _U64(0), _U64(0), _U64(0), _U64(0)
    for index in range(_U64(first), _U64(last)):
        outside += _U64(slots[index] >= num_slots)
        at_padding += _U64(slots[index] == _PADDING)
        negative += _U64(slots[index] < 0)
    if expected_tokens.shape[0]:
        for index in range(_U64(first), _U64(last)):
            differs = (tokens[index] != expected_tokens[index]) | (positions[index] != expected_positions[index])
            unexpected += _U64(differs) & _U64(slots[index] >= 0)
    return np.int64(outside), np.int64(at_padding), np.int64(negative), np.int64(unexpected)


@compiled
def count_jumps(buffer, stride, offsets, seeds, positions, slots, first, last):
    """Tokens of requests [first, last) with a seed whose position does not follow the one before."""
    jumps = 0
    for request in range(first, last):
        if seeds[request] < 0 or offsets[request + 1] == offsets[request]:
            continue
        previous = np.int64(load(buffer + seeds[request] * stride + POSITION))
        for index in range(_U64(offsets[request]), _U64(offsets[request + 1])):
            if slots[index] >= 0:
                jumps += positions[index] != previous + 1
                previous = positions[index]
    return jumps


@compiled
def slots_meet(slots, offsets, seeds):
    """Whether a slot is written twice in this launch, or is written and the seed of a request that writes: then order shows."""
    begin, end = offsets[0], offsets[-1]
    written = np.empty(end - begin, np.int64)
    count = 0
    for index in range(begin, end):
        if slots[index] >= 0:
            written[count] = slots[index]
            count += 1
    if count == 0:
        return False
    written = written[:count]
    low, high = written[0], written[0]
    for slot in written:
        low, high = min(low, slot), max(high, slot)
    if high - low > _BITS_PER_TOKEN * count:
        return _sorted_meet(np.sort(written), offsets, seeds)
    seen = np.zeros(((high - low) >> 6) + 1, np.uint64)
    for slot in written:
        word, bit = (slot - low) >> 6, _U64(1) << _U64((slot - low) & 63)
        if seen[word] & bit:
            return True
        seen[word] |= bit
    for request in range(seeds.shape[0]):
        seed = seeds[request]
        if seed < low or seed > high or offsets[request + 1] == offsets[request]:
            continue
        if seen[(seed - low) >> 6] & (_U64(1) << _U64((seed - low) & 63)):
            return True
    return False


@compiled
def _sorted_meet(written, offsets, seeds):
    for index in range(1, written.shape[0]):
        if written[index] == written[index - 1]:
            return True
    for request in range(seeds.shape[0]):
        if seeds[request] >= 0 and offsets[request + 1] > offsets[request]:
            place = np.searchsorted(written, seeds[request])
            if place < written.shape[0] and written[place] == seeds[request]:
                return True
    return False


@compiled
def stamp_in_order(
    buffer, stride, offsets, seeds, tokens, positions, slots, expected_tokens, expected_positions, check_next, sources,
    tag, ring_rows, write_index, slot_flags,
):  # fmt: skip
    """Stamp every request in order with all asserts, in exactly the order of the reference."""
    for request in range(seeds.shape[0]):
        seed = seeds[request]
        if offsets[request + 1] == offsets[request]:
            continue
        running = hash_after(buffer, stride, seed)
        follows_seed = check_next and seed >= 0
        previous = np.int64(load(buffer + seed * stride + POSITION)) if follows_seed else np.int64(0)
        for index in range(_U64(offsets[request]), _U64(offsets[request + 1])):
            slot, token, position = slots[index], tokens[index], positions[index]
            if slot < 0:
                continue
            bits = 0
            if expected_tokens.shape[0]:
                if token != expected_tokens[index]:
                    bits |= _BAD_TOKEN
                if position != expected_positions[index]:
                    bits |= _BAD_POSITION
            if bits:
                report(
                    ring_rows, write_index, slot_flags, tag, slot, position, token,
                    expected_tokens[index], np.int64(running), expected_positions[index], bits,
                )  # fmt: skip
            if follows_seed and position != previous + 1:
                report(
                    ring_rows, write_index, slot_flags, tag, slot, position, token,
                    token, np.int64(running), previous + 1, _BAD_POSITION,
                )  # fmt: skip
            previous = position
            record = buffer + slot * stride
            store(record + TOKEN, _U64(token))
            store(record + POSITION, _U64(position))
            store(record + PREV_HASH, running)
            store(record + REAL_HASH, real_kv_hash(sources, slot))
            running = mix3(running, _U64(token), _U64(position))


@compiled
def stamp_lanes(buffer, stride, offsets, seeds, tokens, positions, slots, sources, first, last):
    """Stamp requests [first, last), LANES of them at a time; sources may be empty, for real hashes that are 0 or come later."""
    two_words = folds_two_words(sources)
    source = two_word_source(sources) if two_words else _NO_SOURCE
    real, folded = np.zeros(STEPS, np.uint64), np.zeros(STEPS, np.uint64)
    addresses = np.zeros(STEPS, np.int64)
    current, end = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    # One flat array with constant places, so that the compiler can tell the parts apart: tokens, positions, then the hashes of
    # each step and of the step after the last, each with one value per lane.
    scratch = np.zeros((3 * STEPS + 1) * LANES, np.uint64)
    live, waiting = 0, first
    while True:
        live, waiting = _refill(buffer, stride, offsets, seeds, current, end, scratch, live, waiting, last)
        if live == 0:
            return
        steps = np.int64(STEPS)
        for lane in range(live):
            steps = min(steps, end[lane] - current[lane])
        for lane in range(_U64(live)):
            _load_lane(buffer, stride, tokens, positions, slots, _U64(current[lane]), lane, _U64(steps), scratch)
            prefetch_rows(sources, slots, current[lane], current[lane] + steps)
        _advance(scratch, _U64(steps))
        for lane in range(_U64(live)):
            if two_words:
                for step in range(_U64(steps)):
                    real[step] = fold_two_words(source, slots[_U64(current[lane]) + step])
            elif sources.shape[0]:
                real_kv_hashes(sources, slots, current[lane], steps, addresses, folded, real)
            _store_lane(buffer, stride, tokens, positions, slots, _U64(current[lane]), lane, _U64(steps), scratch, real)
            current[lane] += steps


_POSITIONS_AT, _HASHES_AT = _U64(STEPS * LANES), _U64(2 * STEPS * LANES)
_WIDTH = _U64(LANES)


@compiled
def _refill(buffer, stride, offsets, seeds, current, end, scratch, live, waiting, last):
    """Drop lanes whose request is done and start waiting requests in their place."""
    lane = 0
    while lane < live:
        if current[lane] < end[lane]:
            lane += 1
            continue
        live -= 1
        current[lane], end[lane] = current[live], end[live]
        scratch[_HASHES_AT + _U64(lane)] = scratch[_HASHES_AT + _U64(live)]
    while live < LANES and waiting < last:
        if offsets[waiting + 1] > offsets[waiting]:
            current[live], end[live] = offsets[waiting], offsets[waiting + 1]
            scratch[_HASHES_AT + _U64(live)] = hash_after(buffer, stride, seeds[waiting])
            live += 1
        waiting += 1
    return live, waiting


@compiled
def _load_lane(buffer, stride, tokens, positions, slots, begin, lane, steps, scratch):
    for step in range(steps):
        scratch[step * _WIDTH + lane] = _U64(tokens[begin + step])
        scratch[_POSITIONS_AT + step * _WIDTH + lane] = _U64(positions[begin + step])
        prefetch_for_write(buffer + slots[begin + step] * stride)


@compiled
def _advance(scratch, steps):
    """One chain step of all lanes after the other; the hash after step s stands in row s + 1."""
    for step in range(steps):
        row = step * _WIDTH
        for lane in range(_WIDTH):
            at = row + lane
            scratch[_HASHES_AT + _WIDTH + at] = mix3(scratch[_HASHES_AT + at], scratch[at], scratch[_POSITIONS_AT + at])


@compiled
def _store_lane(buffer, stride, tokens, positions, slots, begin, lane, steps, scratch, real):
    for step in range(steps):
        record = buffer + slots[begin + step] * stride
        store(record + TOKEN, _U64(tokens[begin + step]))
        store(record + POSITION, _U64(positions[begin + step]))
        store(record + PREV_HASH, scratch[_HASHES_AT + step * _WIDTH + lane])
        store(record + REAL_HASH, real[step])
    scratch[_HASHES_AT + lane] = scratch[_HASHES_AT + steps * _WIDTH + lane]


@compiled
def stamp_real_hashes(buffer, stride, slots, sources, first, last):
    """Store the real-KV hashes of tokens [first, last); they depend on the slot alone, so any order gives the same bytes."""
    real, folded = np.zeros(BLOCK, np.uint64), np.zeros(BLOCK, np.uint64)
    addresses = np.zeros(BLOCK, np.int64)
    for begin in range(first, last, BLOCK):
        count = min(BLOCK, last - begin)
        real_kv_hashes(sources, slots, begin, count, addresses, folded, real)
        for index in range(_U64(count)):
            store(buffer + slots[_U64(begin) + index] * stride + REAL_HASH, real[index])
