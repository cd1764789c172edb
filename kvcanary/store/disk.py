"""What a store takes on disk."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Engine, func, select

from kvcanary.store.connection import reading
from kvcanary.store.schema import RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Bytes: of runs by kind, of deleted runs that can still be restored, of the database file (0 on a server), and free."""

    by_kind: dict[str, int]
    deleted_bytes: int
    database_bytes: int
    free_bytes: int

    @property
    def runs_bytes(self) -> int:
        """All runs that are not deleted."""
        return sum(self.by_kind.values())


def measure(engine: Engine, root: Path, counted: ColumnElement[bool]) -> DiskUse:
    """Bytes as the database knows them of the runs that count, and of its own file where it has one beside this process."""
    alive = RUNS.c.deleted_s.is_(None)
    with reading(engine) as connection:
        found = connection.execute(
            select(RUNS.c.kind, alive, func.sum(RUNS.c.size_bytes)).where(counted).group_by(RUNS.c.kind, alive)
        ).all()
    database = engine.url.database if engine.url.get_backend_name() == "sqlite" else None
    return DiskUse(
        by_kind={kind: int(size) for kind, is_alive, size in found if is_alive},
        deleted_bytes=sum(int(size) for _, is_alive, size in found if not is_alive),
        database_bytes=0 if database is None else _file_bytes(database) + _file_bytes(f"{database}-wal"),
        free_bytes=shutil.disk_usage(root).free,
    )


def _file_bytes(path: str) -> int:
    """Size of a file, 0 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
