"""`kvcanary import`: what a launch command, a log, server_info, config.json or an error message says, as settings with their sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.cli.options import JsonBeside, fail, wide_console, write_document
from kvcanary.config.findings import Severity
from kvcanary.errors import ImportTextError
from kvcanary.escape import terminal_text
from kvcanary.importers.amounts import with_amounts
from kvcanary.importers.detect import MAX_BYTES, merge, read_bytes
from kvcanary.importers.result import Command, ErrorExplanation, ImportKind, ImportResult, Unresolved
from kvcanary.importers.server_info import HOSTS_VARIABLE, fetch, parse_hosts

_SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "dim"}
_KIND_NAMES = {
    ImportKind.COMMAND: "launch command",
    ImportKind.LOG: "start-up log",
    ImportKind.SERVER_INFO: "server_info",
    ImportKind.HF_CONFIG: "config.json of a model",
    ImportKind.WEIGHT_INDEX: "index of a model's weights",
    ImportKind.SETTINGS: "settings of kvcanary",
    ImportKind.RUN: "run of kvcanary",
    ImportKind.ERROR: "error message",
    ImportKind.MIXED: "several pieces",
}


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help=f"Files to read, - for standard input; several are put together. A URL is fetched if {HOSTS_VARIABLE} allows it.",
        ),
    ],
    json_to: JsonBeside = None,
) -> None:
    """Read what is there instead of retyping it: recognises launch commands, logs, JSON and errors by itself.

    Nothing that is read is run or sent. Exit codes: 0 something was recognised · 2 bad input.
    """
    try:
        result = merge([_read(source) for source in sources])
    except ImportTextError as error:
        fail(str(error))
    if json_to is not None:
        write_document(result.to_dict(), json_to)
    if json_to != "-":
        _print(result, wide_console())


def _read(source: str) -> ImportResult:
    if source.startswith(("http://", "https://")):
        return fetch(source, allowed_hosts=parse_hosts(os.environ.get(HOSTS_VARIABLE, "")))
    try:
        if source == "-":
            return read_bytes(sys.stdin.buffer.read(MAX_BYTES + 1), name="stdin")
        with Path(source).open("rb") as stream:
            return read_bytes(stream.read(MAX_BYTES + 1), name=source)
    except OSError as error:
        raise ImportTextError(f"{source}: {error.strerror or error}") from error


def _print(result: ImportResult, console: Console) -> None:
    names = [_KIND_NAMES[part] for part in result.parts] or [_KIND_NAMES[result.kind]]
    engine = f" ({terminal_text(result.engine)})" if result.engine else ""
    console.print(f"[bold]{terminal_text(result.name)}[/]: {', '.join(names)}{engine}, {len(result.fields)} settings fields")
    for explanation in result.explanations:
        print_explanation(explanation, result, console)
    if result.fields:
        table = Table("Field", "Value", "From", "How", box=None, pad_edge=False, header_style="bold")
        for name, entry in result.fields.items():
            table.add_row(terminal_text(name), terminal_text(str(entry.value)), terminal_text(entry.source), terminal_text(entry.derived))
        console.print(table)
    for other in result.commands[1:]:
        console.print(f"[bold]also[/] {terminal_text(_in_short(other))}")
    for conflict in result.conflicts:
        shown = ", ".join(f"{terminal_text(str(entry.value))} ({terminal_text(entry.source)})" for entry in conflict.candidates)
        console.print(f"[bold yellow]differs[/] {terminal_text(conflict.name)}: {shown}; {terminal_text(conflict.reason)}")
    for finding in result.findings:
        style = _SEVERITY_STYLES[finding.severity]
        console.print(f"[{style}]{finding.severity}[/] {terminal_text(finding.message)}. {terminal_text(finding.why)}".rstrip())
    told = {finding.message for finding in result.findings}
    for word in result.unknown:
        if f"unknown flag: {word.flag}" in told:
            continue
        hint = f"; probably meant: {terminal_text(word.suggestion)}" if word.suggestion else ""
        console.print(f"[bold]unknown[/] {terminal_text(word.flag)} ({terminal_text(word.reason)}){hint}")
    _print_list(console, "no value in the text", result.unresolved)


def _in_short(command: Command) -> str:
    given = [*command.env.items(), *command.arguments.items()]
    words = (f"{name}={value.text if isinstance(value, Unresolved) else value}" for name, value in given)
    return f"line {command.line}, {command.engine}: {', '.join(words)}"


def print_explanation(explanation: ErrorExplanation, result: ImportResult, console: Console) -> None:
    """The message, what it means, its causes, and what to change by how much as far as the text tells."""
    console.print(f"[bold red]{terminal_text(explanation.message)}[/]")
    console.print(f"  {terminal_text(explanation.explanation)}")
    for number, cause in enumerate(explanation.causes, 1):
        console.print(f"  {number}. {terminal_text(cause)}")
    for given, fix in zip(explanation.fixes, with_amounts(explanation.fixes, result.observed, result.settings_values()), strict=True):
        if fix.amount_known:
            said = f"{fix.flag} ({fix.text})" if fix.flag else fix.text
        else:
            said = f"{fix.text} (the text does not say to what)" if fix.text == given.text else fix.text
        console.print(f"  [bold]change[/] {terminal_text(said)}", soft_wrap=True)


def _print_list(console: Console, title: str, entries: Iterable[str]) -> None:
    for entry in entries:
        console.print(f"[bold]{title}[/] {terminal_text(entry)}")
