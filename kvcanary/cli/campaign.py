"""`kvcanary campaign`: plant every fault under every canary configuration, and say which are seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvcanary.cli.exit_codes import FAIL, PARTIAL, PASS
from kvcanary.cli.options import fail, wide_console, write_document
from kvcanary.errors import KvCanaryError
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import ALL_FAULTS, DEFAULT_CONFIGS, CampaignPlan, CampaignRun, CellSummary, run_campaign, summarise
from kvcanary.lab.campaign_job import QUICK_FAULTS, CampaignSpec, plan_of
from kvcanary.lab.frontier import ConfigCost, config_costs, sentence
from kvcanary.units import format_count, format_fraction, format_seconds


def command(
    faults: Annotated[str, typer.Option(help="quick, all, or kind.variant separated by commas; an unknown kind lists them.")] = "quick",
    configs: Annotated[str, typer.Option(help=f"all, or names separated by semicolons: {'; '.join(DEFAULT_CONFIGS)}.")] = "all",
    seeds: Annotated[int, typer.Option(help="Runs per cell; seeds 0, 1, 2 and so on.")] = 3,
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="-|FILE", help="Write one JSON document to standard output (-) or a file, nothing else.")
    ] = None,
) -> None:
    """Serve a small workload with one fault per run, and count what each canary configuration reports.

    Ctrl-C stops it and shows what has run. Progress goes to standard error.

    Exit code 0: no false report · 1: a report without a fault, or of a fault out of reach · 2: bad input · 3: stopped early.

    Examples:

      kvcanary campaign

      kvcanary campaign --faults payload_bytes.bit_flip,payload_bytes.v_row --configs "partial;strict" --seeds 10 --json -
    """
    try:
        plan = plan_of(CampaignSpec(faults=_faults(faults), configs=_configs(configs), seeds=seeds))
        runs = _run(plan)
    except KvCanaryError as error:
        fail(str(error))
    cells, costs = summarise(plan, runs), config_costs(plan, runs)
    text = sentence(plan, costs, cells)
    if json_target is not None:
        document = {"schema": "kvcanary.campaign", "version": 1, "sentence": text, "runs": len(runs), "planned": len(plan.run_keys())}
        document |= {"cells": [asdict(cell) for cell in cells], "configurations": [{**asdict(row), "rate": row.rate} for row in costs]}
        write_document(document, json_target)
    else:
        _print(text, cells, costs)
    if any(cell.false_reports or cell.unexpected for cell in cells):
        raise typer.Exit(FAIL)
    raise typer.Exit(PASS if len(runs) == len(plan.run_keys()) else PARTIAL)


def _faults(text: str) -> list[str]:
    named = {"quick": QUICK_FAULTS, "all": ALL_FAULTS}.get(text)
    return [".".join(fault) for fault in named] if named else [part.strip() for part in text.split(",") if part.strip()]


def _configs(text: str) -> list[str]:
    return list(DEFAULT_CONFIGS) if text == "all" else [part.strip() for part in text.split(";") if part.strip()]


def _run(plan: CampaignPlan) -> list[CampaignRun]:
    """All runs, or those until an interrupt."""
    runs: list[CampaignRun] = []
    stream = run_campaign(plan, choose_backend("auto", "cpu")[0])
    try:
        # extend keeps what it has taken when an interrupt ends it.
        runs.extend(track(stream, "campaign", len(plan.run_keys()), console=Console(stderr=True), transient=True))
    except KeyboardInterrupt:
        typer.echo("stopped; what has run is shown", err=True)
    return runs


def _print(text: str, cells: list[CellSummary], costs: list[ConfigCost]) -> None:
    console = wide_console()
    console.print(text, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("fault")
    for row in costs:
        table.add_column(row.config, justify="right")
    by_fault: dict[str, list[str]] = {}
    for cell in cells:
        by_fault.setdefault(f"{cell.kind}.{cell.variant}", []).append(cell.outcome)
    for name, results in by_fault.items():
        table.add_row(name, *results[: len(costs)])
    console.print(table)
    for row in costs:
        console.print(
            f"{row.config}: {format_fraction(row.rate)} of {row.injected}, {format_count(round(row.verified_per_step))} entries and "
            f"{format_seconds(row.canary_s_per_step)} per step{', on the frontier' if row.on_frontier else ''}",
            markup=False,
        )
