"""What a replay says of its fault, and which slot it shows first."""

from __future__ import annotations

import pytest

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CampaignPlan
from kvcanary.lab.replay import Replay, replay
from kvcanary.ui import fault_lab_address, fault_lab_replay


def played(kind: str, variant: str) -> Replay:
    plan = CampaignPlan(faults=((kind, variant),), configs={"chain": CanaryConfig()}, seeds=(0,))
    return replay(plan, (kind, variant, "chain", 0), choose_backend("auto", "cpu")[0])


@pytest.mark.parametrize(
    ("kind", "variant", "pool"), [("position_shift", "one_token", "full pool"), ("draft_pool", "position_ahead", "draft model's pool")]
)
def test_a_wrong_input_is_named_by_its_token_and_shown_at_its_slot(
    kind: str, variant: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_lab_address, "number", lambda name: None)
    found = played(kind, variant)
    assert found.record is not None
    (op,) = found.record.ops
    assert f"Injected in step {found.record.step} at position {op.position} of request {op.rid} in the {pool}." in (
        fault_lab_replay._story(found)
    )
    frame = next(frame for frame in found.frames if frame.index == found.record.step)
    view = frame.pools[found.group]
    slot = fault_lab_replay._chosen_slot(found, found.group, view)
    assert [slot] == view.injected.tolist()
    assert view.truth.positions[slot] == op.position


def test_a_damaged_slot_is_named_with_who_uses_it() -> None:
    found = played("payload_bytes", "bit_flip")
    assert found.record is not None
    (slot,), (rid,) = found.record.slots, found.record.rids
    assert fault_lab_replay._story(found).startswith(
        f"Injected in step {found.record.step} at slot {slot} of the full pool, which request {rid} uses. It was never reported."
    )
