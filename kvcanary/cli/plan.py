"""`kvcanary plan`: will these settings start, and what does the canary cost?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from kvcanary.cli.exit_codes import FAIL, PASS
from kvcanary.cli.options import fail, read_settings, wide_console, with_settings, write_document
from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.findings import Finding, Severity, worst_first
from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.rules import RULES, validate
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.escape import terminal_text
from kvcanary.units import format_bytes, format_count

SCHEMA, VERSION = "kvcanary.plan", 1
_COLORS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@with_settings
def command(
    given: dict[str, Any],
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="-|FILE", help="Write one JSON document to standard output (-) or a file, nothing else.")
    ] = None,
) -> None:
    """Check settings against every rule at once and compute launch capacities and memory.

    Exit code 0: the server starts (warnings allowed) · 1: it does not · 2: a value cannot be read.

    Examples:

      kvcanary plan --from qwen3-8b-h100

      kvcanary plan --req-to-token-pool-size 4096 --pool-slot-count 392920 --cuda-graph-max-bs 256

      kvcanary plan --settings plan.json --mode raise --json -
    """
    settings, problems = read_settings(given)
    if problems:
        fail("\n".join(problem.message for problem in problems))
    findings = worst_first(validate(settings))
    starts = not any(finding.severity is Severity.ERROR for finding in findings)
    capacities, plan = _computed(settings)
    if json_target is not None:
        write_document(_document(settings, findings, starts, capacities, plan), json_target)
    else:
        _print(settings, findings, starts, capacities, plan)
    raise typer.Exit(PASS if starts else FAIL)


def _computed(settings: Settings) -> tuple[LaunchCapacities | None, MemoryPlan | None]:
    """What can be computed; the findings say why the rest cannot."""
    try:
        capacities: LaunchCapacities | None = LaunchCapacities.from_settings(settings)
    except ConfigError:
        capacities = None
    try:
        return capacities, memory_plan(settings)
    except ConfigError:
        return capacities, None


def _document(
    settings: Settings, findings: Sequence[Finding], starts: bool, capacities: LaunchCapacities | None, plan: MemoryPlan | None
) -> dict[str, Any]:
    lines = [] if plan is None else plan.lines
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "starts": starts,
        "rules_checked": len(RULES),
        "settings": settings.to_flat(),
        "findings": [finding.to_dict() for finding in findings],
        "capacities": None
        if capacities is None
        else {bound.name: {"value": bound.value, "formula": bound.text, "source": bound.source} for bound in capacities.bounds},
        "memory": None
        if plan is None
        else {
            "summary": plan.summary,
            "verdict": plan.verdict,
            "known_bytes": plan.known_bytes,
            "canary_bytes": plan.canary_bytes,
            "lines": [
                {
                    "name": line.name,
                    "part": line.part,
                    "bytes": line.bytes,
                    "formula": line.item.text if line.item else None,
                    "unknown": line.unknown.text if line.unknown else None,
                }
                for line in lines
            ],
        },
        "sglang_command": sglang_flags(settings),
    }


def _print(
    settings: Settings, findings: Sequence[Finding], starts: bool, capacities: LaunchCapacities | None, plan: MemoryPlan | None
) -> None:
    console = wide_console()
    word, style = ("Starts", "bold green") if starts else ("Will not start", "bold red")
    console.print(f"[{style}]{word}[/]: {len(findings)} findings from {len(RULES)} rules")
    for finding in findings:
        console.print(f"\n[{_COLORS[finding.severity]}]{finding.severity.upper()}[/] {terminal_text(finding.message)}")
        console.print(f"  {terminal_text(finding.why)}")
        for fix in finding.fixes:
            console.print(f"  -> {terminal_text(fix.text)}" + (f"   ({terminal_text(fix.flag)})" if fix.flag else ""))
    if capacities is not None:
        console.print("\n[bold]Launch capacities[/]")
        for bound in capacities.bounds:
            console.print(f"  {bound.label}: {format_count(bound.value)}   {terminal_text(bound.text)}")
    if plan is not None:
        console.print(f"\n[bold]Memory of one rank[/]: {terminal_text(plan.summary)}")
        console.print(_memory_table(plan))
    if starts:
        console.print("\n[bold]As a launch command[/]")
        console.print(terminal_text(sglang_flags(settings)))


def _memory_table(plan: MemoryPlan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_column("formula", overflow="fold")
    for line in plan.lines:
        if line.item is not None:
            table.add_row(terminal_text(line.label), format_bytes(line.item.bytes), terminal_text(line.item.text))
        elif line.unknown is not None:
            table.add_row(terminal_text(line.label), "unknown", terminal_text(f"{line.unknown.text}; settled by {line.unknown.settle}"))
    return table
