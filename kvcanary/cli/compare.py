"""`kvcanary compare`: runs beside each other, and the judgement of a limit for a CI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvcanary.analysis.compare import differences, judge_runs
from kvcanary.charts.compare_sections import compare_report
from kvcanary.cli.compare_kinds import KINDS, Compared
from kvcanary.cli.exit_codes import NOT_RUN, PASS, VERDICT_EXIT_CODES
from kvcanary.cli.options import VERDICT_STYLES, Home, JsonTarget, fail, wide_console, write_document
from kvcanary.cli.run_names import find_run, write_text
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.lab.records import RunRecord, Verdict
from kvcanary.store.home import open_store

SCHEMA, VERSION = "kvcanary.comparison", 1
# Worst first: what a check of several runs says as a whole.
_ORDER = (Verdict.FAIL, Verdict.NOT_RUN, Verdict.PARTIAL, Verdict.PASS)
_Sides = Sequence[Sequence[RunRecord]]


def command(
    baseline: Annotated[str, typer.Argument(help="What the others are compared with: a run, or several that ran the same, by commas.")],
    others: Annotated[list[str], typer.Argument(help="One or more to compare with it, written the same way.")],
    fail_below: Annotated[
        float | None,
        typer.Option(metavar="RATIO", help="Judge: every operation has to keep this share of the baseline's rate; of campaigns, every "
                     "detection rate and every configuration's speed."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report, one HTML file that needs no network.")] = None,
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:  # fmt: skip
    """Settings that differ, and how what was measured does, with intervals: of benchmarks the ratio of rates of every operation that both
    measured, of campaigns the difference of every detection rate (kind of fault and configuration) and the ratio of what the canary cost.

    An interval that holds no difference is called "no difference shown". All intervals of one comparison hold together: two equal runs
    show any difference in less than 5 % of all comparisons. Repeats of one benchmark share what the machine did at that moment: give five
    or more runs a side, and the runs are the sample. The repeats of a campaign are its seeds.

    Exit code 0: pass, or compared without a limit · 1: below the limit · 2: bad input · 3: partial (the repeats cannot tell, or
    something was left out) · 4: nothing to compare.

    Examples:

      kvcanary compare 20260131-090000-benchmark-1f2e3d4c 20260201-090000-benchmark-5a6b7c8d

      kvcanary compare 1f2e3d4c 5a6b7c8d --fail-below 0.9 --html compare.html
    """
    try:
        store = open_store(os.environ, home)
        sides = [[store.record(find_run(store, name)) for name in text.split(",") if name.strip()] for text in (baseline, *others)]
        _check(sides, fail_below)
        make = KINDS[sides[0][0].kind]
        found = [make(store, [record.id for record in sides[0]], [record.id for record in side]) for side in sides[1:]]
        judged: list[tuple[Verdict, str]] = []
        if fail_below is not None:
            judged = [judge_runs(sides[0], side, one.judge(fail_below)) for side, one in zip(sides[1:], found, strict=True)]
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
        raise typer.Exit(PASS if any(one.any for one in found) else NOT_RUN)
    verdict = min((verdict for verdict, _ in judged), key=_ORDER.index)
    raise typer.Exit(VERDICT_EXIT_CODES[verdict.value])


def _check(sides: _Sides, fail_below: float | None) -> None:
    """Raise ConfigError for what cannot be compared."""
    if not all(sides):
        raise ConfigError("a side must name at least one run, got an empty text")
    if fail_below is not None and not 0 < fail_below < 100:
        raise ConfigError(f"--fail-below must be a ratio of rates such as 0.9, got {fail_below}")
    first, *others = [record for side in sides for record in side]
    for record in (first, *others):
        if record.kind not in KINDS:
            raise ConfigError(
                f"run {record.id} is a {record.kind}; compare takes {' or '.join(f'{kind}s' for kind in KINDS)}, the page Runs shows what "
                "differs between any two"
            )
    mixed = next((record for record in others if record.kind != first.kind), None)
    if mixed is not None:
        raise ConfigError(f"run {first.id} is a {first.kind} and run {mixed.id} a {mixed.kind}; name runs of one kind")


def _document(sides: _Sides, found: Sequence[Compared], judged: Sequence[tuple[Verdict, str]]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "kind": sides[0][0].kind,
        "runs": [[record.id for record in side] for side in sides],
        "differences": [
            {"group": item.group, "name": item.name, "values": [*item.values]} for item in differences([side[0] for side in sides])
        ],
        "comparisons": [one.document() for one in found],
        "verdicts": [{"verdict": verdict.value, "sentence": sentence} for verdict, sentence in judged],
    }


def _print(sides: _Sides, found: Sequence[Compared], judged: Sequence[tuple[Verdict, str]]) -> None:
    console = wide_console()
    for verdict, sentence in judged:
        console.print(f"[{VERDICT_STYLES[verdict.value]}]{terminal_text(sentence)}[/]")
    for item in differences([side[0] for side in sides]):
        console.print(f"  {item.group}: {terminal_text(item.name)}: {terminal_text(' | '.join(item.values))}")
    for side, one in zip(sides[1:], found, strict=True):
        console.print(f"{side[0].id}: {one.sentence}" if len(found) > 1 else one.sentence)
        for table in one.tables():
            console.print(table)
    console.print(found[0].how_to_read)
