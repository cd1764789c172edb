"""Stamp a canary buffer, damage one record, and let verify find it.

python examples/verify_a_buffer.py
"""

from __future__ import annotations

import torch

from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Coverage, Launch, PlanInputs, RunCounters, StampInputs, VerifyPlan, ViolationRing, WritePlan
from kvcanary.layout import RING_FIELDS, SLOT_BYTES, LaunchTag

SLOTS, LENGTH = 64, 10


def main() -> None:
    """One request of ten tokens in slots 1 to 10; token 5 is changed behind the canary's back."""
    backend, why = choose_backend("auto", "cpu")
    print(f"backend {backend.name}: {why}")
    slots = torch.arange(1, LENGTH + 1)
    req_to_token = torch.zeros((2, LENGTH), dtype=torch.int32)
    req_to_token[1] = slots
    launch = Launch(
        buffer=torch.zeros((SLOTS, SLOT_BYTES), dtype=torch.uint8),
        tag=LaunchTag.TAIL_K_FULL,
        ring=ViolationRing.allocate(16),
        counters=RunCounters.allocate(),
        coverage=Coverage.allocate(),
    )
    verify_plan, write_plan = VerifyPlan.allocate(SLOTS), WritePlan.allocate(1)

    # A prefill: nothing before it to verify, ten tokens to write.
    backend.plan(batch(req_to_token, prefix=0, extend=LENGTH), verify_plan, write_plan)
    backend.stamp(launch, write_plan, StampInputs(tokens=100 + slots, positions=torch.arange(LENGTH), slots=slots))

    # Somebody writes to slot 5. A record is int64 [4]: token, position, prev_hash, real_kv_hash.
    launch.buffer.view(torch.int64)[5, 0] = 7

    # The next decode step verifies the ten tokens before it. Slot 6 fails: its prev_hash does not follow from what slot 5 holds now.
    backend.plan(batch(req_to_token, prefix=LENGTH, extend=0), verify_plan, write_plan)
    backend.verify(launch, verify_plan)
    for row in launch.ring.kept().tolist():
        print(dict(zip(RING_FIELDS, row, strict=True)))
    assert launch.coverage is not None
    print(launch.coverage.to_dict())


def batch(req_to_token: torch.Tensor, *, prefix: int, extend: int) -> PlanInputs:
    """One request, row 1 of the table, with `prefix` tokens behind it and `extend` to write."""
    return PlanInputs(
        req_pool_indices=torch.tensor([1]),
        prefix_lens=torch.tensor([prefix]),
        extend_seq_lens=torch.tensor([extend]),
        req_to_token=req_to_token,
    )


if __name__ == "__main__":
    main()
