"""The canary on real steps: silent when nothing is wrong, and as loud as the rules say when something is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.kernels.backends import choose_backend, get_backend
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.layout import FailReason, LaunchTag, RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.events import MoveKind
from kvcanary.serving.options import ServingOptions
from tests.serving.conftest import MECHANISMS, shared_prefixes, small_options

EVERYTHING: dict[str, Any] = {
    "real_data": RealKvHashMode.ALL,
    "verify_v_half": True,
    "verify_token_assert": True,
    "write_input_assert": True,
    "strict": True,
    "records_follow": True,
}


def run(
    options: ServingOptions, config: CanaryConfig, backend: str = "auto", requests: int = 24, ops: tuple[FaultOp, ...] = ()
) -> tuple[CanaryExecutor, list[StepReport]]:
    """Serve a workload under a canary, sweeping every fourth step."""
    engine = ServingEngine(options, shared_prefixes(requests, 2))
    executor = CanaryExecutor(options, config, choose_backend(backend)[0])
    reports = []
    for step in engine.steps():
        tree = engine.memory.tree
        sweep = {Group.FULL: tree.walk(), Group.SWA: tree.walk(resident_only=True)} if tree and step.index % 4 == 0 else None
        reports.append(executor.run(step, ops, sweep))
    return executor, reports


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_no_mechanism_of_the_engine_raises_a_false_alarm(name: str) -> None:
    _, reports = run(small_options(**MECHANISMS[name]), CanaryConfig(**EVERYTHING))
    assert [report.rows.tolist() for report in reports if report.violations] == []
    assert not any(report.zero_cells for report in reports)
    assert sum(report.verified for report in reports) > 1000


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_backends_agree_with_the_reference_on_every_step(backend: str) -> None:
    options = small_options(**MECHANISMS["window-pages"])
    ops = tuple(FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.FLIP_BYTES, step=9, until=10, slot=slot) for slot in range(4, 60, 7))
    config = CanaryConfig(**EVERYTHING, ring_capacity=4096)
    get_backend(backend)
    (left, ours), (right, theirs) = (run(options, config, name, requests=8, ops=ops) for name in (backend, "reference"))
    assert sum(report.violations for report in theirs) > 0
    for mine, truth in zip(ours, theirs, strict=True):
        assert sorted(mine.rows.tolist()) == sorted(truth.rows.tolist())
    for group, memory in left.memories.items():
        for name, buffer in memory.stamps.items():
            np.testing.assert_array_equal(buffer, right.memories[group].stamps[name])


def test_the_records_left_behind_by_the_host_tier_raise_false_alarms_as_in_the_engine() -> None:
    options = small_options(**MECHANISMS["host"])
    first_reload = next(
        step.index for step in ServingEngine(options, shared_prefixes(24, 2)).steps() if any(m.kind is MoveKind.RELOAD for m in step.moves)
    )
    _, reports = run(options, CanaryConfig(real_data=RealKvHashMode.ALL))
    loud = [report.index for report in reports if report.violations]
    assert loud[0] == first_reload


def victim_step(options: ServingOptions) -> tuple[int, int, int]:
    """A decode step, a request in it and one of its slots."""
    for step in ServingEngine(options, shared_prefixes(24, 2)).steps():
        if step.index > 8 and step.prefix_lens.min() > 12:
            return step.index, int(step.rids[0]), int(step.req_to_token[step.req_pool_indices[0], 5])
    raise AssertionError("the workload has no such step")


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({}, set()),
        ({"real_data": RealKvHashMode.PARTIAL}, {LaunchTag.TAIL_K_FULL}),
        ({"real_data": RealKvHashMode.ALL}, {LaunchTag.TAIL_K_FULL}),
    ],
)
def test_a_flipped_byte_is_seen_by_tail_alone_and_only_with_real_data(config: dict[str, Any], reported: set[LaunchTag]) -> None:
    options = small_options(radix_cache=False)
    index, _, slot = victim_step(options)
    op = FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.FLIP_BYTES, step=index, until=index + 1, slot=slot)
    _, reports = run(options, CanaryConfig(**config), ops=(op,))
    (report,) = (found for found in reports if found.index == index)
    assert report.changed == {0: 1}
    assert {LaunchTag(row[0]) for row in report.rows} == reported
    assert all(row[1] == slot and row[7] == FailReason.VERIFY_REAL_KV_HASH for row in report.rows)


@pytest.mark.parametrize("strict", [False, True])
def test_only_strict_sees_a_live_cell_at_slot_0(strict: bool) -> None:
    options = small_options(radix_cache=False)
    index, rid, _ = victim_step(options)
    op = FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.SET_TABLE, step=index, until=index + 1, rid=rid, position=5, slot=0)
    _, reports = run(options, CanaryConfig(real_data=RealKvHashMode.ALL, verify_token_assert=True, strict=strict), ops=(op,))
    assert sum(report.violations for report in reports) == 0
    assert [report.zero_cells for report in reports if report.zero_cells] == ([((rid, 5),)] if strict else [])


def test_the_engine_goes_on_with_its_own_tables_after_a_damaged_forward(mechanism: Callable[..., ServingOptions]) -> None:
    options = mechanism()
    steps = {step.index: step.rids[:1].tolist() for step in ServingEngine(options, shared_prefixes(16, 2)).steps()}
    ops = tuple(
        FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.SET_TABLE, step=index, until=index + 1, rid=rids[0], position=0, slot=9)
        for index, rids in steps.items()
        if rids
    )
    engine = ServingEngine(options, shared_prefixes(16, 2))
    executor = CanaryExecutor(options, CanaryConfig(), choose_backend("auto")[0])
    for step in engine.steps():
        executor.run(step, ops)
        engine.check()
    assert engine.finished == 16


def test_the_ring_keeps_its_first_rows_and_counts_all() -> None:
    options = small_options(radix_cache=False)
    index, rid, _ = victim_step(options)
    ops = tuple(
        FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.SET_TABLE, step=index, until=index + 1, rid=rid, position=position, slot=9)
        for position in range(8)
    )
    executor, reports = run(options, CanaryConfig(ring_capacity=5), ops=ops)
    counted = sum(report.violations for report in reports)
    assert counted > 5
    assert (len(executor.ring.kept()), executor.ring.dropped()) == (5, counted - 5)
