"""A campaign: rates with their doubt, latencies, reports without a fault, and runs that are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign import (
    ALL_FAULTS,
    DEFAULT_CONFIGS,
    STRICT_CONFIGS,
    CampaignPlan,
    CampaignRun,
    CellSummary,
    run_campaign,
    run_one,
    summarise,
    wilson,
)
from kvcanary.lab.campaign_tally import RECORDS_LEFT_BEHIND, RING_WAS_FULL
from kvcanary.layout import RealKvHashMode

FAULTS = (
    ("payload_bytes", "bit_flip"),
    ("payload_bytes", "just_written"),
    ("slot_alias", "cell_to_slot_0"),
    ("swa_eviction", "reused_inside_window"),
    ("slot_leak", "never_freed"),
)
CONFIGS = {
    "chain": CanaryConfig(),
    "partial": CanaryConfig(real_data=RealKvHashMode.PARTIAL),
    "strict": CanaryConfig(real_data=RealKvHashMode.PARTIAL, strict=True),
}
PLAN = CampaignPlan(faults=FAULTS, configs=CONFIGS, seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def backend() -> Backend:
    return choose_backend("auto")[0]


@pytest.fixture(scope="module")
def runs(backend: Backend) -> list[CampaignRun]:
    return list(run_campaign(PLAN, backend.name))


@pytest.fixture(scope="module")
def cells(runs: list[CampaignRun]) -> dict[tuple[str, str], CellSummary]:
    return {(cell.variant, cell.config): cell for cell in summarise(PLAN, runs)}


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (1, 1, 0.2065, 1.0),
        (0, 0, 0.0, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_every_run_injects_and_nothing_is_reported_before(runs: list[CampaignRun]) -> None:
    assert [run.key for run in runs] == PLAN.run_keys()
    assert len(runs) == 4 * 3 * 3
    assert all(run.record is not None and run.changed > 0 for run in runs)
    assert sum(run.false_reports for run in runs) == 0
    assert all(run.verified > 0 and run.canary_s > 0 for run in runs)


@pytest.mark.parametrize(
    ("variant", "config", "rate", "visible", "latency", "reports"),
    [
        ("bit_flip", "chain", 0.0, False, None, set()),
        ("bit_flip", "partial", 1.0, True, 0, {"TAIL verify_real_kv_hash"}),
        ("just_written", "partial", 1.0, True, 1, {"TAIL verify_real_kv_hash"}),
        ("cell_to_slot_0", "partial", 0.0, False, None, set()),
        ("cell_to_slot_0", "strict", 1.0, True, 0, {"STRICT zero_cell"}),
    ],
)
def test_cells(
    variant: str,
    config: str,
    rate: float,
    visible: bool,
    latency: int | None,
    reports: set[str],
    cells: dict[tuple[str, str], CellSummary],
) -> None:
    cell = cells[variant, config]
    assert (cell.injected, cell.rate, cell.visible, cell.latency_p50, cell.unexpected) == (3, rate, visible, latency, 0)
    assert set(cell.reports) == reports
    assert bool(cell.reason) != visible


def test_what_cannot_be_injected_has_a_reason_and_no_rate(cells: dict[tuple[str, str], CellSummary]) -> None:
    cell = cells["never_freed", "strict"]
    assert (cell.injected, cell.rate, cell.rate_low, cell.visible) == (0, None, None, False)
    assert "free + held + cached" in cell.reason


def test_the_window_fault_is_reported_by_the_window_group(runs: list[CampaignRun]) -> None:
    (run, *_) = (run for run in runs if run.key[0] == "swa_eviction")
    assert run.detected
    assert run.slots_flagged >= 1
    assert set(run.reports) >= {"HEAD verify_chain_hash", "TAIL verify_chain_hash"}


def test_a_stopped_campaign_goes_on_with_what_is_missing(backend: Backend, runs: list[CampaignRun]) -> None:
    done = {run.key for run in runs[:-2]}
    rest = list(run_campaign(PLAN, backend.name, done))
    assert [run.key for run in rest] == [run.key for run in runs[-2:]]
    assert [replace(run, canary_s=0.0) for run in rest] == [replace(run, canary_s=0.0) for run in runs[-2:]]


def test_tokens_computed_from_corrupt_kv_stop_counting_at_the_report(backend: Backend) -> None:
    seen, unseen = (run_one(PLAN, ("payload_bytes", "bit_flip", config, 0), backend) for config in ("partial", "chain"))
    assert seen.record == unseen.record
    assert 0 < seen.corrupt_tokens < unseen.corrupt_tokens
    assert seen.requests_flagged >= 1
    assert unseen.requests_flagged == 0


def test_alarms_before_the_fault_are_counted_apart(backend: Backend) -> None:
    """With a host tier whose records stay behind, the canary cries before anything is broken."""
    options = replace(PLAN.options, pool_slot_count=160, host_slot_count=320)
    plan = replace(PLAN, faults=(("payload_bytes", "bit_flip"),), options=options, start_step=60)
    silent = replace(plan, configs={"chain": CanaryConfig(records_follow=True)})
    (loud_cell,), (silent_cell,) = (
        summarise(one, [run_one(one, key, backend) for key in one.run_keys()])
        for one in (replace(plan, configs={"chain": CanaryConfig()}), silent)
    )
    assert loud_cell.false_reports > 0
    # SGLang's own: the KV that came back is right, its records stayed behind.
    assert set(loud_cell.false_causes) == {RECORDS_LEFT_BEHIND, RING_WAS_FULL}
    assert sum(loud_cell.false_causes.values()) == loud_cell.false_reports
    assert loud_cell.false_causes[RING_WAS_FULL] <= loud_cell.rows_lost
    assert (silent_cell.false_reports, silent_cell.false_causes) == (0, {})


def test_latency_in_tokens_coverage_and_cost(cells: dict[tuple[str, str], CellSummary], runs: list[CampaignRun]) -> None:
    late, soon = cells["just_written", "partial"], cells["bit_flip", "partial"]
    assert late.latency_tokens_p50 is not None
    assert soon.latency_tokens_p50 is not None
    # One forward more is in the latency of what is reported a step later.
    assert late.latency_tokens_p50 > soon.latency_tokens_p50 > 0
    assert soon.slots_flagged_p50 == 1
    assert soon.requests_flagged_p50 is not None
    assert soon.requests_flagged_p50 >= 1
    assert soon.coverage_p50 is not None
    assert 0.3 < soon.coverage_p50 < 1
    mine = [run for run in runs if run.key[:3] == ("payload_bytes", "bit_flip", "partial")]
    assert soon.verified_per_step == sum(run.verified for run in mine) / sum(run.steps for run in mine)
    assert soon.canary_s_per_step > 0


def test_a_sweep_covers_what_only_the_tree_holds(backend: Backend) -> None:
    key = ("payload_bytes", "bit_flip", "sweep", 0)
    swept, plain = (
        run_one(replace(PLAN, configs={"sweep": CanaryConfig(sweep_interval=interval)}), key, backend).coverage for interval in (1, 0)
    )
    assert plain is not None
    # The tokens of the last step are in use and were never verified.
    assert swept is not None
    assert plain < swept < 1


def test_every_strict_check_has_a_column_that_adds_what_it_says(backend: Backend) -> None:
    faults = (
        ("slot_alias", "cell_to_slot_0"),
        ("slot_alias", "seed_at_slot_0"),
        ("payload_bytes", "other_layer"),
        ("payload_bytes", "later_bytes"),
    )
    configs = {"partial": DEFAULT_CONFIGS["partial"], **STRICT_CONFIGS}
    plan = CampaignPlan(faults=faults, configs=configs, seeds=(0, 1))
    cells = {(cell.variant, cell.config): cell for cell in summarise(plan, run_campaign(plan, backend.name))}
    added = {
        config: {variant for _, variant in faults if (cells[variant, config].rate or 0) > (cells[variant, "partial"].rate or 0)}
        for config in STRICT_CONFIGS
    }
    assert added == {
        "partial + zero cell": {"cell_to_slot_0"},
        "partial + zero seed": set(),
        "partial + more layers": {"other_layer"},
        "partial + more bytes": {"later_bytes"},
        "partial + details": set(),
        "partial + fair ring": set(),
    }
    # SGLang sees a seed at slot 0 as an odd position; only the strict rule names it.
    assert set(cells["seed_at_slot_0", "partial"].reports) == {"HEAD write_position", "TAIL write_position"}
    assert "STRICT zero_seed" in cells["seed_at_slot_0", "partial + zero seed"].reports
    assert sum(cell.unexpected for cell in cells.values()) == 0


def test_a_run_whose_fault_changed_nothing_is_no_trial(runs: list[CampaignRun]) -> None:
    first, *rest = (run for run in runs if run.key[:3] == ("payload_bytes", "bit_flip", "partial"))
    cell = next(
        found for found in summarise(PLAN, [replace(first, changed=0), *rest]) if (found.variant, found.config) == ("bit_flip", "partial")
    )
    assert (cell.injected, cell.detected) == (2, 2)


def test_the_default_plan_holds_every_fault_and_six_configurations() -> None:
    plan = CampaignPlan()
    assert plan.faults == ALL_FAULTS
    assert (len(plan.configs), len(plan.seeds)) == (6, 10)
    assert plan.configs == DEFAULT_CONFIGS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"faults": ()}, "faults must not be empty"),
        ({"seeds": ()}, "seeds must not be empty"),
        ({"faults": (("rain", "x"),)}, "fault must be one of"),
    ],
)
def test_illegal_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CampaignPlan(**changes)
