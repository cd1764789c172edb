"""Checks beyond SGLang's canary, each on the inputs that its launches read: named apart, never in a ring row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvcanary import layout
from kvcanary.faults.memory import Forward, GroupMemory
from kvcanary.kernels.types import VerifyPlan, WritePlan
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.step import Step

Cell = tuple[int, int]
NOBODY = -1


@dataclass(frozen=True, slots=True)
class ViolationDetail:
    """What a ring row leaves out. rid: the request that read the slot, -1 for a sweep or a written token; expected_position -1 likewise.

    stored_real_hash is the record's, actual_real_hash that of the bytes when the launch looked; both signed, as records hold them.
    """

    tag: int
    slot: int
    rid: int
    expected_position: int
    stored_real_hash: int
    actual_real_hash: int


def zero_cells(forward: Forward) -> tuple[Cell, ...]:
    """(request, position) of live prefix cells that point at slot 0, of the window too; the plain canary skips both."""
    step, found = forward.step, []
    for row, rid, prefix in zip(step.req_pool_indices.tolist(), step.rids.tolist(), step.prefix_lens.tolist(), strict=True):
        if row == layout.PADDING_ROW:
            continue
        cells = forward.req_to_token[row, :prefix].astype(np.int64)
        zero = cells == layout.PADDING_SLOT
        if forward.full_to_swa is not None:
            start = max(0, prefix - step.window)
            zero[start:] |= forward.full_to_swa[cells[start:]] == layout.PADDING_SLOT
        found += [(rid, int(position)) for position in np.flatnonzero(zero)]
    return tuple(found)


def zero_seeds(forward: Forward, plan: WritePlan) -> tuple[Cell, ...]:
    """(request, position) of the last prefix token where a request goes on from slot 0; the plain canary hashes whatever lies there."""
    step, count = forward.step, len(forward.step.req_pool_indices)
    zero = (plan.seed_slot_indices[:count].numpy() == layout.PADDING_SLOT) & (step.req_pool_indices != layout.PADDING_ROW)
    # Only rows that write have a seed; the others' entries are unspecified.
    places = np.flatnonzero(zero & (step.extend_seq_lens > 0) & (step.prefix_lens > 0))
    return tuple((int(step.rids[place]), int(step.prefix_lens[place]) - 1) for place in places)


def details(rows: Int64Array, memory: GroupMemory, buffer: str, plan: VerifyPlan, rids: Int64Array | None) -> list[ViolationDetail]:
    """Details of ring rows int64 [n, 8] that one launch has just added.

    rids: int64 [entries], the request of each plan entry, or None for a sweep. A slot that several requests share is named once for each
    of its rows, in plan order.
    """
    slots = plan.slot_indices[: int(plan.num_valid)].numpy()
    used: dict[int, int] = {}
    found = []
    for row in rows.tolist():
        tag, slot, bits = row[0], row[1], row[7]
        rid, expected = NOBODY, NOBODY
        if not bits & layout.WRITE_REASONS:
            places = np.flatnonzero(slots == slot)
            place = int(places[min(used.get(slot, 0), len(places) - 1)])
            used[slot] = used.get(slot, 0) + 1
            expected = int(plan.expected_positions[place])
            rid = NOBODY if rids is None else int(rids[place])
        stored = int(memory.stamps[buffer][slot].view("<i8")[layout.FIELD_REAL_KV_HASH])
        found.append(ViolationDetail(tag, slot, rid, expected, stored, actual_real_hash(memory, buffer, slot)))
    return found


def actual_real_hash(memory: GroupMemory, buffer: str, slot: int) -> int:
    """The real-KV hash of a slot's bytes as they are, signed; 0 where the endpoint hashes nothing."""
    if memory.hash_mode is RealKvHashMode.NONE:
        return 0
    parts = [memory.kv[strip][slot, start : start + memory.read_bytes] for strip, start in memory.parts(buffer)]
    return layout.to_signed(layout.combine_sources(layout.fold_bytes(part.tobytes()) for part in parts))


def entry_rids(step: Step, window: int = 0) -> Int64Array:
    """The request of each plan entry, int64 [entries]: requests in batch order, window 0 for the whole prefix."""
    real = step.req_pool_indices != layout.PADDING_ROW
    counts = step.prefix_lens[real]
    return np.repeat(step.rids[real], np.minimum(counts, window) if window else counts)


def active_sweep(slots: Int64Array, positions: Int64Array, before: Int64Array) -> VerifyPlan:
    """A verify plan of a sweep's entries, int64 [n] each; tokens are never checked."""
    return VerifyPlan(
        slot_indices=torch.from_numpy(slots),
        expected_tokens=torch.full((len(slots),), layout.NO_EXPECTED_TOKEN, dtype=torch.int64),
        expected_positions=torch.from_numpy(positions),
        prev_slot_indices=torch.from_numpy(before),
        num_valid=torch.tensor([len(slots)], dtype=torch.int32),
        enable=torch.ones(1, dtype=torch.int32),
    )
