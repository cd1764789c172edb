"""`kvcanary campaign`: plant every fault under every canary configuration, and say which are seen."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.cli.exit_codes import PASS, VERDICT_EXIT_CODES
from kvcanary.cli.follow import follow_job
from kvcanary.cli.options import Home, JsonTarget, fail, wide_console, write_document
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.faults.presets import PRESETS
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CONFIGS, CampaignPlan, CampaignRun, CellSummary, summarise
from kvcanary.lab.campaign_job import NAMED_CONFIGS, NAMED_FAULTS, CampaignSpec, plan_of, read_runs
from kvcanary.lab.campaign_load import LOAD_WORDS, SMALL, sample_trace
from kvcanary.lab.campaign_preset import tell
from kvcanary.lab.frontier import ConfigCost, config_costs
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import RunRecord
from kvcanary.store.home import data_folder
from kvcanary.units import format_count, format_fraction, format_seconds


def command(
    faults: Annotated[str, typer.Option(help="quick, all, or kind.variant separated by commas; an unknown kind lists them.")] = "quick",
    configs: Annotated[
        str,
        typer.Option(
            help=f"default (six), all (with one column per strict check), or names separated by semicolons: {'; '.join(CONFIGS)}."
        ),
    ] = "default",
    seeds: Annotated[int, typer.Option(help="Runs per cell; seeds 0, 1, 2 and so on.")] = 3,
    workload: Annotated[str, typer.Option(help=f"What is served: {', '.join(LOAD_WORDS)}.")] = SMALL,
    trace: Annotated[
        Path | None, typer.Option(help="Serve requests of a trace instead: Mooncake JSONL, Azure CSV or BurstGPT CSV; - is standard input.")
    ] = None,
    first: Annotated[int, typer.Option(help="With --trace: the first request to take, from 1 on.")] = 1,
    speed: Annotated[float, typer.Option(help="With --trace: how many times as fast the requests arrive.")] = 1.0,
    preset: Annotated[
        str | None, typer.Option(help=f"Tell one named story instead, row by row under each configuration: {', '.join(PRESETS)}.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Run what an earlier campaign left over, with its choices.")] = None,
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:
    """Serve a workload with one fault per run, and count what each canary configuration reports.

    Runs are stored as they finish, so Ctrl-C keeps them; once more ends it at once. --resume goes on. Progress goes to standard error.

    Exit code 0: as the catalogue says · 1: a report that nothing explains · 2: bad input · 3: stopped early · 4: nothing ran.

    Examples:

      kvcanary campaign

      kvcanary campaign --faults payload_bytes.bit_flip,payload_bytes.v_row --configs "partial;strict" --seeds 10 --json -

      kvcanary campaign --trace requests.jsonl --faults all

      kvcanary campaign --preset aborted-transfer-writes-late

      kvcanary campaign --resume 20260131-235959-campaign
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    root = data_folder(os.environ, home)
    try:
        if preset is not None:
            _tell(preset, _configs(configs), json_target)
            raise typer.Exit(PASS)
        if resume is not None:
            spec = _resumed(root, resume)
        else:
            sample = _trace(trace, first, speed, errors)
            spec = CampaignSpec(faults=_faults(faults), configs=_configs(configs), seeds=seeds, workload=workload, trace=sample)
        record, runs = _run(root, spec, errors)
    except KvCanaryError as error:
        fail(str(error))
    plan = plan_of(spec)
    cells, costs = summarise(plan, runs), config_costs(plan, runs)
    if json_target is not None:
        write_document(_document(record, plan, runs, cells, costs), json_target)
    else:
        _print(record, cells, costs, missing=len(plan.run_keys()) - len(runs))
    raise typer.Exit(VERDICT_EXIT_CODES[record.verdict.value])


def _tell(name: str, configs: list[str], json_target: str | None) -> None:
    """One preset under each configuration."""
    known = PRESETS.get(name)
    if known is None:
        raise ConfigError(f"--preset must be among {', '.join(PRESETS)}, got {name[:60]!r}")
    plan = plan_of(CampaignSpec(configs=configs))
    results = tell(known, plan.configs, choose_backend("auto", "cpu")[0])
    if json_target is not None:
        head = {"schema": "kvcanary.preset", "version": 1, "preset": name, "fault": f"{known.kind}.{known.variant}", "story": known.story}
        write_document({**head, "results": [asdict(result) for result in results]}, json_target)
        return
    console = wide_console()
    console.print(f"{known.title}. {known.story}", markup=False)
    for result in results:
        told = "" if result.lines else f" {result.reason or 'nothing reported'}"
        console.print(f"{result.config}:{told}", markup=False)
        for line in result.lines:
            console.print(f"  {line}", markup=False)


def _faults(text: str) -> list[str]:
    return NAMED_FAULTS.get(text) or [part.strip() for part in text.split(",") if part.strip()]


def _configs(text: str) -> list[str]:
    return NAMED_CONFIGS.get(text) or [part.strip() for part in text.split(";") if part.strip()]


def _trace(path: Path | None, first: int, speed: float, errors: Console) -> dict[str, Any] | None:
    """The sample of a trace; rows that cannot be read are named with their line."""
    if path is None:
        return None
    piped = str(path) == "-"
    try:
        with open(0 if piped else path, encoding="utf-8", errors="replace", closefd=not piped) as lines:
            sample, problems = sample_trace(lines, "standard input" if piped else path.name, first=first, speed=speed)
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror}") from error
    for problem in problems:
        errors.print(f"left out: {terminal_text(str(problem))}")
    errors.print(terminal_text(sample.summary))
    return sample.to_dict()


def _resumed(root: Path, run_id: str) -> CampaignSpec:
    manager = JobManager(root)
    try:
        record = manager.folder(run_id).read_record()
    finally:
        manager.close()
    if record.kind != "campaign":
        raise ConfigError(f"--resume needs the id of a campaign, got the {record.kind} {run_id}")
    if record.state.active:
        raise ConfigError(f"run {run_id} is {record.state}; stop it before it is resumed")
    return replace(CampaignSpec(**record.spec), continues=run_id)


def _run(root: Path, spec: CampaignSpec, errors: Console) -> tuple[RunRecord, list[CampaignRun]]:
    """Start the job and follow it to its end."""
    manager = JobManager(root)
    try:
        record = follow_job(manager, manager.start(spec), errors)
        return record, read_runs(manager.folder(record.id).path)
    finally:
        manager.close()


def _document(
    record: RunRecord, plan: CampaignPlan, runs: list[CampaignRun], cells: list[CellSummary], costs: list[ConfigCost]
) -> dict[str, Any]:
    return {
        "schema": "kvcanary.campaign",
        "version": 1,
        "run": record.id,
        "verdict": record.verdict.value,
        "sentence": record.sentence,
        "runs": len(runs),
        "planned": len(plan.run_keys()),
        "cells": [{**asdict(cell), "outcome": cell.outcome} for cell in cells],
        "configurations": [{**asdict(row), "rate": row.rate} for row in costs],
    }


def _print(record: RunRecord, cells: list[CellSummary], costs: list[ConfigCost], *, missing: int) -> None:
    console = wide_console()
    console.print(record.sentence, markup=False)
    if record.error:
        console.print(terminal_text(record.error))
    table = Table(box=None, pad_edge=False)
    table.add_column("fault")
    for row in costs:
        table.add_column(row.config, justify="right")
    by_fault: dict[str, list[str]] = {}
    for cell in cells:
        by_fault.setdefault(f"{cell.kind}.{cell.variant}", []).append(cell.outcome)
    for name, results in by_fault.items():
        table.add_row(name, *results[: len(costs)])
    if costs:
        console.print(table)
    for row in costs:
        console.print(
            f"{row.config}: {format_fraction(row.rate)} of {row.injected}, {format_count(round(row.verified_per_step))} entries and "
            f"{format_seconds(row.canary_s_per_step)} per step{', on the frontier' if row.on_frontier else ''}",
            markup=False,
        )
    resume = f"; to go on: kvcanary campaign --resume {record.id}" if missing else ""
    console.print(f"run {record.id}{resume}", markup=False)
