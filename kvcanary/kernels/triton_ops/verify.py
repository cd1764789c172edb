"""The verify op, also for sweeps: every entry on its own."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary import layout
from kvcanary.kernels.triton_ops.device import POSITION, PREV_HASH, REAL_KV_HASH, TOKEN, hash_after, real_kv_hash, report
from kvcanary.kernels.types import COVERAGE_FIELDS
from kvcanary.layout import FailReason

PADDING_SLOT = tl.constexpr(layout.PADDING_SLOT)
NO_EXPECTED_TOKEN = tl.constexpr(layout.NO_EXPECTED_TOKEN)
BAD_CHAIN_HASH = tl.constexpr(int(FailReason.VERIFY_CHAIN_HASH))
BAD_POSITION = tl.constexpr(int(FailReason.VERIFY_POSITION))
BAD_REAL_KV_HASH = tl.constexpr(int(FailReason.VERIFY_REAL_KV_HASH))
BAD_TOKEN = tl.constexpr(int(FailReason.VERIFY_TOKEN))
VERIFIED = tl.constexpr(COVERAGE_FIELDS.index("verified"))
SKIPPED_PADDING = tl.constexpr(COVERAGE_FIELDS.index("skipped_padding"))
SKIPPED_DISABLED = tl.constexpr(COVERAGE_FIELDS.index("skipped_disabled"))
UNLINKED = tl.constexpr(COVERAGE_FIELDS.index("unlinked"))


@triton.jit(do_not_specialize=["tag", "capacity"])
def verify_entries(
    records, stride, num_slots, tag, ring_rows, write_index, ring_capacity, kernel_runs, slot_runs, coverage, slot_flags,
    slot_indices, expected_tokens, expected_positions, prev_slot_indices, num_valid, enable, capacity,
    words_0, row_units_0, token_units_0, num_units_0,
    words_1, row_units_1, token_units_1, num_units_1,
    words_2, row_units_2, token_units_2, num_units_2,
    words_3, row_units_3, token_units_3, num_units_3,
    NUM_SOURCES: tl.constexpr, PAGE_0: tl.constexpr, PAGE_1: tl.constexpr, PAGE_2: tl.constexpr, PAGE_3: tl.constexpr,
    CHECK_TOKENS: tl.constexpr, HAS_COVERAGE: tl.constexpr, HAS_FLAGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """records is the canary buffer as int64 with stride words per slot; programs past the last active entry return at once."""
    program = tl.program_id(0)
    active = tl.minimum(tl.maximum(tl.load(num_valid), 0).to(tl.int64), capacity)
    enabled = tl.load(enable) != 0
    if program == 0:
        tl.atomic_add(kernel_runs + tag, tl.full([], 1, tl.int64), sem="relaxed")
        if enabled:
            tl.atomic_add(slot_runs + tag, active, sem="relaxed")
        elif HAS_COVERAGE:
            tl.atomic_add(coverage + SKIPPED_DISABLED, active, sem="relaxed")
    first = program.to(tl.int64) * BLOCK
    if enabled & (first < active):
        entry = first + tl.arange(0, BLOCK)
        mask = entry < active
        slot = tl.load(slot_indices + entry, mask=mask, other=PADDING_SLOT)
        prev_slot = tl.load(prev_slot_indices + entry, mask=mask, other=PADDING_SLOT)
        checked = mask & (slot != PADDING_SLOT)
        linked = prev_slot != PADDING_SLOT
        inside = checked & (slot >= 0) & (slot < num_slots)
        record = records + slot * stride
        token = tl.load(record + TOKEN, mask=inside, other=0)
        position = tl.load(record + POSITION, mask=inside, other=0)
        prev_hash = tl.load(record + PREV_HASH, mask=inside, other=0)
        stored_real = tl.load(record + REAL_KV_HASH, mask=inside, other=0)
        after = hash_after(records, stride, num_slots, prev_slot, checked & linked).to(tl.int64, bitcast=True)
        expected_hash = tl.where(linked, after, prev_hash)
        real_hash = real_kv_hash(
            words_0, row_units_0, token_units_0, num_units_0, words_1, row_units_1, token_units_1, num_units_1,
            words_2, row_units_2, token_units_2, num_units_2, words_3, row_units_3, token_units_3, num_units_3,
            NUM_SOURCES, PAGE_0, PAGE_1, PAGE_2, PAGE_3, slot, inside, BLOCK,
        )  # fmt: skip
        expected_position = tl.load(expected_positions + entry, mask=checked, other=0)
        bits = tl.where(prev_hash != expected_hash, BAD_CHAIN_HASH, 0)
        bits |= tl.where(position != expected_position, BAD_POSITION, 0)
        bits |= tl.where(stored_real != real_hash.to(tl.int64, bitcast=True), BAD_REAL_KV_HASH, 0)
        expected_token = tl.full([BLOCK], NO_EXPECTED_TOKEN, tl.int64)
        if CHECK_TOKENS:
            expected_token = tl.load(expected_tokens + entry, mask=checked, other=NO_EXPECTED_TOKEN)
            bits |= tl.where((expected_token != NO_EXPECTED_TOKEN) & (token != expected_token), BAD_TOKEN, 0)
        bits = tl.where(checked, bits, 0)
        report(
            ring_rows, write_index, ring_capacity, slot_flags, num_slots, HAS_FLAGS, tag,
            slot, position, token, expected_token, prev_hash, expected_hash, bits,
        )  # fmt: skip
        if HAS_COVERAGE:
            num_checked = tl.sum(checked.to(tl.int64), axis=0)
            tl.atomic_add(coverage + VERIFIED, num_checked, sem="relaxed")
            tl.atomic_add(coverage + SKIPPED_PADDING, tl.sum(mask.to(tl.int64), axis=0) - num_checked, sem="relaxed")
            tl.atomic_add(coverage + UNLINKED, tl.sum((checked & (prev_slot == PADDING_SLOT)).to(tl.int64), axis=0), sem="relaxed")
