"""The plan op in two launches: one program scans the batch, then every verify entry is computed on its own."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary import layout

PADDING_ROW = tl.constexpr(layout.PADDING_ROW)
CHAIN_HEAD = tl.constexpr(layout.CHAIN_HEAD)
NO_EXPECTED_TOKEN = tl.constexpr(layout.NO_EXPECTED_TOKEN)


@triton.jit
def translate(lut, lut_len, slot, mask, HAS_LUT: tl.constexpr):
    """Slot in the group's index space; a negative slot passes."""
    if HAS_LUT:
        found = tl.load(lut + slot, mask=mask & (slot >= 0) & (slot < lut_len), other=0)
        slot = tl.where(slot >= 0, found, slot)
    return slot


@triton.jit
def table_cell(table, num_rows, row_len, row, position, mask):
    """int64 cell of req_to_token."""
    inside = mask & (row >= 0) & (row < num_rows) & (position >= 0) & (position < row_len)
    return tl.load(table + row * row_len + position, mask=inside, other=0).to(tl.int64)


@triton.jit(do_not_specialize=["batch_size", "window"])
def plan_offsets(
    rows, prefix_lens, extend_lens, batch_size,
    table, num_rows, row_len, lut, lut_len, window,
    entry_starts, num_valid, enable, verify_capacity,
    offsets, seeds, num_valid_reqs, write_capacity,
    HAS_LUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Exclusive prefix sums of entries and of written tokens, and each request's seed. One program.

    entry_starts int64 [batch_size + 1] is scratch for plan_entries. window 0 means a whole prefix.
    """
    lane = tl.arange(0, BLOCK)
    entries, written = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    for base in range(0, batch_size, BLOCK):
        request = base + lane
        mask = request < batch_size
        row = tl.load(rows + request, mask=mask, other=PADDING_ROW)
        prefix = tl.load(prefix_lens + request, mask=mask, other=0)
        extend = tl.load(extend_lens + request, mask=mask, other=0)
        active = row != PADDING_ROW
        length = tl.where(active, tl.maximum(prefix, 0), 0)
        length = tl.where((window > 0) & (length > window), window, length)
        extend = tl.where(active, tl.maximum(extend, 0), 0)
        tl.store(entry_starts + request, entries + tl.cumsum(length, axis=0) - length, mask=mask)
        tl.store(offsets + request, written + tl.cumsum(extend, axis=0) - extend, mask=mask)
        has_seed = mask & (extend > 0) & (prefix > 0)
        cell = table_cell(table, num_rows, row_len, row, prefix - 1, has_seed)
        seed = translate(lut, lut_len, cell, has_seed, HAS_LUT)
        tl.store(seeds + request, tl.where(has_seed, seed, CHAIN_HEAD), mask=mask)
        entries += tl.sum(length, axis=0)
        written += tl.sum(extend, axis=0)
    tl.store(entry_starts + batch_size, entries)
    tl.store(offsets + batch_size, written)
    for base in range(batch_size + 1, write_capacity + 1, BLOCK):
        tl.store(offsets + base + lane, tl.zeros([BLOCK], tl.int64), mask=base + lane <= write_capacity)
    tl.store(num_valid_reqs, batch_size)
    tl.store(num_valid, tl.minimum(entries, verify_capacity).to(tl.int32))
    tl.store(enable, (entries <= verify_capacity).to(tl.int32))


@triton.jit(do_not_specialize=["batch_size", "search_steps", "window", "token_offset"])
def plan_entries(
    rows, prefix_lens, batch_size, search_steps,
    table, num_rows, row_len, lut, lut_len, window,
    oracle, oracle_len, valid_lens, token_offset,
    entry_starts, verify_capacity,
    slot_indices, expected_tokens, expected_positions, prev_slot_indices,
    HAS_LUT: tl.constexpr, HAS_ORACLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every entry finds its request by binary search in entry_starts; search_steps halvings reach one request of batch_size."""
    total = tl.load(entry_starts + batch_size)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if (total <= verify_capacity) & (first < total):
        entry = first + tl.arange(0, BLOCK)
        mask = entry < total
        low = tl.zeros([BLOCK], tl.int64)
        high = tl.zeros([BLOCK], tl.int64) + batch_size
        for _ in range(search_steps):
            middle = (low + high) // 2
            right = tl.load(entry_starts + middle, mask=mask, other=0) <= entry
            low, high = tl.where(right, middle, low), tl.where(right, high, middle)
        row = tl.load(rows + low, mask=mask, other=PADDING_ROW)
        prefix = tl.load(prefix_lens + low, mask=mask, other=0)
        start = tl.load(entry_starts + low, mask=mask, other=0)
        window_start = tl.where(window > 0, tl.maximum(prefix - window, 0), 0)
        position = entry - start + window_start
        slot = translate(lut, lut_len, table_cell(table, num_rows, row_len, row, position, mask), mask, HAS_LUT)
        has_prev = mask & (position > 0)
        prev_slot = translate(lut, lut_len, table_cell(table, num_rows, row_len, row, position - 1, has_prev), has_prev, HAS_LUT)
        token = tl.full([BLOCK], NO_EXPECTED_TOKEN, tl.int64)
        if HAS_ORACLE:
            index = position + token_offset
            valid_len = tl.load(valid_lens + low, mask=mask, other=0)
            known = mask & (index >= 0) & (index < valid_len) & (index < oracle_len) & (row >= 0) & (row < num_rows)
            token = tl.load(oracle + row * oracle_len + index, mask=known, other=NO_EXPECTED_TOKEN).to(tl.int64)
        tl.store(slot_indices + entry, slot, mask=mask)
        tl.store(expected_tokens + entry, token, mask=mask)
        tl.store(expected_positions + entry, position, mask=mask)
        tl.store(prev_slot_indices + entry, tl.where(has_prev, prev_slot, CHAIN_HEAD), mask=mask)
