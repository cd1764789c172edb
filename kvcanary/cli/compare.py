"""`kvcanary compare`: runs beside each other, and the judgement of a limit for a CI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.analysis.compare import Comparison, compare, differences, judge_runs, level_sentence
from kvcanary.charts.compare import row_name
from kvcanary.charts.sections import compare_report
from kvcanary.cli.exit_codes import NOT_RUN, PASS, VERDICT_EXIT_CODES
from kvcanary.cli.options import fail, wide_console, write_document
from kvcanary.cli.run_names import find_run, write_text
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunRecord, Verdict
from kvcanary.store.database import Store
from kvcanary.store.home import open_store
from kvcanary.units import format_seconds

SCHEMA, VERSION = "kvcanary.comparison", 1
_COLORS = {"faster": "green", "slower": "red"}
# Worst first: what a check of several runs says as a whole.
_ORDER = (Verdict.FAIL, Verdict.NOT_RUN, Verdict.PARTIAL, Verdict.PASS)


def command(
    baseline: Annotated[str, typer.Argument(help="What the others are compared with: a run, or several that ran the same, by commas.")],
    others: Annotated[list[str], typer.Argument(help="One or more to compare with it, written the same way.")],
    fail_below: Annotated[
        float | None, typer.Option(metavar="RATIO", help="Judge: every operation has to keep this share of the baseline's rate.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report, one HTML file that needs no network.")] = None,
    home: Annotated[Path | None, typer.Option(help="Data folder. Default: KVCANARY_HOME, else the user's data folder.")] = None,
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="-|FILE", help="Write one JSON document to standard output (-) or a file, nothing else.")
    ] = None,
) -> None:
    """Settings that differ, and the ratio of rates of every operation that both measured, with a bootstrap interval over the repeats.

    An interval that holds 1 is called "no difference shown". All intervals of one comparison hold together: two equal runs show any
    difference in less than 5 % of all comparisons. Repeats of one run share what the machine did at that moment: give five or more runs a
    side, and the runs are the sample.

    Exit code 0: pass, or compared without a limit · 1: slower than the limit · 2: bad input · 3: partial (the repeats cannot tell, or
    something was left out) · 4: nothing to compare.

    Examples:

      kvcanary compare 20260131-090000-benchmark-1f2e3d4c 20260201-090000-benchmark-5a6b7c8d

      kvcanary compare 1f2e3d4c 5a6b7c8d --fail-below 0.9 --html compare.html
    """
    try:
        store = open_store(os.environ, home)
        sides = [[store.record(find_run(store, name)) for name in text.split(",") if name.strip()] for text in (baseline, *others)]
        _check(sides, fail_below)
        found = [compare(_points(store, sides[0]), _points(store, side)) for side in sides[1:]]
        judged = [] if fail_below is None else [judge_runs(sides[0], s, one, fail_below) for s, one in zip(sides[1:], found, strict=True)]
        if html is not None:
            if any(len(side) > 1 for side in sides):
                raise ConfigError("--html draws single runs; name one run a side")
            write_text(html, compare_report(store, [side[0].id for side in sides], fail_below))
    except KvCanaryError as error:
        fail(str(error))
    if json_target is not None:
        write_document(_document(sides, found, judged), json_target)
    else:
        _print(sides, found, judged)
    if not judged:
        raise typer.Exit(PASS if any(one.rows for one in found) else NOT_RUN)
    verdict = min((verdict for verdict, _ in judged), key=_ORDER.index)
    raise typer.Exit(VERDICT_EXIT_CODES[verdict.value])


def _check(sides: Sequence[Sequence[RunRecord]], fail_below: float | None) -> None:
    """Raise ConfigError for what cannot be compared."""
    if not all(sides):
        raise ConfigError("a side must name at least one run, got an empty text")
    if fail_below is not None and not 0 < fail_below < 100:
        raise ConfigError(f"--fail-below must be a ratio of rates such as 0.9, got {fail_below}")
    others = [record for side in sides for record in side if record.kind != "benchmark"]
    if others:
        raise ConfigError(f"run {others[0].id} is a {others[0].kind}; compare takes benchmarks, the page Runs compares campaigns too")


def _points(store: Store, side: Sequence[RunRecord]) -> list[list[Point]]:
    return [list(store.points(record.id)) for record in side]


def _document(
    sides: Sequence[Sequence[RunRecord]], found: Sequence[Comparison], judged: Sequence[tuple[Verdict, str]]
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "runs": [[record.id for record in side] for side in sides],
        "differences": [asdict(item) for item in differences([side[0] for side in sides])],
        "comparisons": [
            {
                "sentence": one.sentence,
                "level": one.level,
                "rows": [{**asdict(row), "ratio": row.ratio, "outcome": row.outcome} for row in (*one.rows, *one.bounds)],
            }
            for one in found
        ],
        "verdicts": [{"verdict": verdict.value, "sentence": sentence} for verdict, sentence in judged],
    }


def _print(sides: Sequence[Sequence[RunRecord]], found: Sequence[Comparison], judged: Sequence[tuple[Verdict, str]]) -> None:
    console = wide_console()
    for verdict, sentence in judged:
        color = {"pass": "bold green", "fail": "bold red"}.get(verdict.value, "bold yellow")
        console.print(f"[{color}]{terminal_text(sentence)}[/]")
    for item in differences([side[0] for side in sides]):
        console.print(f"  {item.group}: {terminal_text(item.name)}: {terminal_text(' | '.join(item.values))}")
    for side, one in zip(sides[1:], found, strict=True):
        console.print(f"{side[0].id}: {one.sentence}" if len(found) > 1 else one.sentence)
        _table(console, one)
    console.print(level_sentence())


def _table(console: Console, found: Comparison) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    for name in ("before", "after", "ratio of rates", "interval"):
        table.add_column(name, justify="right")
    table.add_column("outcome")
    for row in (*found.rows, *found.bounds):
        interval = "none" if row.interval is None else f"{row.interval.low:.3f} to {row.interval.high:.3f}"
        color = _COLORS.get(row.outcome)
        outcome = f"[{color}]{row.outcome}[/]" if color else row.outcome
        table.add_row(row_name(row), format_seconds(row.before_s), format_seconds(row.after_s), f"{row.ratio:.3f}", interval, outcome)
    console.print(table)
