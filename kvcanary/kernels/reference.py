"""The truth: plan, stamp and verify as plain loops over Python integers.

Every rule of SGLang 0.5.23 stands here once, in the order in which a reader would state it. Hashes come from layout.py in unsigned
arithmetic; nothing is vectorised. Works on any device, slowly: it is what the other backends are compared with.
"""

from __future__ import annotations

import torch

from kvcanary import layout
from kvcanary.kernels import contract
from kvcanary.kernels.types import (
    COVERAGE_FIELDS,
    Availability,
    Coverage,
    Launch,
    PlanInputs,
    RealKvSource,
    StampInputs,
    VerifyPlan,
    ViolationRing,
    WritePlan,
)
from kvcanary.layout import FailReason, RealKvHashMode

Entry = tuple[int, int, int, int]
"""(slot, expected token, expected position, predecessor slot)"""


class ReferenceBackend:
    """Plain loops; see Backend for the contract of each method."""

    name = "reference"

    def available(self) -> Availability:
        """Always: it needs nothing but torch."""
        return Availability(ok=True, reason="plain Python loops, for checking and not for speed")

    def prepare(self) -> None:
        """Nothing to compile."""

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans, requests in batch order, positions ascending."""
        contract.check_plan(inputs, verify_plan, write_plan)
        contract.check_plan_values(inputs)
        entries = _verify_entries(inputs)
        capacity = verify_plan.slot_indices.shape[0]
        fits = len(entries) <= capacity
        verify_plan.num_valid[0] = min(len(entries), capacity)
        verify_plan.enable[0] = int(fits)
        if fits:
            columns = (
                verify_plan.slot_indices,
                verify_plan.expected_tokens,
                verify_plan.expected_positions,
                verify_plan.prev_slot_indices,
            )
            for index, entry in enumerate(entries):
                for column, value in zip(columns, entry, strict=True):
                    column[index] = value
        _write_metadata(inputs, write_plan)

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Write the records of this forward, request after request, token after token."""
        contract.check_stamp(launch, plan, inputs)
        contract.check_stamp_values(launch, plan, inputs)
        launch.counters.kernel_runs[launch.tag] += 1
        armed = inputs.position_assert is not None and int(inputs.position_assert) != 0
        stamped = skipped = 0
        for request in range(contract.active_count(plan.num_valid_reqs, plan.seed_slot_indices)):
            first, last = int(plan.offsets[request]), int(plan.offsets[request + 1])
            if last <= first:
                continue
            seed = int(plan.seed_slot_indices[request])
            running_hash = _hash_after(launch.buffer, seed)
            previous = _record(launch.buffer, seed)[layout.FIELD_POSITION] if armed and seed >= 0 else None
            for index in range(first, last):
                slot = int(inputs.slots[index])
                if slot < 0:
                    skipped += 1
                    continue
                token, position = int(inputs.tokens[index]), int(inputs.positions[index])
                _assert_input(launch, inputs, index, running_hash)
                if previous is not None:
                    _assert_next_position(launch, slot, token, position, layout.to_signed(previous + 1), running_hash)
                    previous = position
                real_hash = _real_kv_hash(launch, slot)
                record = (token, position, layout.to_signed(running_hash), layout.to_signed(real_hash))
                _fields(launch.buffer)[slot, : len(layout.SLOT_FIELDS)] = torch.tensor(record, device=launch.buffer.device)
                running_hash = layout.mix3(running_hash, token, position)
                stamped += 1
        launch.counters.slot_runs[launch.tag] += stamped
        _cover(launch.coverage, stamped=stamped, skipped_negative=skipped)

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check the active entries in order; reads the buffer and never writes it."""
        contract.check_verify(launch, plan)
        contract.check_verify_values(launch, plan)
        launch.counters.kernel_runs[launch.tag] += 1
        active = contract.active_count(plan.num_valid, plan.slot_indices)
        if int(plan.enable) == 0:
            _cover(launch.coverage, skipped_disabled=active)
            return
        launch.counters.slot_runs[launch.tag] += active
        padding = unlinked = 0
        for index in range(active):
            slot, prev_slot = int(plan.slot_indices[index]), int(plan.prev_slot_indices[index])
            if slot == layout.PADDING_SLOT:
                padding += 1
                continue
            unlinked += prev_slot == layout.PADDING_SLOT
            expected_token = int(plan.expected_tokens[index]) if check_tokens else layout.NO_EXPECTED_TOKEN
            _verify_entry(launch, (slot, expected_token, int(plan.expected_positions[index]), prev_slot))
        _cover(launch.coverage, verified=active - padding, skipped_padding=padding, unlinked=unlinked)


def _verify_entries(inputs: PlanInputs) -> list[Entry]:
    """One entry per position of each prefix, or of its last swa_window tokens; padding rows have none."""
    entries: list[Entry] = []
    for request, row in enumerate(inputs.req_pool_indices.tolist()):
        if row == layout.PADDING_ROW:
            continue
        prefix = int(inputs.prefix_lens[request])
        window_start = max(0, prefix - inputs.swa_window) if inputs.swa_window > 0 else 0
        for position in range(window_start, prefix):
            slot = _translate(inputs, int(inputs.req_to_token[row, position]))
            prev_slot = _translate(inputs, int(inputs.req_to_token[row, position - 1])) if position > 0 else layout.CHAIN_HEAD
            entries.append((slot, _expected_token(inputs, request, row, position), position, prev_slot))
    return entries


def _write_metadata(inputs: PlanInputs, write_plan: WritePlan) -> None:
    """Exclusive prefix sums of the extend lengths, and for each request the slot its chain goes on from."""
    batch_size = inputs.req_pool_indices.shape[0]
    offset = 0
    for request in range(batch_size):
        row, prefix = int(inputs.req_pool_indices[request]), int(inputs.prefix_lens[request])
        extend = max(0, int(inputs.extend_seq_lens[request])) if row != layout.PADDING_ROW else 0
        has_seed = extend > 0 and prefix > 0
        seed = _translate(inputs, int(inputs.req_to_token[row, prefix - 1])) if has_seed else layout.CHAIN_HEAD
        write_plan.offsets[request] = offset
        write_plan.seed_slot_indices[request] = seed
        offset += extend
    write_plan.offsets[batch_size] = offset
    write_plan.offsets[batch_size + 1 :] = 0
    write_plan.num_valid_reqs[0] = batch_size


def _translate(inputs: PlanInputs, slot: int) -> int:
    """Slot in the group's index space: through the SWA table when there is one; a negative slot passes."""
    return slot if inputs.full_to_swa is None or slot < 0 else int(inputs.full_to_swa[slot])


def _expected_token(inputs: PlanInputs, request: int, row: int, position: int) -> int:
    if inputs.expected_tokens is None or inputs.expected_valid_lens is None:
        return layout.NO_EXPECTED_TOKEN
    index = position + inputs.token_offset
    known = 0 <= index < int(inputs.expected_valid_lens[request])
    return int(inputs.expected_tokens[row, index]) if known else layout.NO_EXPECTED_TOKEN


def _fields(buffer: torch.Tensor) -> torch.Tensor:
    """int64 view of a canary buffer, [num_slots, stride // 8]."""
    return buffer.view(torch.int64)


def _record(buffer: torch.Tensor, slot: int) -> list[int]:
    """The four signed fields stored at a slot."""
    fields: list[int] = _fields(buffer)[slot, : len(layout.SLOT_FIELDS)].tolist()
    return fields


def _hash_after(buffer: torch.Tensor, slot: int) -> int:
    """Chain hash that the successor of a slot must store; the anchor's hash at a chain head."""
    if slot < 0:
        return layout.CHAIN_START
    record = _record(buffer, slot)
    return layout.mix3(record[layout.FIELD_PREV_HASH], record[layout.FIELD_TOKEN], record[layout.FIELD_POSITION])


def _real_kv_hash(launch: Launch, slot: int) -> int:
    """Hash of a slot's real KV bytes over all sources, 0 when none are hashed."""
    if launch.hash_mode == RealKvHashMode.NONE:
        return 0
    return layout.combine_sources(layout.fold_bytes(_source_bytes(source, slot, launch.hash_mode)) for source in launch.sources)


def _source_bytes(source: RealKvSource, slot: int, hash_mode: RealKvHashMode) -> bytes:
    row, column = divmod(slot, source.page_size)
    start = column * source.num_bytes_per_token
    length = layout.PARTIAL_BYTES if hash_mode == RealKvHashMode.PARTIAL else source.read_bytes
    return bytes(source.tensor[row, start : start + length].tolist())


def _verify_entry(launch: Launch, entry: Entry) -> None:
    slot, expected_token, expected_position, prev_slot = entry
    token, position, prev_hash, real_hash = _record(launch.buffer, slot)
    linked = prev_slot != layout.PADDING_SLOT
    expected_hash = layout.to_signed(_hash_after(launch.buffer, prev_slot)) if linked else prev_hash
    reasons = FailReason(0)
    if prev_hash != expected_hash:
        reasons |= FailReason.VERIFY_CHAIN_HASH
    if position != expected_position:
        reasons |= FailReason.VERIFY_POSITION
    if real_hash != layout.to_signed(_real_kv_hash(launch, slot)):
        reasons |= FailReason.VERIFY_REAL_KV_HASH
    if expected_token not in (layout.NO_EXPECTED_TOKEN, token):
        reasons |= FailReason.VERIFY_TOKEN
    if reasons:
        _report(launch, [slot, position, token, expected_token, prev_hash, expected_hash, int(reasons)])


def _assert_input(launch: Launch, inputs: StampInputs, index: int, running_hash: int) -> None:
    """Compare a token and its position with what the caller's oracle expected."""
    if inputs.expected_tokens is None or inputs.expected_positions is None:
        return
    slot, token, position = int(inputs.slots[index]), int(inputs.tokens[index]), int(inputs.positions[index])
    expected_token, expected_position = int(inputs.expected_tokens[index]), int(inputs.expected_positions[index])
    reasons = FailReason(0)
    if token != expected_token:
        reasons |= FailReason.WRITE_TOKEN
    if position != expected_position:
        reasons |= FailReason.WRITE_POSITION
    if reasons:
        _report(launch, [slot, position, token, expected_token, layout.to_signed(running_hash), expected_position, int(reasons)])


def _assert_next_position(launch: Launch, slot: int, token: int, position: int, expected: int, running_hash: int) -> None:
    """A request that goes on from a seed must write consecutive positions."""
    if position != expected:
        reason = int(FailReason.WRITE_POSITION)
        _report(launch, [slot, position, token, token, layout.to_signed(running_hash), expected, reason])


def _report(launch: Launch, row: list[int]) -> None:
    """Append a violation (fields after kernel_kind) to the ring while it has room, count it always, flag its slot."""
    ring: ViolationRing = launch.ring
    index = int(ring.write_index)
    if 0 <= index < ring.rows.shape[0]:
        ring.rows[index] = torch.tensor([int(launch.tag), *row], device=ring.rows.device)
    ring.write_index.add_(1)
    if launch.coverage is not None and launch.coverage.slot_flags is not None:
        launch.coverage.slot_flags[row[0]] |= row[-1]


def _cover(coverage: Coverage | None, **counts: int) -> None:
    if coverage is not None:
        for name, count in counts.items():
            coverage.counts[COVERAGE_FIELDS.index(name)] += count
