"""`kvcanary inspect`: what a server's log says about KV corruption, in one sentence, then counts, causes and incidents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.diagnosis import DiagnosedCause, Diagnosis, diagnose
from kvcanary.analysis.inspection import counts, report_data
from kvcanary.analysis.log_stream import read_logs, read_stream
from kvcanary.cli.exit_codes import BAD_INPUT, VERDICT_EXIT_CODES
from kvcanary.cli.options import VERDICT_STYLES, HomeToKeep, JsonBeside, write_document
from kvcanary.errors import ImportTextError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.units import format_bytes, format_count

_PROGRESS_FROM_BYTES = 64 << 20
SNAPSHOT_SUFFIX = ".safetensors"


def command(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="Server logs, also .gz and .zst; several ranks or days are put together; - is stdin. Or snapshots (.safetensors)."
        ),
    ],
    json_to: JsonBeside = None,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Rows of each list that are shown or written.")] = 20,
    keep: Annotated[bool, typer.Option("--keep", help="Store the result, not the log, as a run; `kvcanary runs` lists it.")] = False,
    home: HomeToKeep = None,
) -> None:
    """Read server logs and say what is corrupted, what pattern it makes and what is the likely cause.

    Exit codes: 0 no violations and proof that the canary ran · 1 violations · 2 bad input · 3 not everything was looked at · 4 the
    canary did not run.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        log = _input(logs, errors)
        diagnosis = diagnose(log)
    except KvCanaryError as error:
        errors.print(terminal_text(str(error)))
        raise typer.Exit(BAD_INPUT) from error
    if json_to is not None:
        write_document(report_data(log, diagnosis, max_violations=max(max_rows, 1000)), json_to)
    if json_to != "-":
        _print(log, diagnosis, Console(highlight=False), max_rows)
    if keep:
        _keep(logs, log, diagnosis, home, errors)
    raise typer.Exit(VERDICT_EXIT_CODES[diagnosis.verdict])


def _keep(names: list[str], log: CanaryLog, diagnosis: Diagnosis, home: Path | None, errors: Console) -> None:
    # Brings the database along, for which other inspections need not wait.
    from kvcanary.lab.records import Verdict
    from kvcanary.store.home import open_store

    source = ", ".join("stdin" if name == "-" else Path(name).name for name in names)
    try:
        run = open_store(os.environ, home).save_inspection(
            source, verdict=Verdict(diagnosis.verdict), sentence=diagnosis.sentence, document=report_data(log, diagnosis)
        )
    except KvCanaryError as error:
        errors.print(terminal_text(str(error)))
        raise typer.Exit(BAD_INPUT) from error
    errors.print(f"kept as run {run}")


def _input(names: list[str], errors: Console) -> CanaryLog:
    if names == ["-"]:
        return read_stream(sys.stdin.buffer, name="stdin")
    snapshots = [name for name in names if name.endswith(SNAPSHOT_SUFFIX)]
    if snapshots and len(snapshots) < len(names):
        raise ImportTextError(f"snapshots and logs cannot be mixed, got {', '.join(names[:4])}; inspect them one after the other")
    return _verify_snapshots(snapshots) if snapshots else _read([Path(name) for name in names], errors)


def _verify_snapshots(names: list[str]) -> CanaryLog:
    # torch takes seconds to load, and logs do without it.
    from kvcanary.analysis.snapshot_log import read_snapshots

    return read_snapshots([(name, Path(name)) for name in names])[0]


def _read(paths: list[Path], errors: Console) -> CanaryLog:
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size < _PROGRESS_FROM_BYTES or not errors.is_terminal:
        return read_logs(paths)
    with Progress(BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn(), console=errors, transient=True) as bar:
        task = bar.add_task("reading", total=size)
        return read_logs(paths, progress=lambda done, total: bar.update(task, completed=done, total=total))


def _print(log: CanaryLog, diagnosis: Diagnosis, console: Console, max_rows: int) -> None:
    style = VERDICT_STYLES[diagnosis.verdict]
    console.print(f"[{style}]{diagnosis.verdict.upper()}[/] {terminal_text(diagnosis.sentence)}")
    for reason in diagnosis.coverage.reasons[: max_rows if diagnosis.verdict != "not run" else 1]:
        console.print(f"  [yellow]![/] {terminal_text(reason)}")
    for note in diagnosis.notes:
        console.print(f"  [blue]i[/] {terminal_text(note)}")
    if len(log.violations):
        console.print(_counts_table(log, max_rows))
    for number, cause in enumerate(diagnosis.causes, start=1):
        _print_cause(number, cause, console)
    if diagnosis.incidents:
        console.print(_incident_table(diagnosis, max_rows))
    console.print(_rank_table(log, max_rows))
    console.print("[bold]What this log cannot tell[/]")
    for limit in diagnosis.coverage.cannot_tell:
        console.print(f"  · {terminal_text(limit)}")
    unread = f", {format_count(log.unread)} canary lines not understood" if log.unread else ""
    console.print(
        f"[dim]{len(log.files)} file{'s' if len(log.files) != 1 else ''}, {format_bytes(log.bytes_read)}, {format_count(log.lines)} lines, "
        f"{format_count(log.canary_lines)} of the canary{unread}[/]"
    )


def _counts_table(log: CanaryLog, max_rows: int) -> Table:
    table = Table("rank", "launch", "reasons", title="Violations by rank and reason", title_justify="left")
    table.add_column("rows", justify="right")
    table.add_column("slots", justify="right")
    groups = counts(log.violations)
    for group in groups[:max_rows]:
        rank = f"{group['source']} {group['rank']}".strip()
        table.add_row(
            terminal_text(rank),
            terminal_text(group["launch_tag"]),
            terminal_text(group["reasons"]),
            format_count(group["violations"]),
            format_count(group["slots"]),
        )
    if len(groups) > max_rows:
        table.caption = f"{len(groups) - max_rows} more; --json has them all"
    return table


def _print_cause(number: int, cause: DiagnosedCause, console: Console) -> None:
    text = cause.text
    console.print(f"[bold]{number}. {terminal_text(text.title)}[/] ({cause.confidence.name.lower()} confidence)")
    console.print(f"   {terminal_text(text.meaning)}")
    for title, items in (("Evidence", cause.evidence), ("Confirm", text.confirm)):
        for item in items:
            console.print(f"   [dim]{title}:[/] {terminal_text(item)}")
    for title, words in (
        ("Flags", text.flags),
        ("Public reports", text.references),
        ("Also possible", [other.replace("_", " ") for other in cause.others]),
    ):
        if words:
            console.print(f"   [dim]{title}:[/] {terminal_text(' · '.join(words))}")


def _incident_table(diagnosis: Diagnosis, max_rows: int) -> Table:
    table = Table("#", "time", "ranks", "slots", "echoes", "cause", title="Incidents", title_justify="left")
    table.add_column("steps", justify="right")
    table.add_column("rows", justify="right")
    for incident in diagnosis.incidents[:max_rows]:
        steps = "" if incident.first_step is None else f"{incident.first_step}"
        if incident.last_step != incident.first_step:
            steps += f"–{incident.last_step}"
        suspicion = diagnosis.suspicions[incident.number]
        table.add_row(
            f"{incident.number}",
            f"{incident.first_time or ''}",
            terminal_text(", ".join(incident.ranks)),
            _slot_words([finding.slot for finding in incident.causes]),
            _slot_words([finding.slot for finding in incident.echoes]),
            f"{suspicion.cause.replace('_', ' ')} ({suspicion.confidence.name.lower()})",
            steps,
            format_count(incident.rows),
        )
    if len(diagnosis.incidents) > max_rows:
        table.caption = f"{format_count(len(diagnosis.incidents) - max_rows)} more; --max-rows shows them"
    return table


def _rank_table(log: CanaryLog, max_rows: int) -> Table:
    table = Table("rank", title="Coverage by rank", title_justify="left")
    for name in ("listed", "counted", "last step", "skipped steps", "checks and writes", "sweeps", "pool slots"):
        table.add_column(name, justify="right")
    reports = [report for report in log.streams if report.canary_lines]
    for report in reports[:max_rows]:
        numbers = (
            report.listed,
            report.counter,
            report.last_step,
            report.overflow_steps,
            report.protected_tokens,
            report.sweep_passes,
            report.pool_slots,
        )
        table.add_row(terminal_text(report.stream.label), *("unknown" if number is None else format_count(number) for number in numbers))
    return table


def _slot_words(slots: list[int]) -> str:
    ordered = sorted(set(slots))
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(str(slot) for slot in ordered[:4]) + (f" +{len(ordered) - 4}" if len(ordered) > 4 else "")
