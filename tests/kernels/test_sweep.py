"""The plan of a sweep."""

from __future__ import annotations

import pytest
import torch

from kvcanary.errors import ContractError
from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
from kvcanary.kernels.sweep import sweep_plan
from kvcanary.kernels.types import Coverage, Launch, RunCounters, ViolationRing
from kvcanary.layout import CHAIN_HEAD, CHAIN_START, FailReason, LaunchTag, to_signed


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
def test_a_sweep_checks_chain_and_position_and_never_tokens(backend_name):
    slots = torch.tensor([2, 1, 3])
    launch = Launch(
        buffer=torch.zeros(4, 32, dtype=torch.uint8),
        tag=LaunchTag.SWEEP_K_FULL,
        ring=ViolationRing.allocate(8),
        counters=RunCounters.allocate(),
        coverage=Coverage.allocate(),
    )
    records = launch.buffer.view(torch.int64)
    records[slots, 0], records[slots, 1] = torch.tensor([11, 12, 13]), torch.tensor([0, 0, 6])
    records[slots, 2] = to_signed(CHAIN_START)
    plan = sweep_plan(slots, positions=torch.tensor([0, 0, 7]), prev_slots=torch.tensor([CHAIN_HEAD, 2, 0]))
    get_backend(backend_name).verify(launch, plan, check_tokens=True)
    reported = {row[1]: FailReason(row[-1]) for row in launch.ring.kept().tolist()}
    assert reported == {1: FailReason.VERIFY_CHAIN_HASH, 3: FailReason.VERIFY_POSITION}
    assert launch.coverage.to_dict()["unlinked"] == 1


def test_a_sweep_needs_slots_and_equal_lengths():
    some, none = torch.tensor([1]), torch.empty(0, dtype=torch.int64)
    with pytest.raises(ContractError, match=r"must have equal lengths, got \[\(1,\), \(1,\), \(0,\)\]"):
        sweep_plan(some, some, none)
    with pytest.raises(ContractError, match="verify_capacity must be positive, got 0"):
        sweep_plan(none, none, none)
