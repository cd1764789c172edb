"""Two or more runs beside each other: what differs in their settings, and how their medians relate."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from kvcanary.analysis.bootstrap import Interval, ratio_interval
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.lab.points import Point, Timing
from kvcanary.lab.records import RunRecord, Verdict
from kvcanary.units import format_fraction, format_value

# The share of comparisons of two equal runs that may show any difference: a single one of m intervals takes FALSE_ALARMS / m (Bonferroni).
# Bootstrap intervals of medians are a little too narrow, which is why it is not 0.05.
FALSE_ALARMS = 0.03
# Operations that are compared; the bounds move the same bytes without hashing, so they say what the machine did meanwhile.
OPS = ("stamp", "verify", "plan", "head_stamp", "head_verify")
BOUNDS = ("stamp_bound", "verify_bound")

PointKey = tuple[str, str, str, int, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same in all runs, with its value in each."""

    group: str
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation of one point in both runs: medians in seconds, and the ratio of the rates, above 1 where the second is faster."""

    workload: str
    layout: str
    hash_mode: str
    batch: int
    prefix: int
    op: str
    before_s: float
    after_s: float
    interval: Interval | None

    @property
    def ratio(self) -> float:
        """Rate of the second run over that of the first."""
        return self.before_s / self.after_s

    @property
    def outcome(self) -> str:
        """faster, slower, no difference shown, or why nothing can be shown."""
        return "no repeats stored" if self.interval is None else self.interval.outcome


class HasOutcome(Protocol):
    """A compared thing with its outcome in words."""

    @property
    def outcome(self) -> str:
        """'no difference shown', for one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows that both sides have, those of the bounds apart; names of points that one side alone has; the level of a single interval."""

    rows: tuple[Row, ...]
    bounds: tuple[Row, ...]
    only_before: int
    only_after: int
    level: float

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if not self.rows:
            return "The two have no measured operation in common, so there is nothing to compare."
        outcomes = count_outcomes(self.rows, ("slower", "faster", "no difference shown", "too few repeats", "no repeats stored"))
        text = f"{len(self.rows)} operations compared: {outcomes}."
        left = self.only_before + self.only_after
        text += f" {left} more were measured in one of the two alone." if left else ""
        moved = [row for row in self.bounds if row.outcome in ("faster", "slower")]
        if moved:
            worst = min(moved, key=lambda row: min(row.ratio, 1 / row.ratio))
            text += f" The bounds differ too, by a factor of {worst.ratio:.2f} at most: that much is the machine and not the canary."
        return text


def differences(records: Sequence[RunRecord]) -> list[Difference]:
    """Settings first, then how they were run, the machine and the versions; what is the same everywhere is left out.

    So is what only one run can have, because the others have nothing of that group: a campaign has no settings.
    """
    found = []
    for group, tables in _tables(records):
        names = list(dict.fromkeys(name for table in tables for name in table))
        for name in names:
            values = tuple(format_value(table.get(name)) or "none" for table in tables)
            if len({value for value, table in zip(values, tables, strict=True) if table}) > 1:
                found.append(Difference(group=group, name=name, values=values))
    return found


def _tables(records: Sequence[RunRecord]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    yield "settings", [_settings(record) for record in records]
    yield "run", [{key: value for key, value in record.spec.items() if key != "settings"} | _backend(record) for record in records]
    yield "machine", [record.machine for record in records]
    yield "versions", [record.versions for record in records]


def _settings(record: RunRecord) -> Mapping[str, Any]:
    """Every field, defaults included, because a default that is written out differs in nothing."""
    given = record.spec.get("settings")
    if not isinstance(given, dict):
        return {}
    try:
        return Settings.from_flat(given).to_flat()
    except ConfigError:
        # Written by a version whose fields this one does not know.
        return given


def _backend(record: RunRecord) -> dict[str, Any]:
    return {"backend that ran": record.backend["name"]} if "name" in record.backend else {}


def compare(before: Sequence[Sequence[Point]], after: Sequence[Sequence[Point]]) -> Comparison:
    """Two sides, each the points of one run or of several that ran the same.

    With one run a side, its repeats are the sample: they tell what this moment of the machine can tell. With several, the medians of the
    runs are, which takes in how far two runs of the same thing lie apart. An operation is compared with the one of the same workload,
    layout, hash mode, batch, prefix and items; the hash mode is left out where each side has a single one. The intervals are the same
    at every call.
    """
    across = all(len(_modes(side)) == 1 for side in (before, after))
    first, second = _by_key(before, across), _by_key(after, across)
    common = [key for key in first if key in second]
    level = 1 - FALSE_ALARMS / max(1, sum(key[5] in OPS for key in common))
    rows = [_row(key, first[key], second[key], level) for key in common]
    if across:
        mode = " to ".join(dict.fromkeys((*_modes(before), *_modes(after))))
        rows = [replace(row, hash_mode=mode) for row in rows]
    return Comparison(
        rows=tuple(row for row in rows if row.op in OPS),
        bounds=tuple(row for row in rows if row.op in BOUNDS),
        only_before=sum(key[5] in OPS for key in first if key not in second),
        only_after=sum(key[5] in OPS for key in second if key not in first),
        level=level,
    )


def _modes(side: Sequence[Sequence[Point]]) -> list[str]:
    return sorted({point.hash_mode for points in side for point in points})


def _by_key(side: Sequence[Sequence[Point]], across: bool) -> dict[PointKey, list[Timing]]:
    """Timings of each operation, one per run; an operation that not all runs of a side have is left out."""
    found: dict[PointKey, list[Timing]] = {}
    for points in side:
        for point in points:
            for op in (*OPS, *BOUNDS):
                timing: Timing | None = getattr(point, op)
                if timing is not None:
                    mode = "" if across else point.hash_mode
                    key = (point.workload, point.layout, mode, point.batch, point.prefix, op, timing.items)
                    found.setdefault(key, []).append(timing)
    return {key: timings for key, timings in found.items() if len(timings) == len(side)}


def _row(key: PointKey, before: Sequence[Timing], after: Sequence[Timing], level: float) -> Row:
    workload, layout, mode, batch, prefix, op, _ = key
    medians = [float(np.median([timing.p50_s for timing in side])) for side in (before, after)]
    single = len(before) == len(after) == 1
    samples = [side[0].samples_s if single else tuple(timing.p50_s for timing in side) for side in (before, after)]
    # A seed of its own for each row keeps it the same whatever else is compared.
    rng = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return Row(
        workload=workload, layout=layout, hash_mode=mode, batch=batch, prefix=prefix, op=op, before_s=medians[0], after_s=medians[1],
        interval=ratio_interval(samples[0], samples[1], level=level, rng=rng) if all(samples) else None,
    )  # fmt: skip


def judge(comparison: Comparison, limit: float) -> tuple[Verdict, str]:
    """Whether the second side keeps at least `limit` of the first one's rate, as (verdict, sentence).

    Fail: an interval lies below the limit as a whole, also after what the machine itself was slower by its bounds. Partial: a ratio lies
    below it and its interval does not, or points were left out. Raises ConfigError for a limit that is no positive number.
    """
    if not 0 < limit < 100:
        raise ConfigError(f"fail-below must be a ratio of rates such as 0.9, got {limit}")
    rows, excused = [], 0
    for row in comparison.rows:
        margin = row.interval.high - limit if row.interval is not None and row.interval.enough else math.inf
        if margin < 0 and row.interval is not None and row.interval.high >= limit * _machine(comparison, row):
            margin, excused = 0.0, excused + 1
        rows.append((describe(row), row.ratio - limit if row.interval is not None else -math.inf, margin))
    verdict, sentence = judge_limit(rows, limit, comparison.sentence, comparison.only_before + comparison.only_after, "operations")
    if verdict is Verdict.PASS:
        sure = sum(row.interval is not None and row.interval.enough and row.interval.low >= limit for row in comparison.rows)
        sentence = f"{sentence.removesuffix('.')}, {sure} of them with their whole interval."
    if excused:
        sentence += f" Of the {len(rows)}, {excused} fell with the bounds of the machine: run both again, best by turns."
    return verdict, sentence


def _machine(comparison: Comparison, row: Row) -> float:
    """How fast the machine was in the second run at least, of the first: by the bound of the same operation, else by the bounds of its point."""

    def point(one: Row) -> tuple[str, str, str, int, int]:
        return one.workload, one.layout, one.hash_mode, one.batch, one.prefix

    lows = {
        bound.op: bound.interval.low
        for bound in comparison.bounds
        if point(bound) == point(row) and bound.interval is not None and bound.interval.enough
    }
    return lows.get(f"{row.op.removeprefix('head_')}_bound", min(lows.values(), default=1.0))


def judge_limit(rows: Sequence[tuple[str, float, float]], limit: float, empty: str, left: int, what: str) -> tuple[Verdict, str]:
    """The judgement of `judge` over (description, figure minus limit, upper end of its interval minus limit)."""
    if not rows:
        return Verdict.NOT_RUN, empty
    below = [row for row in rows if row[2] < 0]
    undecided = [row for row in rows if row[2] >= 0 and row[1] < 0]
    if below:
        worst = min(below, key=lambda row: row[1])
        return Verdict.FAIL, f"Fail: {len(below)} of {len(rows)} {what} keep less than {limit:g}; {worst[0]}."
    if undecided:
        worst = min(undecided, key=lambda row: row[1])
        return Verdict.PARTIAL, (
            f"Partial: {len(undecided)} of {len(rows)} {what} may keep less than {limit:g} and the repeats cannot tell; "
            f"{worst[0]}. More repeats (a longer effort, or several runs a side) decide it."
        )
    if left:
        return (
            Verdict.PARTIAL,
            f"Partial: none of {len(rows)} {what} keeps less than {limit:g}; {left} were measured in one of the two alone.",
        )
    return Verdict.PASS, f"Pass: all {len(rows)} {what} keep at least {limit:g}."


def judge_runs(before: Sequence[RunRecord], after: Sequence[RunRecord], judged: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """What was judged of measurements, after a look at the runs: nothing is compared with a failed one, and one that failed keeps nothing."""
    for record in before:
        if record.verdict is Verdict.FAIL:
            return Verdict.NOT_RUN, f"Not compared: run {record.id}, which the other is compared with, failed. {record.sentence}"
    for record in after:
        if record.verdict is Verdict.FAIL:
            return Verdict.FAIL, f"Fail: run {record.id} failed. {record.sentence}"
    verdict, sentence = judged
    unfinished = [record for record in (*before, *after) if record.verdict is not Verdict.PASS]
    if verdict is Verdict.PASS and unfinished:
        first = unfinished[0]
        return Verdict.PARTIAL, f"Partial: {sentence.partition(': ')[2]} Run {first.id} is {first.verdict}: {first.sentence}"
    return verdict, sentence


def count_outcomes(rows: Sequence[HasOutcome], words: Sequence[str]) -> str:
    """'2 slower, 7 no difference shown', in the order of the words, leaving out what there is none of."""
    found = [row.outcome for row in rows]
    return ", ".join(f"{found.count(word)} {word}" for word in words if word in found)


def describe(row: Row) -> str:
    """'stamp of decode batch 16 at 0.81 (0.78 to 0.85)'."""
    interval = "no interval" if row.interval is None else f"{row.interval.low:.2f} to {row.interval.high:.2f}"
    return f"{row.op.replace('_', ' ')} of {row.workload} batch {row.batch} at {row.ratio:.2f} ({interval})"


def level_sentence() -> str:
    """How the intervals are to be read."""
    return (
        f"Ratios of rates: above 1 the second is faster. All intervals together hold with {format_fraction(1 - FALSE_ALARMS)}. Repeats of one run "
        "share what the machine did at that moment; give several runs a side to take that in."
    )
