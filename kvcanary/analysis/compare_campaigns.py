"""Two fault campaigns beside each other: what each configuration finds of each kind of fault, and what it costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kvcanary.analysis.bootstrap import Interval, median_interval
from kvcanary.analysis.compare import FALSE_ALARMS, count_outcomes, judge_limit
from kvcanary.lab.campaign_plan import CampaignRun
from kvcanary.lab.records import Verdict
from kvcanary.units import format_fraction

_Cell = tuple[str, str, str]
_Runs = Mapping[_Cell, Sequence[CampaignRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Faults that were reported, of those that were injected."""

    detected: int
    injected: int

    def __str__(self) -> str:
        """'27 of 30'."""
        return f"{self.detected} of {self.injected}"

    @property
    def value(self) -> float:
        """The share, 0 where nothing was injected."""
        return self.detected / self.injected if self.injected else 0.0

    def bounds(self, z: float) -> tuple[float, float]:
        """Wilson score interval with continuity correction; (0, 1) where nothing was injected."""
        n, p, square = self.injected, self.value, z * z
        if not n:
            return 0.0, 1.0
        below = z * math.sqrt(max(0.0, square - 2 - 1 / n + 4 * p * (n * (1 - p) + 1)))
        above = z * math.sqrt(max(0.0, square + 2 - 1 / n + 4 * p * (n * (1 - p) - 1)))
        low, high = ((2 * n * p + square - 1 - below) / (2 * (n + square)), (2 * n * p + square + 1 + above) / (2 * (n + square)))
        # At the ends the formula does not hold; nothing lies beyond them.
        return 0.0 if self.detected == 0 else max(0.0, low), 1.0 if self.detected == n else min(1.0, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One kind of fault under one configuration in both campaigns, over the variants that both ran. low, high: of after minus before."""

    kind: str
    config: str
    before: Rate
    after: Rate
    low: float
    high: float
    z: float

    @property
    def name(self) -> str:
        """'payload_bytes · partial, sweep 10'."""
        return f"{self.kind} · {self.config}"

    @property
    def difference(self) -> float:
        """Rate of the second campaign minus that of the first."""
        return self.after.value - self.before.value

    @property
    def compared(self) -> bool:
        """Whether both campaigns injected anything."""
        return bool(self.before.injected and self.after.injected)

    @property
    def outcome(self) -> str:
        """finds more, finds less, no difference shown, or nothing injected."""
        if not self.compared:
            return "nothing injected"
        if self.low <= 0 <= self.high:
            return "no difference shown"
        return "finds more" if self.low > 0 else "finds less"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One configuration in both campaigns: median seconds of the canary per step, entries verified per step, and the ratio of speeds.

    ratio is the median over runs of the same fault and seed, above 1 where the second is faster, with the interval of that median.
    """

    config: str
    before_s: float
    after_s: float
    before_verified: float
    after_verified: float
    ratio: float
    interval: Interval

    @property
    def outcome(self) -> str:
        """faster, slower, no difference shown, or too few repeats."""
        return self.interval.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignComparison:
    """Rates and costs of what both campaigns ran; cells (fault variant and configuration) that one alone ran; the level of an interval."""

    rates: tuple[RateRow, ...]
    costs: tuple[CostRow, ...]
    only_before: int
    only_after: int
    level: float

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if not self.rates:
            return "The two have no fault and configuration in common, so there is nothing to compare."
        left = self.only_before + self.only_after
        found = count_outcomes(self.rates, ("finds less", "finds more", "no difference shown", "nothing injected"))
        spent = count_outcomes(self.costs, ("slower", "faster", "no difference shown", "too few repeats"))
        text = f"{len(self.rates)} detection rates compared: {found}."
        text += f" {len(self.costs)} configurations by time per step: {spent}." if self.costs else ""
        return text + (f" {left} more cells ran in one of the two alone." if left else "")


def compare_campaigns(before: Sequence[CampaignRun], after: Sequence[CampaignRun]) -> CampaignComparison:
    """Runs of two campaigns. A rate has an interval for its difference, a cost for its ratio.

    Campaigns with the same seeds serve the same requests; the interval of a rate does not count on that, which makes it the wider one.
    The ratio of costs is over runs of the same fault, variant and seed. All intervals together hold, as in `compare.compare`, and are the
    same at every call.
    """
    first, second = _by_cell(before), _by_cell(after)
    common = [cell for cell in first if cell in second]
    groups = list(dict.fromkeys((kind, config) for kind, _, config in common))
    configs = list(dict.fromkeys(config for _, _, config in common))
    level = 1 - FALSE_ALARMS / max(1, len(groups) + len(configs))
    return CampaignComparison(
        rates=tuple(_rate_row(group, common, first, second, level) for group in groups),
        costs=tuple(row for config in configs if (row := _cost_row(config, common, first, second, level)) is not None),
        only_before=sum(cell not in second for cell in first),
        only_after=sum(cell not in first for cell in second),
        level=level,
    )


def judge_campaigns(comparison: CampaignComparison, limit: float) -> tuple[Verdict, str]:
    """Whether the second campaign keeps at least `limit` of each detection rate and of each configuration's speed.

    As `compare.judge`: fail where an interval lies below as a whole, partial where a figure does and its interval does not, or where one
    side injected nothing. No rate exceeds 1, so a limit above 1 asks of rates that they stay.
    """
    if not comparison.costs and not any(row.compared for row in comparison.rates):
        return Verdict.NOT_RUN, comparison.sentence
    share = min(limit, 1.0)
    rows = [
        (describe_rate(row), row.after.value - share * row.before.value, _scaled(row, share)[1])
        if row.compared
        else (describe_rate(row), -math.inf, math.inf)
        for row in comparison.rates
    ]
    rows += [
        (describe_cost(row), row.ratio - limit, row.interval.high - limit if row.interval.enough else math.inf) for row in comparison.costs
    ]
    return judge_limit(rows, limit, comparison.sentence, comparison.only_before + comparison.only_after, "rates and speeds")


def describe_rate(row: RateRow) -> str:
    """'payload_bytes under partial found 20 of 30, before 30 of 30'."""
    return f"{row.kind} under {row.config} found {row.after}, before {row.before}"


def describe_cost(row: CostRow) -> str:
    """'partial at 0.81 (0.78 to 0.85) of the speed'."""
    return f"{row.config} at {row.ratio:.2f} ({row.interval.low:.2f} to {row.interval.high:.2f}) of the speed"


def campaign_level_sentence() -> str:
    """How the intervals are to be read."""
    return (
        "Rates: after minus before. Ratios of speeds: the median over runs of the same fault and seed, above 1 the second is faster. All "
        f"intervals together hold with {format_fraction(1 - FALSE_ALARMS)}; the seeds are the repeats, so more of them narrow an interval."
    )


def _by_cell(runs: Sequence[CampaignRun]) -> _Runs:
    found: dict[_Cell, list[CampaignRun]] = defaultdict(list)
    for run in runs:
        found[run.key[:3]].append(run)
    return dict(found)


def _rate_row(group: tuple[str, str], common: Sequence[_Cell], first: _Runs, second: _Runs, level: float) -> RateRow:
    kind, config = group
    cells = [cell for cell in common if (cell[0], cell[2]) == group]
    z = NormalDist().inv_cdf((1 + level) / 2)
    row = RateRow(kind=kind, config=config, before=_rate(first, cells), after=_rate(second, cells), low=-1.0, high=1.0, z=z)
    low, high = _scaled(row, 1.0)
    return RateRow(kind=kind, config=config, before=row.before, after=row.after, low=low, high=high, z=z)


def _rate(runs: _Runs, cells: Sequence[_Cell]) -> Rate:
    injected = [run for cell in cells for run in runs[cell] if run.changed]
    return Rate(detected=sum(run.detected for run in injected), injected=len(injected))


def _scaled(row: RateRow, factor: float) -> tuple[float, float]:
    """Interval of the second rate minus factor times the first one (Newcombe 1998, method 11; Donner and Zou 2012 for a factor).

    Without the continuity correction it is too narrow for a few seeds at the levels that many rates at once ask for.
    """
    (low_1, high_1), (low_2, high_2) = row.before.bounds(row.z), row.after.bounds(row.z)
    first, second = row.before.value, row.after.value
    centre = second - factor * first
    below = math.hypot(second - low_2, factor * (high_1 - first))
    above = math.hypot(high_2 - second, factor * (first - low_1))
    return centre - below, centre + above


def _cost_row(config: str, common: Sequence[_Cell], first: _Runs, second: _Runs, level: float) -> CostRow | None:
    """None where no run of the one has its like in the other."""
    cells = [cell for cell in common if cell[2] == config]
    before = {run.key: run for cell in cells for run in first[cell] if run.canary_s > 0}
    after = {run.key: run for cell in cells for run in second[cell] if run.canary_s > 0}
    keys = [key for key in before if key in after]
    if not keys:
        return None
    seconds = [np.array([side[key].canary_s / side[key].steps for key in keys]) for side in (before, after)]
    entries = [[side[key].verified / side[key].steps for key in keys] for side in (before, after)]
    ratios = seconds[0] / seconds[1]
    return CostRow(
        config=config, before_s=float(np.median(seconds[0])), after_s=float(np.median(seconds[1])),
        before_verified=float(np.mean(entries[0])), after_verified=float(np.mean(entries[1])),
        ratio=float(np.median(ratios)), interval=median_interval(ratios.tolist(), level=level),
    )  # fmt: skip
