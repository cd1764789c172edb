"""The stamp op, compiled: an exact serial walk, and a fast one for launches in which order cannot matter.

Only the chain hash is serial, and only within a request. The fast one advances CHAINS requests side by side, so that the latency of one
hash is filled with the others. The real-KV hashes come before it, in a pass that is parallel over tokens.
"""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.compiling import compiled
from kvcanary.kernels.numba_ops.hashing import (
    POSITION,
    PREV_HASH,
    REAL_HASH,
    TOKEN,
    fold_scratch,
    hash_after,
    mix3,
    prefetch_rows,
    real_kv_hash,
    real_kv_hashes,
)
from kvcanary.kernels.numba_ops.memory import load, store
from kvcanary.kernels.numba_ops.report import report
from kvcanary.layout import FailReason

CHAINS = 4
"""Requests side by side: their serial hashes then fill each other's latency, and all of their state still fits the registers."""

BLOCK = 128
"""Tokens whose real-KV hashes are computed together."""

_BITS_PER_TOKEN = 512
"""A pool that is wider than so many slots per token takes longer to clear as a bit map than the tokens take to sort."""

_BAD_TOKEN, _BAD_POSITION = int(FailReason.WRITE_TOKEN), int(FailReason.WRITE_POSITION)
_PADDING = layout.PADDING_SLOT
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
    if _ascend(slots[begin:end]):
        return _seed_among(slots[begin:end], offsets, seeds)
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
        written = np.sort(written)
        return not _ascend(written) or _seed_among(written, offsets, seeds)
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
def _ascend(slots):
    """Whether every slot is larger than the one before it, as a fresh pool hands them out."""
    falls = _U64(0)
    for index in range(_U64(1), _U64(slots.shape[0])):
        falls += _U64(slots[index] <= slots[index - _U64(1)])
    return falls == 0


@compiled
def _seed_among(written, offsets, seeds):
    """Whether the seed of a request that writes is among ascending slots."""
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
def fold_tokens(sources, slots, base, first, last, real):
    """real_kv_hash of the tokens [first, last) into real, uint64, whose first element belongs to token `base`."""
    scratch = fold_scratch()
    prefetch_rows(sources, slots, first, min(first + BLOCK, last))
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        prefetch_rows(sources, slots, end, min(end + BLOCK, last))
        real_kv_hashes(sources, slots, begin, end - begin, scratch, real, begin - base)


@compiled
def stamp_chains(buffer, stride, offsets, seeds, tokens, positions, slots, real, per_token, first, last):
    """Stamp requests [first, last), CHAINS of them at a time.

    real: what fold_tokens found for the tokens from offsets[0], with per_token 1; or a single 0 for all of them, with per_token 0.
    """
    current, end, hashes = np.zeros(CHAINS, np.int64), np.zeros(CHAINS, np.int64), np.zeros(CHAINS, np.uint64)
    reals = np.int64(real.ctypes.data) - 8 * per_token * offsets[0], 8 * np.int64(per_token)
    live, waiting = 0, first
    while True:
        live, waiting = _refill(buffer, stride, offsets, seeds, current, end, hashes, live, waiting, last)
        if live == 0:
            return
        steps = end[0] - current[0]
        for chain in range(1, live):
            steps = min(steps, end[chain] - current[chain])
        if live == 1:
            _one_chain(buffer, stride, tokens, positions, slots, current, hashes, reals, steps)
        elif live == 2:
            _two_chains(buffer, stride, tokens, positions, slots, current, hashes, reals, steps)
        else:
            _four_chains(buffer, stride, tokens, positions, slots, current, hashes, reals, steps, live - 1)
        for chain in range(live):
            current[chain] += steps


@compiled
def _refill(buffer, stride, offsets, seeds, current, end, hashes, live, waiting, last):
    """Drop chains whose request is done and start waiting requests in their place."""
    chain = 0
    while chain < live:
        if current[chain] < end[chain]:
            chain += 1
            continue
        live -= 1
        current[chain], end[chain], hashes[chain] = current[live], end[live], hashes[live]
    while live < CHAINS and waiting < last:
        if offsets[waiting + 1] > offsets[waiting]:
            current[live], end[live] = offsets[waiting], offsets[waiting + 1]
            hashes[live] = hash_after(buffer, stride, seeds[waiting])
            live += 1
        waiting += 1
    return live, waiting


@compiled
def _put(buffer, stride, tokens, positions, slots, reals, index, running):
    """Store the record of one token and return the hash that the next one stores. A store waits for nothing, so none is prefetched."""
    token, position = _U64(tokens[index]), _U64(positions[index])
    record = buffer + slots[index] * stride
    store(record + TOKEN, token)
    store(record + POSITION, position)
    store(record + PREV_HASH, running)
    store(record + REAL_HASH, load(reals[0] + np.int64(index) * reals[1]))
    return mix3(running, token, position)


@compiled
def _one_chain(buffer, stride, tokens, positions, slots, current, hashes, reals, steps):
    begin, running = _U64(current[0]), hashes[0]
    for step in range(_U64(steps)):
        running = _put(buffer, stride, tokens, positions, slots, reals, begin + step, running)
    hashes[0] = running


@compiled
def _two_chains(buffer, stride, tokens, positions, slots, current, hashes, reals, steps):
    begin_0, begin_1 = _U64(current[0]), _U64(current[1])
    hash_0, hash_1 = hashes[0], hashes[1]
    for step in range(_U64(steps)):
        hash_0 = _put(buffer, stride, tokens, positions, slots, reals, begin_0 + step, hash_0)
        hash_1 = _put(buffer, stride, tokens, positions, slots, reals, begin_1 + step, hash_1)
    hashes[0], hashes[1] = hash_0, hash_1


@compiled
def _four_chains(buffer, stride, tokens, positions, slots, current, hashes, reals, steps, fourth):
    """Chains 0, 1, 2 and `fourth`, which may be 2 again: the same bytes at the same places cost less than a loop for three."""
    begin_0, begin_1, begin_2, begin_3 = _U64(current[0]), _U64(current[1]), _U64(current[2]), _U64(current[fourth])
    hash_0, hash_1, hash_2, hash_3 = hashes[0], hashes[1], hashes[2], hashes[fourth]
    for step in range(_U64(steps)):
        hash_0 = _put(buffer, stride, tokens, positions, slots, reals, begin_0 + step, hash_0)
        hash_1 = _put(buffer, stride, tokens, positions, slots, reals, begin_1 + step, hash_1)
        hash_2 = _put(buffer, stride, tokens, positions, slots, reals, begin_2 + step, hash_2)
        hash_3 = _put(buffer, stride, tokens, positions, slots, reals, begin_3 + step, hash_3)
    hashes[0], hashes[1], hashes[2], hashes[fourth] = hash_0, hash_1, hash_2, hash_3
