"""Intervals of a ratio of two medians, by bootstrap, and of a single median, over repeats that may depend on the ones before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 20_000
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Interval of a ratio; `enough` is false where so few repeats can show no difference at this level."""

    low: float
    high: float
    enough: bool

    @property
    def excludes_one(self) -> bool:
        """Whether a difference is shown."""
        return self.enough and not self.low <= 1 <= self.high

    @property
    def outcome(self) -> str:
        """Of a ratio of rates: faster, slower, no difference shown, or too few repeats."""
        if not self.enough:
            return "too few repeats"
        if not self.excludes_one:
            return "no difference shown"
        return "faster" if self.low > 1 else "slower"


def ratio_interval(above: Sequence[float], below: Sequence[float], *, level: float, rng: np.random.Generator) -> Interval:
    """Percentile bootstrap interval, of `level`, of median(above) / median(below); both samples in the order they were measured.

    Raises ValueError for an empty sample or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    draws = []
    for sample in (above, below):
        values = np.asarray(sample, dtype=np.float64)
        if not len(values):
            raise ValueError("a median needs at least one repeat")
        draws.append(_bootstrap_medians(values, rng))
    tail = (1 - level) / 2
    low, high = np.quantile(draws[0] / draws[1], (tail, 1 - tail))
    counts = [effective_count(np.asarray(sample, dtype=np.float64)) for sample in (above, below)]
    return Interval(low=float(low), high=float(high), enough=_can_differ(*counts, alpha=1 - level))


def median_interval(values: Sequence[float], *, level: float) -> Interval:
    """Interval, of `level`, of the median from the values' own order (the sign test's); values in the order they were measured.

    Exact for independent values, so that a few of them are enough; dependent ones count as `effective_count` says. Raises ValueError for
    an empty sample or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ordered):
        raise ValueError("a median needs at least one repeat")
    count = math.floor(effective_count(np.asarray(values, dtype=np.float64)))
    rank = _tail_rank(count, (1 - level) / 2)
    outside = max(0, rank - 1) * len(ordered) // count
    return Interval(low=float(ordered[outside]), high=float(ordered[-1 - outside]), enough=rank > 0)


def _tail_rank(count: int, tail: float) -> int:
    """The largest rank whose value lies above the median in at most `tail` of all cases; 0 when even the smallest one does more often."""
    probability = 0.0
    for below in range(count // 2 + 1):
        probability += math.exp(math.lgamma(count + 1) - math.lgamma(below + 1) - math.lgamma(count - below + 1) - count * math.log(2))
        if probability > tail:
            return below
    return count // 2


def effective_count(values: _Floats) -> float:
    """Independent repeats that tell as much about the median as these, between 1 and their number.

    A machine that is slow stays slow for a while, and repeats that follow each other share that. n / (1 + 2 sum of autocorrelations) of
    "is above the median", summed up to the first that is not positive (Geyer's initial positive sequence, one term at a time).
    """
    count = len(values)
    above = (values > np.median(values)).astype(np.float64)
    above -= above.mean()
    power = float(above @ above)
    if power == 0:
        return float(count)
    total = 0.0
    for lag in range(1, count):
        correlation = float(above[:-lag] @ above[lag:]) / power
        if correlation <= 0:
            break
        total += correlation
    return max(1.0, count / (1 + 2 * total))


def _bootstrap_medians(values: _Floats, rng: np.random.Generator) -> _Floats:
    """Medians of DRAWS resamples.

    Nothing is resampled: the middle one of n uniform numbers is Beta((n + 1) / 2, (n + 1) / 2), and it says which of the sorted values is
    the resample's median. The same with the effective count takes the dependence between repeats into account.
    """
    shape = (effective_count(values) + 1) / 2
    index = (rng.beta(shape, shape, size=DRAWS) * len(values)).astype(np.int64)
    return np.sort(values)[np.minimum(index, len(values) - 1)]


def _can_differ(first: float, second: float, *, alpha: float) -> bool:
    """Whether two samples of one distribution lie wholly apart in less than `alpha` of all cases: 2 / C(first + second, first)."""
    combinations = math.lgamma(first + second + 1) - math.lgamma(first + 1) - math.lgamma(second + 1)
    return math.log(2) - combinations < math.log(alpha)
