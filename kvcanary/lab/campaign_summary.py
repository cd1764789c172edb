"""The runs of a campaign as cells: rates with their doubt, latencies, blast radius, coverage and cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import find, reach
from kvcanary.lab.campaign_plan import CampaignPlan, CampaignRun, canary_s_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """Runs of one fault under one configuration. rate with its 95 % Wilson interval, over runs whose fault changed something.

    visible, certain and reason come from the catalogue: a cell that is not visible is out of reach, not missed. unexpected counts
    reports of such a cell: something that the catalogue does not know. Percentiles are over the detected runs, medians over the injected
    ones, cost over all: entries as a mean, seconds as in `campaign_plan.canary_s_per_step`.
    """

    kind: str
    variant: str
    config: str
    visible: bool
    certain: bool
    reason: str
    injected: int
    detected: int
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    latency_p50: float | None
    latency_p90: float | None
    corrupt_tokens_p50: float | None
    reports: Mapping[str, int]
    false_reports: int
    unexpected: int
    latency_tokens_p50: float | None = None
    latency_tokens_p90: float | None = None
    slots_flagged_p50: float | None = None
    requests_flagged_p50: float | None = None
    coverage_p50: float | None = None
    rows_lost: int = 0
    skipped: int = 0
    false_causes: Mapping[str, int] = field(default_factory=dict)
    verified_per_step: float = 0.0
    canary_s_per_step: float = 0.0
    runs: int = 0

    @property
    def outcome(self) -> str:
        """The cell in a word: the rate, 'missed', 'out of reach'; where nothing was injected 'no victim', or 'not run' so far."""
        if not self.visible and not self.unexpected:
            return "out of reach"
        if self.rate is None:
            return "no victim" if self.runs else "not run"
        return f"{self.rate * 100:.0f} %" if self.detected else "missed"


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a rate; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    z = 1.959963984540054
    centre = successes + z * z / 2
    spread = z * math.sqrt(successes * (trials - successes) / trials + z * z / 4)
    return max(0.0, (centre - spread) / (trials + z * z)), min(1.0, (centre + spread) / (trials + z * z))


def summarise(plan: CampaignPlan, runs: Iterable[CampaignRun]) -> list[CellSummary]:
    """One summary per fault and configuration of the plan, faults that cannot be injected included; cells without runs have no rate."""
    by_cell: dict[tuple[str, str, str], list[CampaignRun]] = defaultdict(list)
    for run in runs:
        by_cell[run.key[:3]].append(run)
    return [
        _summary(kind, variant, name, config, by_cell[kind, variant, name])
        for kind, variant in plan.faults
        for name, config in plan.configs.items()
    ]


def _summary(kind: str, variant: str, name: str, config: CanaryConfig, runs: Sequence[CampaignRun]) -> CellSummary:
    here = reach(find(kind, variant), config)
    injected = [run for run in runs if run.changed]
    found = [run for run in injected if run.detected]
    low, high = wilson(len(found), len(injected))
    steps = max(1, sum(run.steps for run in runs))
    return CellSummary(
        kind=kind,
        variant=variant,
        config=name,
        visible=here.visible,
        certain=here.certain,
        reason=here.reason,
        injected=len(injected),
        detected=len(found),
        rate=len(found) / len(injected) if injected else None,
        rate_low=low if injected else None,
        rate_high=high if injected else None,
        latency_p50=_percentile([run.latency_steps for run in found], 50),
        latency_p90=_percentile([run.latency_steps for run in found], 90),
        corrupt_tokens_p50=_percentile([run.corrupt_tokens for run in injected], 50),
        reports=_sum(run.reports for run in found),
        false_reports=sum(run.false_reports for run in runs),
        unexpected=0 if here.visible else len(found),
        latency_tokens_p50=_percentile([run.latency_tokens for run in found], 50),
        latency_tokens_p90=_percentile([run.latency_tokens for run in found], 90),
        slots_flagged_p50=_percentile([run.slots_flagged for run in found], 50),
        requests_flagged_p50=_percentile([run.requests_flagged for run in found], 50),
        coverage_p50=_percentile([run.coverage for run in injected], 50),
        rows_lost=sum(run.rows_lost for run in runs),
        skipped=sum(run.skipped for run in runs),
        false_causes=_sum(run.false_causes for run in runs),
        verified_per_step=sum(run.verified for run in runs) / steps,
        canary_s_per_step=canary_s_per_step(runs),
        runs=len(runs),
    )


def _percentile(values: Iterable[float | None], percent: float) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.percentile(known, percent)) if known else None


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
