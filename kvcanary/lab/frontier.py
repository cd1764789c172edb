"""What each canary configuration costs and finds in a campaign, and the answer in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.lab.campaign import CampaignPlan, CampaignRun, CellSummary
from kvcanary.layout import RealKvHashMode
from kvcanary.units import format_fraction, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCost:
    """One configuration over all faults of a campaign. verified_per_step: entries checked per forward; canary_s_per_step: measured seconds.

    on_frontier: no other configuration finds at least as many for at most as many seconds, with one of the two better.
    """

    config: str
    injected: int
    detected: int
    verified_per_step: float
    canary_s_per_step: float
    latency_p90: float | None
    on_frontier: bool

    @property
    def rate(self) -> float:
        """Share of injected faults that were reported; 0 where nothing was injected."""
        return self.detected / self.injected if self.injected else 0.0


def config_costs(plan: CampaignPlan, runs: Iterable[CampaignRun]) -> list[ConfigCost]:
    """One row per configuration that ran, in the order of the plan."""
    by_config: dict[str, list[CampaignRun]] = {name: [] for name in plan.configs}
    for run in runs:
        by_config[run.key[2]].append(run)
    rows = [_cost(name, mine) for name, mine in by_config.items() if mine]
    return [_with_frontier(row, rows) for row in rows]


def _cost(name: str, runs: Sequence[CampaignRun]) -> ConfigCost:
    injected = [run for run in runs if run.changed]
    latencies = [run.latency_steps for run in injected if run.latency_steps is not None]
    steps = max(1, sum(run.steps for run in runs))
    return ConfigCost(
        config=name,
        injected=len(injected),
        detected=len(latencies),
        verified_per_step=sum(run.verified for run in runs) / steps,
        canary_s_per_step=sum(run.canary_s for run in runs) / steps,
        latency_p90=float(np.percentile(latencies, 90)) if latencies else None,
        on_frontier=False,
    )


def _with_frontier(row: ConfigCost, rows: Sequence[ConfigCost]) -> ConfigCost:
    def beats(other: ConfigCost) -> bool:
        no_worse = other.rate >= row.rate and other.canary_s_per_step <= row.canary_s_per_step
        return no_worse and (other.rate > row.rate or other.canary_s_per_step < row.canary_s_per_step)

    values = {name: getattr(row, name) for name in ConfigCost.__slots__}
    return ConfigCost(**{**values, "on_frontier": not any(beats(other) for other in rows)})


def launch_words(config: CanaryConfig) -> str:
    """The configuration as SGLang's launch flags, and in words what has no launch flag."""
    parts = ["--kv-canary log"]
    if config.real_data is not RealKvHashMode.NONE:
        parts.append(f"--kv-canary-real-data {config.real_data.name.lower()}")
    if config.sweep_interval:
        parts.append(f"--kv-canary-sweep-interval {config.sweep_interval}")
    extra = [
        words
        for on, words in (
            (config.verify_v_half, "the V half"),
            (config.verify_token_assert, "the token check"),
            (config.write_input_assert, "the input check"),
            (config.strict, "kvcanary's strict checks"),
        )
        if on
    ]
    return " ".join(parts) + (f" with {', '.join(extra)}" if extra else "")


def sentence(plan: CampaignPlan, costs: Sequence[ConfigCost], cells: Iterable[CellSummary]) -> str:
    """Which configuration finds most, how soon, at what price, and what it can never see; says so when nothing was injected."""
    tried = [row for row in costs if row.injected]
    if not tried:
        return "No fault of this campaign found a victim, so there is nothing to compare."
    best = min(tried, key=lambda row: (-row.rate, row.canary_s_per_step))
    blind = sorted({f"{cell.kind}.{cell.variant}" for cell in cells if cell.config == best.config and not cell.visible})
    soon = "in the step of the fault" if not best.latency_p90 else f"within {best.latency_p90:g} steps"
    within = f", nine in ten of them {soon}," if best.detected else ""
    never = f"it can never see {len(blind)} of the {len(plan.faults)} faults" if blind else "no fault is out of its reach"
    named = f": {', '.join(blind[:4])}{' and others' if len(blind) > 4 else ''}" if blind else ""
    return (
        f"For these faults, {launch_words(plan.configs[best.config])} finds {format_fraction(best.rate)} of {best.injected} "
        f"injected{within} at {format_seconds(best.canary_s_per_step)} of canary per step; {never}{named}."
    )
