"""plan, stamp and verify in vectorised torch: any device that torch has, no compiler needed.

int64 arithmetic wraps like uint64, so the hash is exact. Chains are walked one step at a time across all requests; everything else is
one expression over all entries. Each op reads a few scalars back to the host, so it cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from kvcanary import layout
from kvcanary.kernels import contract
from kvcanary.kernels.types import COVERAGE_FIELDS, Availability, Coverage, Launch, PlanInputs, StampInputs, VerifyPlan, WritePlan
from kvcanary.layout import FailReason, RealKvHashMode

_MULTIPLIER_1 = layout.to_signed(layout.MIX_MULTIPLIER_1)
_MULTIPLIER_2 = layout.to_signed(layout.MIX_MULTIPLIER_2)
_CHAIN_START = layout.to_signed(layout.CHAIN_START)


class TorchBackend:
    """Vectorised torch; see Backend for the contract of each method."""

    name = "torch"

    def available(self) -> Availability:
        """Always: it needs nothing but torch."""
        return Availability(ok=True, reason="vectorised torch, runs on every device that torch has")

    def prepare(self) -> None:
        """Nothing to compile."""

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans; every entry is computed from its owner request and its place in it."""
        contract.check_plan(inputs, verify_plan, write_plan)
        contract.check_plan_values(inputs)
        active = inputs.req_pool_indices != layout.PADDING_ROW
        prefix = inputs.prefix_lens.clamp(min=0)
        window_start = (prefix - inputs.swa_window).clamp(min=0) if inputs.swa_window > 0 else torch.zeros_like(prefix)
        lengths = (prefix - window_start).where(active, 0)
        total, capacity = int(lengths.sum()), verify_plan.slot_indices.shape[0]
        verify_plan.num_valid.fill_(min(total, capacity))
        verify_plan.enable.fill_(int(total <= capacity))
        if 0 < total <= capacity:
            _fill_entries(inputs, verify_plan, lengths, window_start, total)
        _fill_write_plan(inputs, write_plan, active)

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Walk the chains of all requests in parallel, then store; equal to the serial reference even when slots repeat."""
        contract.check_stamp(launch, plan, inputs)
        contract.check_stamp_values(launch, plan, inputs)
        launch.counters.kernel_runs[launch.tag] += 1
        num_requests = contract.active_count(plan.num_valid_reqs, plan.seed_slot_indices)
        if num_requests == 0:
            return
        begin, end = int(plan.offsets[0]), int(plan.offsets[num_requests])
        lengths = plan.offsets[1 : num_requests + 1] - plan.offsets[:num_requests]
        owner = torch.repeat_interleave(torch.arange(num_requests, device=lengths.device), lengths)
        kept = (inputs.slots[begin:end] >= 0).nonzero().squeeze(1)
        owner, kept = owner[kept], kept + begin
        violations = []
        for first, last in _independent_ranges(launch, plan, inputs.slots[kept], owner, num_requests):
            chosen = (owner >= first) & (owner < last)
            violations.append(_stamp_range(launch, plan, inputs, kept[chosen], owner[chosen]))
        _append(launch, torch.cat(violations))
        launch.counters.slot_runs[launch.tag] += kept.shape[0]
        _cover(launch.coverage, stamped=kept.shape[0], skipped_negative=end - begin - kept.shape[0])

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check all active entries at once; reads the buffer and never writes it."""
        contract.check_verify(launch, plan)
        contract.check_verify_values(launch, plan)
        launch.counters.kernel_runs[launch.tag] += 1
        active = contract.active_count(plan.num_valid, plan.slot_indices)
        if int(plan.enable) == 0:
            _cover(launch.coverage, skipped_disabled=active)
            return
        launch.counters.slot_runs[launch.tag] += active
        real = (plan.slot_indices[:active] != layout.PADDING_SLOT).nonzero().squeeze(1)
        rows, unlinked = _verify_entries(launch, plan, real, check_tokens=check_tokens)
        _append(launch, rows)
        checked = real.shape[0]
        _cover(launch.coverage, verified=checked, skipped_padding=active - checked, unlinked=unlinked)


def splitmix64(value: torch.Tensor) -> torch.Tensor:
    """Mixer S on int64 bit patterns, elementwise; multiplication wraps, shifts are made logical by a mask."""
    value = (value ^ _logical_shift(value, layout.MIX_SHIFTS[0])) * _MULTIPLIER_1
    value = (value ^ _logical_shift(value, layout.MIX_SHIFTS[1])) * _MULTIPLIER_2
    return value ^ _logical_shift(value, layout.MIX_SHIFTS[2])


def mix3(prev_hash: torch.Tensor, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Chain step on int64 bit patterns, elementwise."""
    return splitmix64(splitmix64(splitmix64(prev_hash) ^ token) ^ position)


def _logical_shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _fill_entries(inputs: PlanInputs, plan: VerifyPlan, lengths: torch.Tensor, window_start: torch.Tensor, total: int) -> None:
    device = lengths.device
    owner = torch.repeat_interleave(torch.arange(lengths.shape[0], device=device), lengths)
    starts = lengths.cumsum(0) - lengths
    position = torch.arange(total, device=device) - starts[owner] + window_start[owner]
    row = inputs.req_pool_indices[owner]
    prev_slot = _translate(inputs, inputs.req_to_token[row, (position - 1).clamp(min=0)].to(torch.int64))
    plan.slot_indices[:total] = _translate(inputs, inputs.req_to_token[row, position].to(torch.int64))
    plan.expected_tokens[:total] = _expected_tokens(inputs, owner, row, position)
    plan.expected_positions[:total] = position
    plan.prev_slot_indices[:total] = prev_slot.where(position > 0, layout.CHAIN_HEAD)


def _fill_write_plan(inputs: PlanInputs, write_plan: WritePlan, active: torch.Tensor) -> None:
    batch_size = active.shape[0]
    extend = inputs.extend_seq_lens.clamp(min=0).where(active, 0)
    write_plan.offsets.zero_()
    write_plan.offsets[1 : batch_size + 1] = extend.cumsum(0)
    has_seed = (extend > 0) & (inputs.prefix_lens > 0)
    row = inputs.req_pool_indices.where(has_seed, 0)
    last = (inputs.prefix_lens - 1).where(has_seed, 0)
    cell = inputs.req_to_token[row, last].to(torch.int64).where(has_seed, layout.CHAIN_HEAD)
    write_plan.seed_slot_indices[:batch_size] = _translate(inputs, cell)
    write_plan.num_valid_reqs.fill_(batch_size)


def _translate(inputs: PlanInputs, slots: torch.Tensor) -> torch.Tensor:
    if inputs.full_to_swa is None:
        return slots
    return inputs.full_to_swa[slots.clamp(min=0)].where(slots >= 0, slots)


def _expected_tokens(inputs: PlanInputs, owner: torch.Tensor, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    if inputs.expected_tokens is None or inputs.expected_valid_lens is None:
        return torch.full_like(position, layout.NO_EXPECTED_TOKEN)
    index = position + inputs.token_offset
    known = (index >= 0) & (index < inputs.expected_valid_lens[owner])
    return inputs.expected_tokens[row, index.where(known, 0)].to(torch.int64).where(known, layout.NO_EXPECTED_TOKEN)


def _fields(launch: Launch) -> torch.Tensor:
    return launch.buffer.view(torch.int64)


def _hash_after(fields: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Chain hash that the successor of each slot must store; the anchor's hash where the slot is negative."""
    record = fields[slots.clamp(min=0)]
    after = mix3(record[:, layout.FIELD_PREV_HASH], record[:, layout.FIELD_TOKEN], record[:, layout.FIELD_POSITION])
    return after.where(slots >= 0, _CHAIN_START)


def _real_kv_hash(launch: Launch, slots: torch.Tensor) -> torch.Tensor:
    """real_kv_hash of each slot, int64 [n]; rows are gathered as they lie and folded word by word, all slots at once."""
    combined = torch.zeros_like(slots)
    if launch.hash_mode == RealKvHashMode.NONE:
        return combined
    for source in launch.sources:
        num_bytes = layout.PARTIAL_BYTES if launch.hash_mode == RealKvHashMode.PARTIAL else source.read_bytes
        row_words = source.page_size * source.num_bytes_per_token // 8
        words = source.tensor[:, : row_words * 8].view(torch.int64)
        row = slots // source.page_size
        first = (slots % source.page_size) * (source.num_bytes_per_token // 8)
        acc = torch.zeros_like(slots)
        for index in range(num_bytes // 8):
            acc = splitmix64(acc ^ words[row, first + index])
        combined = splitmix64(combined ^ acc)
    return combined


def _independent_ranges(
    launch: Launch, plan: WritePlan, slots: torch.Tensor, owner: torch.Tensor, num_requests: int
) -> list[tuple[int, int]]:
    """Ranges of requests whose seeds no earlier request of the same range stamps, so that a range can start all its chains at once."""
    first_writer = torch.full((launch.buffer.shape[0],), num_requests, device=slots.device)
    first_writer.scatter_reduce_(0, slots, owner, "amin")
    seeds = plan.seed_slot_indices[:num_requests]
    has_entries = torch.bincount(owner, minlength=num_requests) > 0
    requests = torch.arange(num_requests, device=slots.device)
    waits = has_entries & (seeds >= 0) & (first_writer[seeds.where(has_entries, 0).clamp(min=0)] < requests)
    cuts = [0, *waits.nonzero().squeeze(1).tolist(), num_requests]
    return [(first, last) for first, last in pairwise(cuts) if first < last]


def _stamp_range(launch: Launch, plan: WritePlan, inputs: StampInputs, kept: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """Stamp the kept tokens of some requests and return their violation rows, int64 [m, 8], in the reference's order."""
    fields = _fields(launch)
    slots, tokens, positions = inputs.slots[kept], inputs.tokens[kept], inputs.positions[kept]
    seeds = plan.seed_slot_indices[owner]
    index = torch.arange(kept.shape[0], device=kept.device)
    is_first = torch.ones_like(owner, dtype=torch.bool)
    is_first[1:] = owner[1:] != owner[:-1]
    chain_hash = _walk_chains(_hash_after(fields, seeds.where(is_first, layout.CHAIN_HEAD)), tokens, positions, is_first)
    rows = torch.cat(
        [
            _input_violations(launch, inputs, kept, chain_hash, index),
            _position_violations(launch, inputs, kept, chain_hash, index, seeds, is_first),
        ]
    )
    order = (rows[:, 0] * 2 + rows[:, 1]).argsort(stable=True)
    # Within a launch the last writer of a slot wins; a plain indexed store leaves the order of duplicates open.
    last_writer = torch.full((fields.shape[0],), -1, device=kept.device).scatter_reduce_(0, slots, index, "amax")
    wins = last_writer[slots] == index
    record = torch.stack([tokens, positions, chain_hash, _real_kv_hash(launch, slots)], dim=1)
    fields[slots[wins], : len(layout.SLOT_FIELDS)] = record[wins]
    return rows[order, 2:]


def _walk_chains(start: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
    """prev_hash to store with each token, int64 [n]: chains begin where is_first, with the hash in start, and advance together."""
    heads = is_first.nonzero().squeeze(1)
    ends = torch.cat([heads[1:], heads.new_tensor([tokens.shape[0]])])
    chain_hash = start.clone()
    current = heads
    while current.shape[0]:
        running = mix3(chain_hash[current], tokens[current], positions[current])
        alive = current + 1 < ends
        current, ends, running = current[alive] + 1, ends[alive], running[alive]
        chain_hash[current] = running
    return chain_hash


def _input_violations(
    launch: Launch, inputs: StampInputs, kept: torch.Tensor, chain_hash: torch.Tensor, index: torch.Tensor
) -> torch.Tensor:
    """Rows of the input assert, each preceded by its entry's index and 0, int64 [m, 10]."""
    if inputs.expected_tokens is None or inputs.expected_positions is None:
        return chain_hash.new_empty((0, 10))
    tokens, positions = inputs.tokens[kept], inputs.positions[kept]
    expected_token, expected_position = inputs.expected_tokens[kept], inputs.expected_positions[kept]
    bits = (tokens != expected_token) * int(FailReason.WRITE_TOKEN) + (positions != expected_position) * int(FailReason.WRITE_POSITION)
    tag = torch.full_like(index, int(launch.tag))
    columns = [index, torch.zeros_like(index), tag, inputs.slots[kept], positions, tokens, expected_token, chain_hash]
    return torch.stack([*columns, expected_position, bits], dim=1)[bits != 0]


def _position_violations(
    launch: Launch,
    inputs: StampInputs,
    kept: torch.Tensor,
    chain_hash: torch.Tensor,
    index: torch.Tensor,
    seeds: torch.Tensor,
    is_first: torch.Tensor,
) -> torch.Tensor:
    """Rows of the +1 position assert, each preceded by its entry's index and 1, int64 [m, 10]."""
    if inputs.position_assert is None or int(inputs.position_assert) == 0:
        return chain_hash.new_empty((0, 10))
    tokens, positions = inputs.tokens[kept], inputs.positions[kept]
    seed_position = _fields(launch)[seeds.clamp(min=0), layout.FIELD_POSITION]
    expected = seed_position.where(is_first, positions.roll(1)) + 1
    wrong = (seeds >= 0) & (positions != expected)
    tag, reason = torch.full_like(index, int(launch.tag)), torch.full_like(index, int(FailReason.WRITE_POSITION))
    columns = [index, torch.ones_like(index), tag, inputs.slots[kept], positions, tokens, tokens, chain_hash, expected, reason]
    return torch.stack(columns, dim=1)[wrong]


def _verify_entries(launch: Launch, plan: VerifyPlan, real: torch.Tensor, *, check_tokens: bool) -> tuple[torch.Tensor, int]:
    """Violation rows of the entries in real, int64 [m, 8], and how many of the entries have slot 0 as predecessor."""
    fields = _fields(launch)
    slots, prev_slots, expected_position = plan.slot_indices[real], plan.prev_slot_indices[real], plan.expected_positions[real]
    expected_token = plan.expected_tokens[real] if check_tokens else torch.full_like(slots, layout.NO_EXPECTED_TOKEN)
    token, position, prev_hash, real_hash = fields[slots, : len(layout.SLOT_FIELDS)].unbind(1)
    linked = prev_slots != layout.PADDING_SLOT
    expected_hash = _hash_after(fields, prev_slots).where(linked, prev_hash)
    bits = (
        (prev_hash != expected_hash) * int(FailReason.VERIFY_CHAIN_HASH)
        + (position != expected_position) * int(FailReason.VERIFY_POSITION)
        + (real_hash != _real_kv_hash(launch, slots)) * int(FailReason.VERIFY_REAL_KV_HASH)
        + ((expected_token != layout.NO_EXPECTED_TOKEN) & (token != expected_token)) * int(FailReason.VERIFY_TOKEN)
    )
    tag = torch.full_like(slots, int(launch.tag))
    rows = torch.stack([tag, slots, position, token, expected_token, prev_hash, expected_hash, bits], dim=1)
    return rows[bits != 0], int((~linked).sum())


def _append(launch: Launch, rows: torch.Tensor) -> None:
    """Append violation rows to the ring while it has room, count them always, flag their slots."""
    ring = launch.ring
    index = int(ring.write_index)
    room = max(0, ring.rows.shape[0] - index) if index >= 0 else 0
    stored = rows[:room]
    ring.rows[index : index + stored.shape[0]] = stored
    ring.write_index.add_(rows.shape[0])
    if launch.coverage is not None and launch.coverage.slot_flags is not None:
        flags = launch.coverage.slot_flags
        slots, bits = rows[:, 1], rows[:, -1].to(torch.uint8)
        for reason in FailReason:
            flags[slots[(bits & int(reason)) != 0]] |= int(reason)


def _cover(coverage: Coverage | None, **counts: int) -> None:
    if coverage is not None:
        for name, count in counts.items():
            coverage.counts[COVERAGE_FIELDS.index(name)] += count
