"""Two hundred forwards of the serving loop, with faults, under SGLang's own reference and under ours: plans, records and rings equal."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.injectors import Injector
from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp
from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Availability, Backend, Launch, PlanInputs, StampInputs, VerifyPlan, WritePlan
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.workload import Mix, synthetic
from tests.conformance.sglang_wheel import WheelUnavailable, load_kernel
from tests.conformance.test_kernels import run_sglang_plan, run_sglang_stamp, run_sglang_verify

STEPS = 200
CONFIG = CanaryConfig(
    real_data=RealKvHashMode.PARTIAL, verify_v_half=True, verify_token_assert=True, write_input_assert=True, ring_capacity=1 << 15
)
SIZES: dict[str, Any] = {"pool_slot_count": 256, "req_to_token_pool_size": 6, "max_seq_len_per_req": 80, "chunked_prefill_size": 32}
MIX = Mix(requests=90, rate_per_s=8.0, prompt_len=(4, 20), output_len=(4, 20), prefixes=2, prefix_len=(8, 24))
FAULTS = (
    ("late_write_after_free", "with_records"),
    ("slot_alias", "wrong_cell"),
    ("position_shift", "one_token"),
    ("payload_bytes", "bit_flip"),
    ("token_swap", "sampler_exit"),
    ("slot_alias", "cell_to_slot_0"),
)


class SglangBackend:
    """SGLang's torch reference behind our backend contract; the plans it wrote are kept for comparison."""

    name = "sglang"

    def __init__(self, sglang: SimpleNamespace) -> None:
        self._sglang = sglang

    def available(self) -> Availability:
        return Availability(ok=True, reason="SGLang's wheel is here")

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        run_sglang_plan(self._sglang, SimpleNamespace(inputs=inputs, verify_plan=verify_plan, write_plan=write_plan))

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        run_sglang_stamp(self._sglang, SimpleNamespace(launch=launch, plan=plan, inputs=inputs))

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        run_sglang_verify(self._sglang, SimpleNamespace(launch=launch, plan=plan, check_tokens=check_tokens))


class Recorder:
    """A backend that notes what every plan holds after it was made."""

    def __init__(self, backend: Backend) -> None:
        self.name, self._backend = backend.name, backend
        self.plans: list[list[list[int]]] = []

    def available(self) -> Availability:
        return self._backend.available()

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        self._backend.plan(inputs, verify_plan, write_plan)
        active = int(verify_plan.num_valid)
        columns = (verify_plan.slot_indices, verify_plan.expected_tokens, verify_plan.expected_positions, verify_plan.prev_slot_indices)
        batch = int(write_plan.num_valid_reqs)
        writes = (write_plan.offsets, write_plan.seed_slot_indices[:batch], verify_plan.enable)
        self.plans.append([*(column[:active].tolist() for column in columns), *(tensor.tolist() for tensor in writes)])

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        self._backend.stamp(launch, plan, inputs)

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        self._backend.verify(launch, plan, check_tokens=check_tokens)


@pytest.fixture(scope="module")
def sglang() -> SimpleNamespace:
    try:
        return SimpleNamespace(**{name: load_kernel(name) for name in ("consts", "verify", "write", "plan_ref", "write_ref", "verify_ref")})
    except WheelUnavailable as error:
        pytest.skip(str(error))


def serve(options: ServingOptions, backend: Backend) -> Iterator[tuple[CanaryExecutor, Recorder, list[list[int]]]]:
    """Each forward's violation rows, sorted, with one fault after the other."""
    recorder = Recorder(backend)
    engine = ServingEngine(options, synthetic(MIX, options.vocab_size))
    executor = CanaryExecutor(options, CONFIG, recorder)
    injectors = [Injector(kind, variant, seed=index, start_step=10 + 30 * index) for index, (kind, variant) in enumerate(FAULTS)]
    ops: list[FaultOp] = []
    for step in engine.steps():
        for injector in injectors:
            if injector.offer(engine, step) is not None and injector.record is not None:
                ops += injector.record.ops
        tree = engine.memory.tree
        sweep = {Group.FULL: tree.walk(), Group.SWA: tree.walk(resident_only=True)} if tree and step.index % 20 == 0 else None
        report = executor.run(step, ops, sweep)
        yield executor, recorder, sorted(report.rows.tolist()) + sorted(report.draft_rows.tolist())
        if step.index + 1 == STEPS:
            return


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 12, "swa_pool_slot_count": 200, "page_size": 4},
        {"speculative_num_draft_tokens": 3, "cuda_graph_max_bs": 4},
        {"speculative_num_draft_tokens": 3, "draft_pool": True, "dp_size": 2},
        {"enable_mixed_chunk": True, "sliding_window": 12, "swa_pool_slot_count": 128, "host_slot_count": 256, "pool_slot_count": 128},
    ],
    ids=["full", "window-pages", "draft-graphs", "draft-pool-ranks", "mixed-window-host"],
)
def test_plans_records_and_rings_equal_sglang_on_every_step(sglang: SimpleNamespace, changes: dict[str, Any]) -> None:
    options = ServingOptions(**{**SIZES, **changes})
    reported = steps = 0
    runs = zip(serve(options, SglangBackend(sglang)), serve(options, choose_backend("auto")[0]), strict=True)
    for (theirs, their_plans, their_rows), (ours, our_plans, our_rows) in runs:
        assert our_rows == their_rows
        # One plan per group and runner.
        count = len(theirs.memories)
        assert our_plans.plans[-count:] == their_plans.plans[-count:]
        for group, memory in theirs.memories.items():
            for name, buffer in memory.stamps.items():
                assert torch.equal(torch.from_numpy(ours.memories[group].stamps[name]), torch.from_numpy(buffer)), f"{group} {name}"
        reported += len(our_rows)
        steps += 1
    assert steps == STEPS
    assert reported > 20
    assert theirs.ring.dropped() == ours.ring.dropped() == 0
