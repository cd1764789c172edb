"""Each strict check on its own: what it adds, and that it leaves SGLang's records and rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig, StrictCheck
from kvcanary.faults.memory import Strip
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep
from kvcanary.kernels.backends import get_backend
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.lab.strict_checks import ViolationDetail
from kvcanary.layout import LaunchTag, RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from tests.serving.conftest import MECHANISMS, shared_prefixes, small_options

PARTIAL, ALL = RealKvHashMode.PARTIAL, RealKvHashMode.ALL
A = Actor(1, (31, 32, 33, 34, 35, 36), (2, 3, 4, 5, 6, 7))
B = Actor(2, (41, 42, 43, 44, 45), (9, 10, 11, 12, 13))
STEPS = (ScriptStep(((A, 0, 4), (B, 0, 3))), ScriptStep(((A, 4, 1), (B, 3, 1)), sweep=((2, 3, 4, 5),)))


def op(kind: OpKind, **fields: Any) -> FaultOp:
    return FaultOp(hook=Hook.BEFORE_PLAN, kind=kind, step=1, until=2, **fields)


def run(*ops: FaultOp, sweep: bool = False, **config: Any) -> StepReport:
    """The second forward of two requests, with damage."""
    scenario = Scenario(slots=16, actors=(A, B), steps=STEPS, ops=ops)
    executor = CanaryExecutor(scenario.options(), CanaryConfig(**config), get_backend("reference"))
    return [executor.run(step, ops, swept if sweep else None) for step, swept in scenario.compile()][-1]


def written(*names: str) -> Any:
    """Names as a stored run has them."""
    return names


def test_strict_alone_means_every_check_and_names_are_checked() -> None:
    assert CanaryConfig(strict=True).strict_checks == tuple(StrictCheck)
    one = CanaryConfig(strict_checks=("zero_seed",))
    assert (one.strict, one.has(StrictCheck.ZERO_SEED), one.has(StrictCheck.ZERO_CELL)) == (True, True, False)
    assert one.to_dict()["strict_checks"] == ["zero_seed"]
    assert not CanaryConfig().strict
    with pytest.raises(ConfigError, match=r"strict_checks must be among zero_cell, .*'luck'"):
        CanaryConfig(strict_checks=("luck",))


@pytest.mark.parametrize(
    ("position", "checks", "cells", "seeds", "write_position"),
    [
        (2, (), (), (), False),
        (2, (StrictCheck.ZERO_CELL,), ((1, 2),), (), False),
        (2, (StrictCheck.ZERO_SEED,), (), (), False),
        # The last cell is also the seed: SGLang sees an odd position and no cause.
        (3, (), (), (), True),
        (3, (StrictCheck.ZERO_SEED,), (), ((1, 3),), True),
        (3, (StrictCheck.ZERO_CELL, StrictCheck.ZERO_SEED), ((1, 3),), ((1, 3),), True),
    ],
)
def test_cells_and_seeds_at_slot_0(
    position: int,
    checks: tuple[StrictCheck, ...],
    cells: tuple[tuple[int, int], ...],
    seeds: tuple[tuple[int, int], ...],
    write_position: bool,
) -> None:
    report = run(op(OpKind.SET_TABLE, rid=1, position=position, slot=0), strict_checks=checks)
    assert (report.zero_cells, report.zero_seeds) == (cells, seeds)
    assert {layout.reason_labels(int(row[7]))[0] for row in report.rows} == ({"write_position"} if write_position else set())
    assert report.reported == bool(cells or seeds or write_position)


@pytest.mark.parametrize("check", [StrictCheck.ZERO_CELL, StrictCheck.ZERO_SEED, StrictCheck.DETAILS])
def test_a_check_that_only_looks_changes_no_row(check: StrictCheck) -> None:
    ops = (op(OpKind.SET_TABLE, rid=1, position=3, slot=11), op(OpKind.FLIP_BYTES, slot=10))
    plain, strict = (run(*ops, real_data=ALL, strict_checks=checks) for checks in ((), (check,)))
    assert plain.rows.tolist() == strict.rows.tolist()
    assert len(plain.rows) > 3


@pytest.mark.parametrize(
    ("damage", "check", "real_data"),
    [
        ({"strip": Strip.K1, "byte": 0}, StrictCheck.MORE_LAYERS, PARTIAL),
        ({"strip": Strip.K1, "byte": 60}, StrictCheck.MORE_LAYERS, ALL),
        ({"strip": Strip.K0, "byte": 40}, StrictCheck.MORE_BYTES, PARTIAL),
    ],
)
def test_more_layers_and_bytes_are_hashed(damage: dict[str, Any], check: StrictCheck, real_data: RealKvHashMode) -> None:
    flip = op(OpKind.FLIP_BYTES, slot=4, **damage)
    assert not run(flip, real_data=real_data).reported
    seen = run(flip, real_data=real_data, strict_checks=(check,))
    assert [(LaunchTag(row[0]), row[1], row[7]) for row in seen.rows.tolist()] == [(LaunchTag.TAIL_K_FULL, 4, 4)]


def test_a_byte_outside_every_hashed_range_stays_unseen() -> None:
    assert not run(op(OpKind.FLIP_BYTES, slot=4, byte=20), real_data=PARTIAL, strict=True).reported


def test_details_name_the_reader_the_expected_position_and_both_hashes() -> None:
    report = run(op(OpKind.FLIP_BYTES, slot=4), sweep=True, real_data=PARTIAL, strict_checks=(StrictCheck.DETAILS,))
    assert [(LaunchTag(row[0]).name, row[1]) for row in report.rows.tolist()] == [("TAIL_K_FULL", 4), ("SWEEP_K_FULL", 4)]
    tail, sweep = report.details
    assert (tail.tag, tail.slot, tail.rid, tail.expected_position) == (LaunchTag.TAIL_K_FULL, 4, 1, 2)
    assert (sweep.tag, sweep.rid, sweep.expected_position) == (LaunchTag.SWEEP_K_FULL, -1, 2)
    assert tail.stored_real_hash != tail.actual_real_hash
    assert (tail.stored_real_hash, tail.actual_real_hash) == (sweep.stored_real_hash, sweep.actual_real_hash)


def test_details_tell_the_position_that_a_wrong_cell_should_have() -> None:
    report = run(op(OpKind.SET_TABLE, rid=1, position=3, slot=10), strict_checks=(StrictCheck.DETAILS,))
    head = [detail for detail in report.details if detail.tag == LaunchTag.HEAD_K_FULL]
    # Slot 10 is position 1 of B and, wrongly, position 3 of A, who alone is told that it does not fit. A goes on from it, hence the write row.
    assert head == [
        ViolationDetail(LaunchTag.HEAD_K_FULL, 10, 1, 3, 0, 0),
        ViolationDetail(LaunchTag.HEAD_K_FULL, 6, -1, -1, 0, 0),
    ]
    assert report.rows[0, 2] == 1


def test_a_fair_ring_still_tells_of_tail_when_head_has_filled_a_ring() -> None:
    ops = tuple(op(OpKind.SET_TABLE, rid=1, position=position, slot=10 + position % 2) for position in range(1, 4))
    flip = op(OpKind.FLIP_BYTES, slot=9)
    tags = {}
    for checks in ((), (StrictCheck.FAIR_RING,)):
        scenario = Scenario(slots=16, actors=(A, B), steps=STEPS, ops=(*ops, flip))
        config = CanaryConfig(real_data=PARTIAL, ring_capacity=12, strict_checks=checks, verify_token_assert=True)
        executor = CanaryExecutor(scenario.options(), config, get_backend("reference"))
        for step, _ in scenario.compile() * 5:
            executor.run(step, scenario.ops)
        kept = executor.kept_rows()
        assert len(kept) <= 12
        tags[checks] = np.unique(kept[:, 0], return_counts=True)[1].tolist()
    assert tags[()] != tags[(StrictCheck.FAIR_RING,)]
    # Half of the rows for each of the two launches that report.
    assert tags[(StrictCheck.FAIR_RING,)] == [6, 6]


def test_the_draft_model_runs_under_a_canary_of_its_own() -> None:
    options = small_options(**MECHANISMS["draft-pool"])
    victim = next(step for step in ServingEngine(options, shared_prefixes(6, 1)).steps() if step.prefix_lens.min() > 8)
    rid, position = int(victim.rids[0]), int(victim.prefix_lens[0])
    reports = []
    for group in ("draft", "full"):
        ops = (
            FaultOp.from_dict(
                {
                    "hook": "write", "kind": "shift_position", "step": victim.index, "until": victim.index + 1,
                    "group": group, "rid": rid, "position": position, "by": 1,
                }
            ),
        )  # fmt: skip
        executor = CanaryExecutor(options, CanaryConfig(), get_backend("numba"))
        for step in ServingEngine(options, shared_prefixes(6, 1)).steps():
            report = executor.run(step, ops)
            if step.index == victim.index:
                reports.append(report)
                break
    draft, target = reports
    assert (len(draft.rows), len(target.draft_rows)) == (0, 0)
    for rows in (draft.draft_rows, target.rows):
        assert {LaunchTag(row[0]).name for row in rows} == {"HEAD_K_FULL", "TAIL_K_FULL"}
        assert {row[7] for row in rows.tolist()} == {int(layout.FailReason.WRITE_POSITION)}
