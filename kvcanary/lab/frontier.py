"""What each canary configuration costs and finds in a campaign, and the answer in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvcanary.config.settings import flag_text
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.lab.campaign import CampaignPlan, CampaignRun, CellSummary
from kvcanary.lab.campaign_plan import canary_s_per_step
from kvcanary.layout import RealKvHashMode
from kvcanary.units import format_fraction, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCost:
    """One configuration over all faults of a campaign. verified_per_step: entries checked per forward, a mean; canary_s_per_step: measured
    seconds, as in `campaign_plan.canary_s_per_step`.

    Latencies are over the reported faults: steps, and tokens that all requests computed from the fault to the report.

    on_frontier: no other configuration finds at least as many for at most as many seconds, with one of the two better.
    """

    config: str
    injected: int
    detected: int
    verified_per_step: float
    canary_s_per_step: float
    latency_p90: float | None
    on_frontier: bool
    latency_tokens_p90: float | None = None
    latency_p50: float | None = None
    latency_tokens_p50: float | None = None

    @property
    def rate(self) -> float:
        """Share of injected faults that were reported; 0 where nothing was injected."""
        return self.detected / self.injected if self.injected else 0.0


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """How soon a configuration reports, in one unit: part of the injected faults (shares) that were reported within (within) so many steps
    or tokens of the fault, both ascending. p50, p90: percentiles over the reported ones, None without any.
    """

    config: str
    injected: int
    within: tuple[int, ...]
    shares: tuple[float, ...]
    p50: float | None = None
    p90: float | None = None

    def share_at(self, value: float) -> float:
        """The curve at a value: what was reported by then."""
        return max((share for at, share in zip(self.within, self.shares, strict=True) if at <= value), default=0.0)


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
    tokens = [run.latency_tokens for run in injected if run.latency_tokens is not None]
    steps = max(1, sum(run.steps for run in runs))
    return ConfigCost(
        config=name,
        injected=len(injected),
        detected=len(latencies),
        verified_per_step=sum(run.verified for run in runs) / steps,
        canary_s_per_step=canary_s_per_step(runs),
        latency_p90=_percentile(latencies, 90),
        on_frontier=False,
        latency_tokens_p90=_percentile(tokens, 90),
        latency_p50=_percentile(latencies, 50),
        latency_tokens_p50=_percentile(tokens, 50),
    )


def _percentile(values: Sequence[int], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _with_frontier(row: ConfigCost, rows: Sequence[ConfigCost]) -> ConfigCost:
    def beats(other: ConfigCost) -> bool:
        no_worse = other.rate >= row.rate and other.canary_s_per_step <= row.canary_s_per_step
        return no_worse and (other.rate > row.rate or other.canary_s_per_step < row.canary_s_per_step)

    values = {name: getattr(row, name) for name in ConfigCost.__slots__}
    return ConfigCost(**{**values, "on_frontier": not any(beats(other) for other in rows)})


def by_cost(costs: Sequence[ConfigCost]) -> list[ConfigCost]:
    """Cheapest first, by measured seconds."""
    return sorted(costs, key=lambda row: row.canary_s_per_step)


def best_cost(plan: CampaignPlan, costs: Sequence[ConfigCost]) -> ConfigCost | None:
    """What finds most, of equals the cheapest; what SGLang itself can be started with comes before strict. None without an injection."""
    tried = [row for row in costs if row.injected]
    own = [row for row in tried if not plan.configs[row.config].strict] or tried
    return min(own, key=lambda row: (-row.rate, row.canary_s_per_step), default=None)


def latency_curves(
    plan: CampaignPlan, runs: Iterable[CampaignRun], configs: Sequence[str], *, by_tokens: bool = False
) -> list[LatencyCurve]:
    """One curve per configuration of `configs`, in that order: a point per step that a run goes on after its fault, or by_tokens a point
    wherever something was reported, from no token up to the last of all curves.
    """
    injected: dict[str, list[int | None]] = {name: [] for name in configs}
    for run in runs:
        if run.changed and run.key[2] in injected:
            injected[run.key[2]].append(run.latency_tokens if by_tokens else run.latency_steps)
    found = {name: sorted(value for value in values if value is not None) for name, values in injected.items()}
    last = max((values[-1] for values in found.values() if values), default=0)
    curves = []
    for name, values in found.items():
        within = tuple(sorted({0, *values, last})) if by_tokens else tuple(range(plan.steps_after + 1))
        reported = np.searchsorted(values, within, side="right") / max(1, len(injected[name]))
        p50, p90 = _percentile(values, 50), _percentile(values, 90)
        curves.append(LatencyCurve(name, len(injected[name]), within, tuple(reported.tolist()), p50, p90))
    return curves


def launch_settings(config: CanaryConfig) -> str:
    """The configuration as SGLang takes it: environment assignments, then flags. Strict checks have neither."""
    switches = {name: getattr(config, name) for name in ("verify_v_half", "verify_token_assert", "write_input_assert")}
    environment = [flag_text(name, True) for name, on in switches.items() if on]
    if config.write_input_assert:
        environment.append("SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1")
    flags = [flag_text("mode", "log")]
    if config.real_data is not RealKvHashMode.NONE:
        flags.append(flag_text("real_data", config.real_data.name.lower()))
    if config.sweep_interval:
        flags.append(flag_text("sweep_interval", config.sweep_interval))
    return " ".join((*environment, *flags))


def launch_words(config: CanaryConfig) -> str:
    """The configuration as launch flags, and in words what is set by the environment or not by SGLang at all."""
    flags = launch_settings(replace(config, verify_v_half=False, verify_token_assert=False, write_input_assert=False))
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
    return flags + (f" with {', '.join(extra)}" if extra else "")


def headline(plan: CampaignPlan, costs: Sequence[ConfigCost], cells: Iterable[CellSummary]) -> str:
    """The campaign in a sentence: how much SGLang's cheapest and best configurations report, what strict adds, and what none can see."""
    listed, best = list(cells), best_cost(plan, costs)
    if best is None:
        return "No fault found a victim, so there is nothing to compare."
    tried = [row for row in by_cost(costs) if row.injected]
    cheapest = next((row for row in tried if not plan.configs[row.config].strict), best)
    span = "" if cheapest.config == best.config else f"from {format_fraction(cheapest.rate)} ({cheapest.config}) to "
    stricter = [row.rate for row in tried if plan.configs[row.config].strict and row.rate > best.rate]
    added = f", kvcanary's strict checks {format_fraction(max(stricter))}" if stricter else ""
    seen = {(cell.kind, cell.variant) for cell in listed if cell.visible and not plan.configs[cell.config].strict}
    blind = len({(cell.kind, cell.variant) for cell in listed} - seen)
    missed = sum(cell.outcome == "missed" for cell in listed)
    return (
        f"The canary reports {span}{format_fraction(best.rate)} ({best.config}) of the injected faults{added}. {blind} of {len(plan.faults)} "
        f"faults are out of reach of every setting here that SGLang has; {missed} of {len(listed)} cells missed a fault within reach."
    )


def sentence(plan: CampaignPlan, costs: Sequence[ConfigCost], cells: Iterable[CellSummary]) -> str:
    """What SGLang's best configuration finds, and what strict checks would add; says so when nothing was injected."""
    best, listed = best_cost(plan, costs), list(cells)
    if best is None:
        return "No fault of this campaign found a victim, so there is nothing to compare."
    better = [row for row in costs if plan.configs[row.config].strict and row.rate > best.rate]
    added = f" With kvcanary's strict checks it would be {format_fraction(better[0].rate)}." if better else ""
    return answer(plan, best, listed) + added


def answer(plan: CampaignPlan, row: ConfigCost, cells: Iterable[CellSummary]) -> str:
    """One configuration in a sentence: what it finds, how soon, at what price, and what it can never see."""
    blind = [f"{cell.kind}.{cell.variant}" for cell in cells if cell.config == row.config and not cell.visible]
    soon = "in the step of the fault" if not row.latency_p90 else f"within {row.latency_p90:g} steps"
    within = f", nine in ten of them {soon}," if row.detected else ""
    never = f"it can never see {len(blind)} of the {len(plan.faults)} faults" if blind else "no fault is out of its reach"
    named = f": {', '.join(blind[:4])}{' and others' if len(blind) > 4 else ''}" if blind else ""
    return (
        f"For these faults, {launch_words(plan.configs[row.config])} finds {format_fraction(row.rate)} of {row.injected} injected{within} "
        f"at {format_seconds(row.canary_s_per_step)} of canary per step, {format_fraction(row.canary_s_per_step / plan.options.step_s)} of a "
        f"step of {format_seconds(plan.options.step_s)}; {never}{named}."
    )
