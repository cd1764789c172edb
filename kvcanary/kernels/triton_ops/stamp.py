"""The stamp op in two launches that touch different words of a record.

fold_tokens stores the real-KV hash of every token; it depends on the slot alone, so tokens go in parallel and in any order.
walk_chains has one lane per request, the only serial part: it hashes, stores the other three words in the order of the tokens, so that
the last token of a slot wins, and checks the inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary.kernels.triton_ops.device import POSITION, PREV_HASH, REAL_KV_HASH, TOKEN, hash_after, mix3, real_kv_hash, report
from kvcanary.kernels.types import COVERAGE_FIELDS
from kvcanary.layout import FailReason

BAD_TOKEN = tl.constexpr(int(FailReason.WRITE_TOKEN))
BAD_POSITION = tl.constexpr(int(FailReason.WRITE_POSITION))
STAMPED = tl.constexpr(COVERAGE_FIELDS.index("stamped"))
SKIPPED_NEGATIVE = tl.constexpr(COVERAGE_FIELDS.index("skipped_negative"))


@triton.jit
def active_requests(num_valid_reqs, request_capacity):
    """num_valid_reqs limited to the capacity of the plan, int64."""
    return tl.minimum(tl.maximum(tl.load(num_valid_reqs), 0).to(tl.int64), request_capacity)


@triton.jit(do_not_specialize=["num_tokens"])
def fold_tokens(
    records, stride, num_slots, offsets, num_valid_reqs, request_capacity, slots, num_tokens,
    words_0, row_units_0, token_units_0, num_units_0,
    words_1, row_units_1, token_units_1, num_units_1,
    words_2, row_units_2, token_units_2, num_units_2,
    words_3, row_units_3, token_units_3, num_units_3,
    NUM_SOURCES: tl.constexpr, PAGE_0: tl.constexpr, PAGE_1: tl.constexpr, PAGE_2: tl.constexpr, PAGE_3: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Store real_kv_hash for the tokens of all active requests; padding tokens past the last request are left alone."""
    begin = tl.load(offsets)
    end = tl.minimum(tl.load(offsets + active_requests(num_valid_reqs, request_capacity)), num_tokens)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (index >= begin) & (index < end)
    slot = tl.load(slots + index, mask=mask, other=-1)
    kept = (slot >= 0) & (slot < num_slots)
    real_hash = real_kv_hash(
        words_0, row_units_0, token_units_0, num_units_0, words_1, row_units_1, token_units_1, num_units_1,
        words_2, row_units_2, token_units_2, num_units_2, words_3, row_units_3, token_units_3, num_units_3,
        NUM_SOURCES, PAGE_0, PAGE_1, PAGE_2, PAGE_3, slot, kept, BLOCK,
    )  # fmt: skip
    tl.store(records + slot * stride + REAL_KV_HASH, real_hash.to(tl.int64, bitcast=True), mask=kept)


@triton.jit(do_not_specialize=["tag", "num_tokens"])
def walk_chains(
    records, stride, num_slots, tag, ring_rows, write_index, ring_capacity, kernel_runs, slot_runs, coverage, slot_flags,
    offsets, seeds, num_valid_reqs, request_capacity,
    tokens, positions, slots, num_tokens, expected_tokens, expected_positions, position_assert,
    STORE_NO_HASH: tl.constexpr, HAS_EXPECTED: tl.constexpr, HAS_POSITION_ASSERT: tl.constexpr,
    HAS_COVERAGE: tl.constexpr, HAS_FLAGS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """LANES requests per program. STORE_NO_HASH stores real_kv_hash 0, for launches that have no fold_tokens."""
    if tl.program_id(0) == 0:
        tl.atomic_add(kernel_runs + tag, tl.full([], 1, tl.int64), sem="relaxed")
    request = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    active = request < active_requests(num_valid_reqs, request_capacity)
    index = tl.maximum(tl.load(offsets + request, mask=active, other=0), 0)
    end = tl.minimum(tl.load(offsets + request + 1, mask=active, other=0), num_tokens)
    active = active & (index < end)
    seed = tl.load(seeds + request, mask=active, other=-1)
    running = hash_after(records, stride, num_slots, seed, active)
    stamped, skipped = tl.zeros([LANES], tl.int64), tl.zeros([LANES], tl.int64)
    follows = active & (seed >= 0) & (seed < num_slots)
    previous = tl.zeros([LANES], tl.int64)
    if HAS_POSITION_ASSERT:
        follows = follows & (tl.zeros([LANES], tl.int32) + tl.load(position_assert) != 0)
        previous = tl.load(records + seed * stride + POSITION, mask=follows, other=0)
    steps = tl.max(tl.where(active, end - index, 0), axis=0)
    slot = tl.load(slots + index, mask=active, other=-1)
    token = tl.load(tokens + index, mask=active, other=0)
    position = tl.load(positions + index, mask=active, other=0)
    for _ in range(steps):
        # The next token is on its way while this one is hashed.
        more = index + 1 < end
        next_slot = tl.load(slots + index + 1, mask=more, other=-1)
        next_token = tl.load(tokens + index + 1, mask=more, other=0)
        next_position = tl.load(positions + index + 1, mask=more, other=0)
        written = slot >= 0
        inside = written & (slot < num_slots)
        chain_hash = running.to(tl.int64, bitcast=True)
        if HAS_EXPECTED:
            expected_token = tl.load(expected_tokens + index, mask=written, other=0)
            expected_position = tl.load(expected_positions + index, mask=written, other=0)
            bits = tl.where(token != expected_token, BAD_TOKEN, 0) | tl.where(position != expected_position, BAD_POSITION, 0)
            report(
                ring_rows, write_index, ring_capacity, slot_flags, num_slots, HAS_FLAGS, tag,
                slot, position, token, expected_token, chain_hash, expected_position, tl.where(written, bits, 0),
            )  # fmt: skip
        if HAS_POSITION_ASSERT:
            bits = tl.where(written & follows & (position != previous + 1), BAD_POSITION, 0)
            report(
                ring_rows, write_index, ring_capacity, slot_flags, num_slots, HAS_FLAGS, tag,
                slot, position, token, token, chain_hash, previous + 1, bits,
            )  # fmt: skip
            previous = tl.where(written, position, previous)
        record = records + slot * stride
        tl.store(record + TOKEN, token, mask=inside)
        tl.store(record + POSITION, position, mask=inside)
        tl.store(record + PREV_HASH, chain_hash, mask=inside)
        if STORE_NO_HASH:
            tl.store(record + REAL_KV_HASH, tl.zeros([LANES], tl.int64), mask=inside)
        running = tl.where(written, mix3(running, token, position), running)
        stamped += written.to(tl.int64)
        skipped += ((index < end) & (slot < 0)).to(tl.int64)
        index += 1
        slot, token, position = next_slot, next_token, next_position
    num_stamped = tl.sum(stamped, axis=0)
    if num_stamped > 0:
        tl.atomic_add(slot_runs + tag, num_stamped, sem="relaxed")
    if HAS_COVERAGE:
        tl.atomic_add(coverage + STAMPED, num_stamped, sem="relaxed")
        tl.atomic_add(coverage + SKIPPED_NEGATIVE, tl.sum(skipped, axis=0), sem="relaxed")
