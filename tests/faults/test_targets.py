"""What each fault is said to hit is what its injector breaks."""

from __future__ import annotations

import pytest

from kvcanary.faults.catalogue import CATALOGUE, find
from kvcanary.faults.injectors import Injector
from kvcanary.faults.ops import FaultOp, OpKind
from kvcanary.faults.targets import OP_TARGETS, Target, target
from kvcanary.lab.campaign import CampaignPlan, serving_options
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.workload import synthetic

VARIANTS = [(fault.kind, variant.name) for fault in CATALOGUE for variant in fault.variants]


def first_kinds(ops: tuple[FaultOp, ...]) -> set[OpKind]:
    """Operations on the first slot or cell that an injection names: several of them may make one damage."""
    return {op.kind for op in ops if (op.slot, op.rid) == (ops[0].slot, ops[0].rid)}


@pytest.mark.parametrize(("kind", "variant"), VARIANTS, ids=[".".join(pair) for pair in VARIANTS])
def test_the_target_is_what_the_injector_breaks(kind: str, variant: str) -> None:
    if not find(kind, variant).in_memory:
        assert target(kind, variant) is Target.ELSEWHERE
        return
    plan = CampaignPlan()
    options = serving_options(plan, (kind, variant), 0)
    engine = ServingEngine(options, synthetic(plan.mix, options.vocab_size))
    injector = Injector(kind, variant, seed=0, start_step=plan.start_step)
    record = next((found for step in engine.steps() if (found := injector.offer(engine, step))), None)
    assert record is not None, "no victim in the default workload"
    broken = {OP_TARGETS[op] for op in first_kinds(record.ops)}
    expected = {Target.BYTES, Target.RECORD} if target(kind, variant) is Target.SLOT and len(broken) > 1 else {target(kind, variant)}
    if (kind, variant) == ("slot_alias", "two_requests"):
        expected = {Target.SLOT, Target.TABLE}
    assert broken == expected


def test_every_operation_has_a_target() -> None:
    assert set(OP_TARGETS) == set(OpKind)
