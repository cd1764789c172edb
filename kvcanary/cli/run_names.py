"""Runs as they are named on the command line, and files that are written there."""

from __future__ import annotations

from pathlib import Path

from kvcanary.cli.options import fail
from kvcanary.errors import StoreError
from kvcanary.store.database import Store

_SHOWN = 5


def find_run(store: Store, name: str, *, deleted: bool = False) -> str:
    """The id of the run that is meant: its id, a part of it that no other has, or 'latest'. StoreError names what fits."""
    wanted = name.strip()
    if wanted == "latest":
        rows = store.list(limit=1, deleted=deleted)
        if not rows:
            raise StoreError("there is no run yet")
        return rows[0].id
    rows = [row for row in store.list(text=wanted, deleted=deleted) if wanted in row.id] if wanted else []
    if any(row.id == wanted for row in rows):
        return wanted
    if len(rows) == 1:
        return rows[0].id
    if not rows:
        raise StoreError(f"no run {wanted[:60]!r} in store {store}; `kvcanary runs list` names them")
    listed = ", ".join(row.id for row in rows[:_SHOWN])
    raise StoreError(f"{len(rows)} runs have {wanted[:60]!r} in their id: {listed}{' and more' if len(rows) > _SHOWN else ''}; name one")


def write_text(path: Path, text: str) -> None:
    """Write a file; ends the command with a sentence where that is not possible."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file; ends the command with a sentence where that is not possible."""
    try:
        path.write_bytes(content)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
