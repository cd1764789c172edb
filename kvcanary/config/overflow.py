"""Forecast of skipped verification: requests that share a prefix verify it once each, so one forward can need more rows than it has.

A forward verifies every cached token of every running request. Shared slots count once in the pool but once per request here, and the
plan holds 3 x pool slots rows (VERIFY_CAPACITY_FACTOR). When the sum is larger, SGLang turns verification off for that forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvcanary.errors import ConfigError
from kvcanary.layout import VERIFY_CAPACITY_FACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroup:
    """`requests` running requests that have the same first `shared_tokens` and then `own_tokens` each that nobody shares."""

    requests: int
    shared_tokens: int
    own_tokens: int

    def __post_init__(self) -> None:
        for name in ("requests", "shared_tokens", "own_tokens"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowForecast:
    """What one decode forward of a sharing pattern needs.

    `rows` are verify rows, `capacity` what the plan holds, `slots` the pool slots the pattern takes, `pool_slots` what there are.
    `skipped` says whether verification is off for that forward; `fits` whether the pattern can run at all. A pattern that does not fit is
    preempted before it gets there. `skip_from_requests` is the smallest number of requests per group at which verification is skipped
    while the pattern still fits, `skip_from_prefix` the smallest shared prefix at the given number of requests; None: never.
    """

    rows: int
    capacity: int
    slots: int
    pool_slots: int
    skipped: bool
    fits: bool
    skip_from_requests: int | None
    skip_from_prefix: int | None
    formula: str
    text: str


def pattern_slots(groups: Sequence[PrefixGroup], page_size: int = 1, step_tokens: int = 1) -> int:
    """Pool slots the groups take during a forward that adds `step_tokens` per request; a prefix is shared by whole pages only."""
    total = 0
    for group in groups:
        if not group.requests:
            continue
        shared = group.shared_tokens // page_size * page_size
        own = group.own_tokens + group.shared_tokens - shared + step_tokens
        total += shared + group.requests * ceil(own / page_size) * page_size
    return total


def most_requests(pool_slots: int, group: PrefixGroup, count: int = 1, *, page_size: int = 1, step_tokens: int = 1) -> int:
    """Most requests per group, for `count` groups like this one, that fit the pool during one forward."""
    if page_size < 1 or step_tokens < 1 or count < 1:
        raise ConfigError(f"page_size, step_tokens and groups must be at least 1, got {page_size}, {step_tokens} and {count}")
    shared = group.shared_tokens // page_size * page_size
    own = ceil((group.own_tokens + group.shared_tokens - shared + step_tokens) / page_size) * page_size
    return max(0, (pool_slots // count - shared) // own)


def verify_rows(groups: Sequence[PrefixGroup], window: int = 0) -> int:
    """Verify rows of one forward: the cached tokens of every request, at most `window` each for the window group (0: no window)."""
    return sum(
        group.requests * (min(length, window) if window else length)
        for group in groups
        if (length := group.shared_tokens + group.own_tokens) >= 0
    )


def forecast_overflow(
    pool_slots: int, groups: Sequence[PrefixGroup], *, page_size: int = 1, step_tokens: int = 1, max_requests: int | None = None
) -> OverflowForecast:
    """Compare a sharing pattern with the verify capacity of a pool.

    With several groups the limits scale the requests (or the prefix) of all groups alike and are only given where the groups are equal.
    `max_requests` is the number of request rows; patterns beyond it do not fit. Raises ConfigError for sizes below 1.
    """
    for name, value in (("pool_slots", pool_slots), ("page_size", page_size), ("step_tokens", step_tokens)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    capacity = VERIFY_CAPACITY_FACTOR * pool_slots
    rows, slots = verify_rows(groups), pattern_slots(groups, page_size, step_tokens)
    requests = sum(group.requests for group in groups)

    def runs(pattern: Sequence[PrefixGroup]) -> bool:
        count = sum(group.requests for group in pattern)
        return pattern_slots(pattern, page_size, step_tokens) <= pool_slots and (max_requests is None or count <= max_requests)

    from_requests = from_prefix = None
    if groups and all(group == groups[0] for group in groups):
        from_requests, from_prefix = _limits(groups[0], len(groups), capacity)
        if from_requests is not None and not runs([_with(groups[0], requests=from_requests)] * len(groups)):
            from_requests = None
        if from_prefix is not None:
            # Only whole pages are shared, so a prefix that ends on a page can fit where a slightly shorter one does not.
            candidates = (from_prefix, -(-from_prefix // page_size) * page_size)
            fitting = (length for length in candidates if runs([_with(groups[0], shared_tokens=length)] * len(groups)))
            from_prefix = next(fitting, None)
    fits = runs(groups)
    skipped = rows > capacity
    terms = " + ".join(f"{g.requests} x ({g.shared_tokens} + {g.own_tokens})" for g in groups) or "0"
    return OverflowForecast(
        rows=rows,
        capacity=capacity,
        slots=slots,
        pool_slots=pool_slots,
        skipped=skipped,
        fits=fits,
        skip_from_requests=from_requests,
        skip_from_prefix=from_prefix,
        formula=f"{terms} = {rows} rows; {VERIFY_CAPACITY_FACTOR} x {pool_slots} = {capacity}",
        text=_text(skipped, fits, rows / pool_slots, requests, from_requests, len(groups)),
    )


def _limits(group: PrefixGroup, count: int, capacity: int) -> tuple[int | None, int | None]:
    """Smallest requests per group, and smallest prefix, whose rows exceed the capacity; whether they fit the pool is not asked here."""
    length = group.shared_tokens + group.own_tokens
    from_requests = capacity // (count * length) + 1 if length and count else None
    total = count * group.requests
    from_prefix = max(0, capacity // total + 1 - group.own_tokens) if total else None
    return from_requests, from_prefix


def _with(group: PrefixGroup, *, requests: int | None = None, shared_tokens: int | None = None) -> PrefixGroup:
    return PrefixGroup(
        requests=group.requests if requests is None else requests,
        shared_tokens=group.shared_tokens if shared_tokens is None else shared_tokens,
        own_tokens=group.own_tokens,
    )


def _text(skipped: bool, fits: bool, ratio: float, requests: int, from_requests: int | None, groups: int) -> str:
    if not fits:
        return f"{requests} requests of this shape do not fit the pool; the scheduler holds some back before this point"
    if skipped:
        return f"not verified: rows are {ratio:.2f} x the pool slots and the plan holds {VERIFY_CAPACITY_FACTOR} x"
    if from_requests is None:
        return f"verified: rows are {ratio:.2f} x the pool slots; the pool is full before more requests of this shape reach the limit"
    each = " in each group" if groups > 1 else ""
    return f"verified: rows are {ratio:.2f} x the pool slots; from {from_requests} requests{each} on it is skipped"
