"""`kvcanary plan`: will these settings start, and what does the canary cost?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.cli.exit_codes import VERDICT_EXIT_CODES
from kvcanary.cli.import_text import print_explanation
from kvcanary.cli.options import (
    SETTINGS_FILE_LIMIT_BYTES,
    VERDICT_STYLES,
    HomeToKeep,
    JsonTarget,
    fail,
    read_file,
    read_settings,
    wide_console,
    with_settings,
    write_document,
)
from kvcanary.config.devices import Device, catalogue, find_device, parse_devices
from kvcanary.config.findings import Severity, count_sentence
from kvcanary.config.geometry import Unknown
from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.memory import MemoryPlan
from kvcanary.config.plan_report import PlanReport, answers, plan_document, plan_report
from kvcanary.config.reconciliation import Reconciliation
from kvcanary.config.remedies import canary_cost, remedies
from kvcanary.config.rules import RULES
from kvcanary.errors import ConfigError, ImportTextError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.importers.detect import MAX_BYTES, read_bytes
from kvcanary.importers.result import ImportResult
from kvcanary.units import format_bytes, format_count, group_digits

_COLORS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@with_settings
def command(
    given: dict[str, Any],
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="NAME", help="Take the device memory of this accelerator; a wrong name lists them all."),
    ] = None,
    devices: Annotated[Path | None, typer.Option("--devices", metavar="FILE", help="Accelerators of your own, as JSON.")] = None,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="A start-up log to lay beside the plan, line by line.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Store the plan as a run; `kvcanary runs` lists it.")] = False,
    home: HomeToKeep = None,
    json_target: JsonTarget = None,
) -> None:
    """Check settings against every rule at once, compute launch capacities and memory, and solve them backwards.

    Exit code 0: the server starts (warnings allowed) · 1: it does not, or runs out of memory · 2: a value cannot be read · 3: it starts
    with a smaller pool than asked for. A log beside the plan changes none of these, also one that holds an error: the settings are judged,
    not the log.

    Examples:

      kvcanary plan --from qwen3-8b-h100

      kvcanary plan --req-to-token-pool-size 4096 --pool-slot-count 392920 --cuda-graph-max-bs 256

      kvcanary plan --settings plan.json --accelerator "NVIDIA H200" --log server.log --json -
    """
    if accelerator is not None:
        device = _device(accelerator, devices)
        given = {**given, "device_memory_bytes": device.memory_bytes or device.sheet_bytes}
    settings, problems = read_settings(given)
    if problems:
        fail("\n".join(problem.message for problem in problems))
    beside = None if log is None else _read_log(log)
    report = plan_report(settings, None if beside is None else dict(beside.observed))
    document = {**plan_document(report), "log_errors": None if beside is None else beside.to_dict()["explanations"]}
    if json_target is not None:
        write_document(document, json_target)
    else:
        _print(report, beside)
    if keep:
        _keep(report, document, home)
    raise typer.Exit(VERDICT_EXIT_CODES[report.verdict])


def _keep(report: PlanReport, document: dict[str, Any], home: Path | None) -> None:
    # Brings the database along, for which other plans need not wait.
    from kvcanary.lab.records import Verdict
    from kvcanary.store.home import open_store

    try:
        run = open_store(os.environ, home).save_plan(
            report.settings.to_flat(), verdict=Verdict(report.verdict), sentence=report.sentence, document=document
        )
    except KvCanaryError as error:
        fail(str(error))
    typer.echo(f"kept as run {run}", err=True)


def _device(name: str, path: Path | None) -> Device:
    try:
        text = read_file(path, SETTINGS_FILE_LIMIT_BYTES, "a device list") if path is not None else ""
    except ConfigError as error:
        fail(f"--devices {error}")
    try:
        own = parse_devices(text) if path is not None else ()
    except ConfigError as error:
        fail(f"--devices {path}: {error}")
    device = find_device(name, own)
    if device is None:
        fail(f"--accelerator must be one of {', '.join(entry.name for entry in (*own, *catalogue()))}, got {name[:60]!r}")
    return device


def _read_log(path: Path) -> ImportResult:
    try:
        with path.open("rb") as stream:
            return read_bytes(stream.read(MAX_BYTES + 1), path.name)
    except OSError as error:
        fail(f"--log {path}: {error.strerror}")
    except ImportTextError as error:
        fail(f"--log {error}")


def _print(report: PlanReport, beside: ImportResult | None) -> None:
    console, counted = wide_console(), count_sentence(finding.severity for finding in report.findings)
    console.print(f"[{VERDICT_STYLES[report.verdict]}]{report.head}[/]: {counted} from {len(RULES)} rules")
    if beside is not None and beside.explanations:
        console.print(f"[bold red]The log holds an error[/], explained below: {terminal_text(beside.explanations[0].message)}")
    for finding in report.findings:
        console.print(f"\n[{_COLORS[finding.severity]}]{finding.severity.upper()}[/] {terminal_text(finding.message)}")
        console.print(f"  {terminal_text(finding.why)}")
        for fix in finding.fixes:
            console.print(f"  -> {terminal_text(fix.text)}" + (f"   ({terminal_text(fix.flag)})" if fix.flag else ""))
    if report.capacities is not None:
        console.print("\n[bold]Launch capacities[/]")
        for bound in report.capacities.bounds:
            console.print(f"  {bound.label}: {format_count(bound.value)}   {terminal_text(group_digits(bound.text))}")
    if report.plan is not None:
        console.print(f"\n[bold]Memory of one rank[/]: {terminal_text(report.plan.summary)}")
        console.print(_memory_table(report.plan))
        _print_solved(report.plan, console)
    if beside is not None:
        _print_log(report.log, beside, console)
    if report.starts:
        console.print("\n[bold]As a launch command[/]")
        console.print(terminal_text(sglang_flags(report.settings)))


def _print_solved(plan: MemoryPlan, console: Console) -> None:
    for fix in remedies(plan):
        console.print(f"  -> {terminal_text(fix.text)}" + (f"   ({terminal_text(fix.flag)})" if fix.flag else ""))
    console.print("\n[bold]Solved backwards[/]")
    for question, answer in answers(plan):
        if isinstance(answer, Unknown):
            text = f"unknown, {answer.text}; settled by {answer.settle}"
        else:
            text = (
                getattr(answer, "text", "")
                or f"{format_count(answer.context)} tokens for {format_count(answer.concurrency)} requests at once"
            )
        console.print(f"  {question.replace('_', ' ')}: {terminal_text(text)}")
    costs = canary_cost(plan)
    for cost in costs if isinstance(costs, tuple) else ():
        console.print(f"  {terminal_text(cost.label)}: {terminal_text(cost.text)}")


def _print_log(log: Reconciliation | None, read: ImportResult, console: Console) -> None:
    if log is not None:
        console.print(f"\n[bold]Log beside the plan[/]: {terminal_text(log.text)}")
        console.print(_log_table(log))
    for finding in read.findings:
        console.print(f"[{_COLORS[finding.severity]}]{finding.severity}[/] {terminal_text(finding.message)}. {terminal_text(finding.why)}")
    for explanation in read.explanations:
        console.print("\n[bold]Error of the log[/], with what would settle it there")
        print_explanation(explanation, read, console)


def _log_table(log: Reconciliation) -> Table:
    table = Table("value", "unit", box=None, pad_edge=False)
    for name in ("log", "plan"):
        table.add_column(name, justify="right")
    table.add_column("verdict", overflow="fold")
    for row in log.rows:
        planned = "" if row.planned is None else f"{row.planned:.6g}"
        table.add_row(
            terminal_text(row.label),
            row.unit,
            f"{row.observed:.6g}",
            planned,
            terminal_text(f"{row.status}{': ' + row.why if row.why else ''}"),
        )
    return table


def _memory_table(plan: MemoryPlan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_column("formula", overflow="fold")
    for line in plan.lines:
        if line.item is not None:
            table.add_row(terminal_text(line.label), format_bytes(line.item.bytes), terminal_text(group_digits(line.item.text)))
        elif line.unknown is not None:
            table.add_row(terminal_text(line.label), "unknown", terminal_text(f"{line.unknown.text}; settled by {line.unknown.settle}"))
    return table
