"""The plan of a sweep: SGLang walks the slots that the radix tree holds and verifies them outside any forward."""

from __future__ import annotations

import torch

from kvcanary import layout
from kvcanary.errors import ContractError
from kvcanary.kernels.types import VerifyPlan


def sweep_plan(slots: torch.Tensor, positions: torch.Tensor, prev_slots: torch.Tensor) -> VerifyPlan:
    """A plan with exactly the given entries and no token check, as SGLang sizes it for each sweep.

    slots, positions, prev_slots: int64 [n], n > 0, in the index space of the group's buffer; prev_slots is -1 at a chain head and 0
    where the predecessor is unreachable. The plan shares their memory. Raises ContractError for an empty sweep or unequal lengths;
    verify checks the rest.
    """
    lengths = slots.shape, positions.shape, prev_slots.shape
    if len(set(lengths)) != 1:
        raise ContractError(f"kv-canary: slots, positions and prev_slots of a sweep must have equal lengths, got {[*map(tuple, lengths)]}")
    if not slots.numel():
        raise ContractError("kv-canary: VerifyPlan verify_capacity must be positive, got 0 (a sweep of no slots; do not launch it)")
    return VerifyPlan(
        slot_indices=slots,
        expected_tokens=torch.full_like(slots, layout.NO_EXPECTED_TOKEN),
        expected_positions=positions,
        prev_slot_indices=prev_slots,
        num_valid=torch.tensor([slots.numel()], dtype=torch.int32, device=slots.device),
        enable=torch.ones(1, dtype=torch.int32, device=slots.device),
    )
