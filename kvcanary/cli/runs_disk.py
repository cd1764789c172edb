"""`kvcanary runs retain`, `purge` and `usage`: what the store takes on disk, and how to have it take less."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from kvcanary.cli.exit_codes import PARTIAL
from kvcanary.cli.options import Home, JsonTarget, fail, wide_console, write_document
from kvcanary.cli.runs_table import how_many, read_age, run_table
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text, visible
from kvcanary.store.home import open_store
from kvcanary.store.rows import RunRow
from kvcanary.units import format_bytes, format_count

_SHOWN = 50


def retain(
    keep_last: Annotated[int | None, typer.Option(help="Keep this many of the newest runs.")] = None,
    newer_than: Annotated[str | None, typer.Option(metavar="AGE", help="Keep runs newer than 30min, 12h, 7d, 2w or a date.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and stop.")] = False,
    home: Home = None,
) -> None:
    """Delete runs that no rule keeps; active runs and runs with a note or a label stay. Deleted runs can be restored for a day.

    Examples:

      kvcanary runs retain --keep-last 200 --newer-than 30d --dry-run
    """
    try:
        since = None if newer_than is None else read_age(newer_than)
        doomed = open_store(os.environ, home).retain(keep_last=keep_last, newer_than=since, dry_run=dry_run)
    except KvCanaryError as error:
        fail(str(error))
    console = wide_console()
    console.print(f"{how_many(doomed)} {_verb(doomed, dry_run)} deleted.")
    _print_rows(console, doomed)


def purge(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only what was deleted before 30min, 12h, 7d, 2w or a date. Default: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it nothing is.")] = False,
    home: Home = None,
) -> None:
    """Remove deleted runs of this data folder for good: their files go, and nothing brings them back.

    Examples:

      kvcanary runs purge --dry-run

      kvcanary runs purge --older-than 12h --yes
    """
    try:
        after_s = 0.0 if older_than is None else time.time() - read_age(older_than)
        store = open_store(os.environ, home)
        doomed = store.removable(after_s)
        elsewhere = store.count(deleted=True) - len(store.removable(0.0))
        if doomed and not (dry_run or yes):
            raise ConfigError(
                f"{how_many(doomed)} would be removed for good, so nothing was done; --yes removes them, --dry-run lists them"
            )
        gone = set() if dry_run else set(store.purge(after_s))
        problems = [] if dry_run else store.damaged()
    except KvCanaryError as error:
        fail(str(error))
    console = wide_console()
    shown = doomed if dry_run else [row for row in doomed if row.id in gone]
    console.print(f"{how_many(shown)} {_verb(shown, dry_run)} removed for good.")
    _print_rows(console, shown)
    if elsewhere:
        console.print(f"{format_count(elsewhere)} more were deleted in other data folders of this store; purge them there.")
    for problem in problems:
        typer.echo(visible(problem), err=True)
    if not dry_run and len(shown) < len(doomed):
        raise typer.Exit(PARTIAL)


def _verb(rows: list[RunRow], dry_run: bool) -> str:
    return "would be" if dry_run else "was" if len(rows) == 1 else "were"


def _print_rows(console: Console, rows: list[RunRow]) -> None:
    if rows:
        console.print(run_table(rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        console.print(f"The newest {_SHOWN} of them.")


def usage(
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:
    """What the store takes on disk, by kind of run, and what is free."""
    try:
        store = open_store(os.environ, home)
        use = store.disk_use()
    except KvCanaryError as error:
        fail(str(error))
    if json_target is not None:
        write_document({"schema": "kvcanary.disk_use", "version": 1, **asdict(use)}, json_target)
        return
    console = wide_console()
    console.print(f"store {terminal_text(str(store))}")
    for name, size in (*use.by_kind.items(), ("deleted, can be restored", use.deleted_bytes), ("database", use.database_bytes)):
        console.print(f"  {name}: {format_bytes(size)}")
    console.print(f"  free: {format_bytes(use.free_bytes)}")
