"""What a benchmark measures: one point per workload, its operations as timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

SAMPLE_LIMIT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One operation: quantiles of its seconds over `repeats`, the items it handled and the bytes it moved each time.

    samples_s holds single repeats in the order in which they ran, at most SAMPLE_LIMIT of them and evenly spread, so that two runs can be
    compared with an interval; runs of before version 2 have none.
    """

    p20_s: float
    p50_s: float
    p80_s: float
    repeats: int
    items: int
    bytes_moved: int
    samples_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, times_s: Sequence[float], *, items: int, bytes_moved: int) -> Self:
        """Quantiles and samples of measured seconds."""
        p20, p50, p80 = (float(value) for value in np.quantile(times_s, (0.2, 0.5, 0.8)))
        kept = np.unique(np.linspace(0, len(times_s) - 1, min(len(times_s), SAMPLE_LIMIT)).round().astype(int))
        # A tenth of a nanosecond is below every clock's step, and keeps the stored number short.
        samples = tuple(round(float(times_s[index]), 10) for index in kept)
        return cls(
            p20_s=p20, p50_s=p50, p80_s=p80, repeats=len(times_s), items=items, bytes_moved=bytes_moved, samples_s=samples
        )  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of asdict."""
        return cls(**{**values, "samples_s": tuple(values.get("samples_s", ()))})

    @property
    def items_per_s(self) -> float:
        """Items per second at the median."""
        return self.items / self.p50_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second at the median."""
        return self.bytes_moved / self.p50_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured workload. `stamp` and `verify` are timed apart; a bound moves the same bytes without hashing, in the same run.

    workload: decode, prefill or sweep; layout: contiguous or shuffled slots; batch requests with `prefix` tokens each. warm_up_s is the
    first call, which the quantiles leave out. stamp and verify are TAIL launches; head_stamp and head_verify are measured where they differ
    from them, which is where TAIL hashes real KV. plan is the one launch per forward that finds the slots. On an accelerator that captures
    graphs, stamp_graph and verify_graph are the same launches replayed from a graph. halves is 2 where the V half has launches of its own.
    """

    workload: str
    layout: str
    hash_mode: str
    batch: int
    prefix: int
    stamp: Timing | None = None
    stamp_bound: Timing | None = None
    verify: Timing | None = None
    verify_bound: Timing | None = None
    plan: Timing | None = None
    head_stamp: Timing | None = None
    head_verify: Timing | None = None
    stamp_graph: Timing | None = None
    verify_graph: Timing | None = None
    warm_up_s: float = 0.0
    halves: int = 1

    @property
    def forward_s(self) -> float | None:
        """Predicted canary time of one forward of the full group: plan once, then for each half HEAD and TAIL each verify and stamp.

        The K half is measured and the V half taken to be like it. None for a sweep, which is no forward. A batch without prefix has nothing
        to verify.
        """
        if self.workload == "sweep" or self.stamp is None or (self.prefix and self.verify is None):
            return None
        launches = (self.head_verify or self.verify, self.head_stamp or self.stamp, self.verify, self.stamp)
        half_s = sum(launch.p50_s for launch in launches if launch is not None)
        return self.halves * half_s + (self.plan.p50_s if self.plan is not None else 0.0)

    def share_of_bound(self, op: str) -> float | None:
        """Median of the bound over the median of the operation, 1.0 is the limit; None where not measured."""
        timing: Timing | None = getattr(self, op)
        bound: Timing | None = getattr(self, f"{op}_bound")
        return None if timing is None or bound is None else bound.p50_s / timing.p50_s

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of asdict."""
        timings = {name: Timing.from_dict(values[name]) for name in _TIMINGS if values.get(name)}
        return cls(**{**values, **timings})


_TIMINGS = ("stamp", "stamp_bound", "verify", "verify_bound", "plan", "head_stamp", "head_verify", "stamp_graph", "verify_graph")
