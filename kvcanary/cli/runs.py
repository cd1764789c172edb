"""`kvcanary runs`: the stored runs without a browser."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvcanary.cli import runs_disk
from kvcanary.cli.exit_codes import VERDICT_EXIT_CODES
from kvcanary.cli.options import Home, JsonTarget, fail, read_file, wide_console, write_document
from kvcanary.cli.run_names import find_run, write_bytes, write_text
from kvcanary.cli.runs_table import read_age, run_table
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text, visible
from kvcanary.store.database import Store
from kvcanary.store.home import open_store
from kvcanary.store.rows import KINDS, RunRow
from kvcanary.units import format_count

group = typer.Typer(
    name="runs", add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Stored runs: list, show, annotate, delete, restore and purge, export, retain. A run is named by its id, a part of it, or latest.",
)  # fmt: skip

_DOCUMENT_LIMIT_BYTES = 256 << 20

Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, a part of it that no other has, or latest.")]
SomeRuns = Annotated[list[str], typer.Argument(metavar="RUN...", help="One or more runs.")]


class Format(StrEnum):
    """What a run can be exported as."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    HTML = "html"


@group.command("list")
def list_runs(
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}.")] = None,
    verdict: Annotated[str | None, typer.Option(help="pass, fail, partial or 'not run'.")] = None,
    state: Annotated[str | None, typer.Option(help="queued, running, done, failed, stopped or interrupted.")] = None,
    machine: Annotated[str | None, typer.Option(help="Accelerator or processor, as the list shows it.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, as the list shows it.")] = None,
    label: Annotated[str | None, typer.Option(help="Only runs with this label.")] = None,
    text: Annotated[str | None, typer.Option(help="Words in id, sentence, note, model or machine.")] = None,
    newer_than: Annotated[str | None, typer.Option(metavar="AGE", help="30min, 12h, 7d, 2w, or a date such as 2026-01-31.")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The deleted runs that can still be restored.")] = False,
    order: Annotated[str, typer.Option(help="newest, oldest or largest.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 50,
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:
    """List runs, newest first.

    Examples:

      kvcanary runs list --kind benchmark --label nightly

      kvcanary runs list --newer-than 7d --json -
    """
    filters: dict[str, Any] = {"kind": kind, "verdict": verdict, "state": state, "machine": machine, "model": model, "label": label}
    try:
        store = open_store(os.environ, home)
        filters |= {"text": text, "deleted": deleted, "newer_than": None if newer_than is None else read_age(newer_than)}
        rows, count = store.list(order=order, limit=limit, **filters), store.count(**filters)
        damaged = store.damaged()
    except KvCanaryError as error:
        fail(str(error))
    for problem in damaged:
        typer.echo(f"not readable: {visible(problem)}", err=True)
    if json_target is not None:
        write_document({"schema": "kvcanary.run_list", "version": 1, "count": count, "runs": [_row(row) for row in rows]}, json_target)
        return
    console = wide_console()
    if not rows:
        console.print("No run fits." if any(value for value in filters.values()) else "No run is stored yet.")
        return
    console.print(run_table(rows))
    if count > len(rows):
        console.print(f"{format_count(len(rows))} of {format_count(count)} runs; --limit shows more.")


@group.command()
def show(run: Run, home: Home = None, json_target: JsonTarget = None) -> None:
    """One run: verdict, sentence, settings that are not at their default, machine, note and labels.

    Exit code: that of the run's verdict.
    """
    try:
        store = open_store(os.environ, home)
        run_id = find_run(store, run)
        row, record = store.row(run_id), store.record(run_id)
        document = store.document(run_id) if json_target is not None else {}
    except KvCanaryError as error:
        fail(str(error))
    if json_target is not None:
        write_document(document, json_target)
    else:
        # Brings the charts, for which a list need not wait.
        from kvcanary.charts.sections import run_sections

        console = wide_console()
        console.print(terminal_text(record.sentence or f"{record.state}. {record.error}"))
        for section in run_sections(store, run_id):
            console.print(f"\n[bold]{terminal_text(section.heading)}[/]")
            if section.sentence:
                console.print(terminal_text(section.sentence))
            for picture in section.pictures:
                console.print(terminal_text(picture.alt))
            for found in section.tables:
                table = Table(box=None, pad_edge=False)
                for index, name in enumerate(found.head):
                    table.add_column(terminal_text(name), justify="right" if index in found.numeric else "left")
                for cells in found.rows:
                    table.add_row(*map(terminal_text, cells))
                console.print(table)
                if found.caption:
                    console.print(terminal_text(found.caption))
            if section.code:
                console.print(terminal_text(section.code))
    raise typer.Exit(VERDICT_EXIT_CODES[row.verdict.value])


@group.command()
def note(run: Run, text: Annotated[str, typer.Argument(help="The note; an empty text takes it away.")], home: Home = None) -> None:
    """Write a note on a run."""
    _change([run], home, lambda store, run_id: store.set_note(run_id, text), "noted")


@group.command()
def label(
    run: Run,
    labels: Annotated[list[str], typer.Argument(metavar="LABEL...", help="Labels to give.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the labels away instead.")] = False,
    home: Home = None,
) -> None:
    """Give a run labels, or take them away."""

    def change(store: Store, run_id: str) -> None:
        for name in labels:
            (store.remove_label if remove else store.add_label)(run_id, name)

    _change([run], home, change, "unlabelled" if remove else "labelled")


@group.command()
def delete(runs: SomeRuns, home: Home = None) -> None:
    """Delete runs; they can be restored for a day."""
    _change(runs, home, lambda store, run_id: store.delete(run_id), "deleted")


@group.command()
def restore(runs: SomeRuns, home: Home = None) -> None:
    """Take deleted runs back."""
    _change(runs, home, lambda store, run_id: store.restore(run_id), "restored", deleted=True)


@group.command()
def export(
    run: Run,
    form: Annotated[
        Format, typer.Option("--format", help="csv and parquet hold the measurements, json all but the slot map.")
    ] = Format.JSON,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; standard output without it.")] = None,
    home: Home = None,
) -> None:
    """Write a run for other programs, or as one self-contained HTML report.

    Examples:

      kvcanary runs export latest --format html --out report.html

      kvcanary runs export 1f2e3d4c --format csv
    """
    from kvcanary.charts.sections import run_report
    from kvcanary.store import export as exports

    try:
        store = open_store(os.environ, home)
        run_id = find_run(store, run)
        if form is Format.PARQUET:
            content = exports.export_parquet(store, run_id)
            if out is None and sys.stdout.isatty():
                raise ConfigError("parquet is no text for a terminal; give --out FILE")
            if out is None:
                sys.stdout.buffer.write(content)
            else:
                write_bytes(out, content)
            return
        make = {Format.JSON: exports.export_json, Format.CSV: exports.export_csv, Format.HTML: run_report}[form]
        text = make(store, run_id)
    except KvCanaryError as error:
        fail(str(error))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)


@group.command("import")
def import_documents(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSON documents from `kvcanary runs export`, of any version.")],
    home: Home = None,
) -> None:
    """Take in runs that another store exported, with their notes and labels; they keep their ids.

    Example: kvcanary runs import run.json
    """
    from kvcanary.store.documents import parse_document

    for path in files:
        try:
            document = parse_document(read_file(path, _DOCUMENT_LIMIT_BYTES, "the document of a run"))
            typer.echo(f"took in {open_store(os.environ, home).take_in(document)}")
        except ConfigError as error:
            fail(str(error))
        except KvCanaryError as error:
            fail(f"{path}: {error}")


for _command in (runs_disk.retain, runs_disk.purge, runs_disk.usage):
    group.command()(_command)


def _change(names: list[str], home: Path | None, change: Any, done: str, *, deleted: bool = False) -> None:
    """Find all runs first, so that a wrong name changes nothing."""
    try:
        store = open_store(os.environ, home)
        run_ids = [find_run(store, name, deleted=deleted) for name in names]
        for run_id in run_ids:
            change(store, run_id)
            typer.echo(f"{done} {run_id}")
    except KvCanaryError as error:
        fail(str(error))


def _row(row: RunRow) -> dict[str, Any]:
    return {**asdict(row), "state": row.state.value, "verdict": row.verdict.value, "labels": [*row.labels]}
