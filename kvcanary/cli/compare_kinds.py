"""What `kvcanary compare` says of two sides, for each kind of run that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from rich.table import Table

from kvcanary.analysis.compare import compare, judge, level_sentence
from kvcanary.analysis.compare_campaigns import campaign_level_sentence, compare_campaigns, judge_campaigns
from kvcanary.charts.compare import row_name
from kvcanary.errors import ConfigError
from kvcanary.escape import terminal_text
from kvcanary.lab.campaign_job import read_runs
from kvcanary.lab.records import Verdict
from kvcanary.store.database import Store
from kvcanary.units import format_count, format_points, format_seconds

_COLORS = {"faster": "green", "slower": "red", "finds more": "green", "finds less": "red"}


class Compared(Protocol):
    """Two sides that were compared: in a sentence, as tables, as a document, and against a limit."""

    how_to_read: str

    @property
    def any(self) -> bool:
        """Whether the two have anything in common."""
        ...

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        ...

    def judge(self, limit: float) -> tuple[Verdict, str]:
        """Whether the second side keeps at least `limit` of the first."""
        ...

    def tables(self) -> list[Table]:
        """What was compared, for a terminal."""
        ...

    def document(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        ...


class Benchmarks:
    """Points of benchmarks; several runs a side are one sample."""

    how_to_read = level_sentence()

    def __init__(self, store: Store, before: Sequence[str], after: Sequence[str]) -> None:
        self._found = compare(*([list(store.points(run_id)) for run_id in side] for side in (before, after)))
        self.any, self.sentence = bool(self._found.rows), self._found.sentence

    def judge(self, limit: float) -> tuple[Verdict, str]:
        """As `analysis.compare.judge`."""
        return judge(self._found, limit)

    def tables(self) -> list[Table]:
        """One row per operation, those of the bounds last."""
        table = _table("operation", ("before", "after", "ratio of rates", "interval"))
        for row in (*self._found.rows, *self._found.bounds):
            interval = "none" if row.interval is None else f"{row.interval.low:.3f} to {row.interval.high:.3f}"
            seconds = format_seconds(row.before_s), format_seconds(row.after_s)
            table.add_row(row_name(row), *seconds, f"{row.ratio:.3f}", interval, _colored(row.outcome))
        return [table]

    def document(self) -> dict[str, Any]:
        """Sentence, level of an interval, and rows."""
        rows = [{**asdict(row), "ratio": row.ratio, "outcome": row.outcome} for row in (*self._found.rows, *self._found.bounds)]
        return {"sentence": self.sentence, "level": self._found.level, "rows": rows}


class Campaigns:
    """Runs of two campaigns."""

    how_to_read = campaign_level_sentence()

    def __init__(self, store: Store, before: Sequence[str], after: Sequence[str]) -> None:
        if len(before) > 1 or len(after) > 1:
            # The same seeds again find the same faults again, which would count as evidence.
            raise ConfigError("a campaign's repeats are its seeds; name one campaign a side, with more seeds")
        self._found = compare_campaigns(*(read_runs(store.folder(side[0]).path) for side in (before, after)))
        self.any, self.sentence = bool(self._found.costs) or any(row.compared for row in self._found.rates), self._found.sentence

    def judge(self, limit: float) -> tuple[Verdict, str]:
        """As `analysis.compare_campaigns.judge_campaigns`."""
        return judge_campaigns(self._found, limit)

    def tables(self) -> list[Table]:
        """Detection rates, then costs."""
        rates = _table("fault and configuration", ("before", "after", "after - before", "interval"))
        for row in self._found.rates:
            interval = f"{format_points(row.low)} to {format_points(row.high)}"
            cells = (str(row.before), str(row.after), format_points(row.difference), interval, _colored(row.outcome))
            rates.add_row(terminal_text(row.name), *cells)
        costs = _table("configuration", ("before", "after", "ratio of speeds", "interval", "entries per step", "after"))
        for cost in self._found.costs:
            costs.add_row(
                terminal_text(cost.config), format_seconds(cost.before_s), format_seconds(cost.after_s), f"{cost.ratio:.3f}",
                f"{cost.interval.low:.3f} to {cost.interval.high:.3f}", format_count(round(cost.before_verified)),
                format_count(round(cost.after_verified)), _colored(cost.outcome),
            )  # fmt: skip
        return [rates, costs]

    def document(self) -> dict[str, Any]:
        """Sentence, level of an interval, rates and costs."""
        rates = [{**asdict(row), "difference": row.difference, "outcome": row.outcome} for row in self._found.rates]
        costs = [{**asdict(row), "outcome": row.outcome} for row in self._found.costs]
        return {"sentence": self.sentence, "level": self._found.level, "rates": rates, "costs": costs}


KINDS: Mapping[str, Callable[[Store, Sequence[str], Sequence[str]], Compared]] = {"benchmark": Benchmarks, "campaign": Campaigns}


def _table(first: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column("outcome")
    return table


def _colored(outcome: str) -> str:
    color = _COLORS.get(outcome)
    return f"[{color}]{outcome}[/]" if color else outcome
