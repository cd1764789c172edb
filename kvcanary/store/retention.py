"""Which runs a rule lets go, and marking them as deleted while others write the same rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, select, update

from kvcanary.errors import StoreError
from kvcanary.lab.records import RunState
from kvcanary.store.rows import order_by
from kvcanary.store.schema import LABELS, RUNS

_BATCH = 500


def beyond(keep_last: int | None, newer_than: float | None) -> list[ColumnElement[bool]]:
    """Runs that are neither among the last keep_last nor newer than newer_than (seconds since the epoch), as SQL.

    Active runs, deleted ones, and those with a note or a label are not among them. StoreError without a rule.
    """
    if keep_last is None and newer_than is None:
        raise StoreError(
            "retention needs a rule, keep_last (--keep-last 200) or newer_than (--newer-than 30d); without one nothing is deleted"
        )
    if keep_last is not None and keep_last < 0:
        raise StoreError(f"keep_last must be 0 or more, got {keep_last}")
    kept = select(RUNS.c.id).where(RUNS.c.deleted_s.is_(None)).order_by(*order_by("newest")).limit(keep_last or 0)
    plain = [
        RUNS.c.deleted_s.is_(None),
        RUNS.c.id.not_in(select(kept.subquery().c.id)),
        RUNS.c.state.not_in([state.value for state in RunState if state.active]),
        RUNS.c.note == "",
        RUNS.c.id.not_in(select(LABELS.c.run_id)),
    ]
    return plain if newer_than is None else [*plain, RUNS.c.created_s < newer_than]


def mark_deleted(connection: Connection, which: Sequence[ColumnElement[bool]]) -> list[RowMapping]:
    """Mark runs as deleted, in a transaction that writes, and return their rows."""
    # Locked by id, as everybody who takes in runs writes them: an order of its own would let each of the two wait for the other.
    ids = connection.scalars(select(RUNS.c.id).where(*which).order_by(RUNS.c.id).with_for_update()).all()
    marked: list[Any] = []
    now = time.time()
    for start in range(0, len(ids), _BATCH):
        change = update(RUNS).where(RUNS.c.id.in_(ids[start : start + _BATCH])).values(deleted_s=now).returning(*RUNS.c)
        marked += connection.execute(change).mappings().all()
    return marked
