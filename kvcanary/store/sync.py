"""Takes run folders into the database: new ones, those that changed, and those whose worker died without a word."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from kvcanary.errors import StoreError
from kvcanary.lab.leases import LOCKS_FOLDER
from kvcanary.lab.lifecycle import RUNS_FOLDER, settle
from kvcanary.lab.records import RunFolder, RunRecord, RunState
from kvcanary.store.connection import LOCK_WAIT_S, reading, writing
from kvcanary.store.files import RunFiles
from kvcanary.store.rows import from_record
from kvcanary.store.schema import DOCUMENTS, FOLDERS, LABELS, RUNS

_ACTIVE = [state.value for state in RunState if state.active]
# A folder that changed this moment may change again without its time moving on.
_TIME_STEP_NS = 2_000_000_000
_BATCH = 500


@dataclass(frozen=True, slots=True)
class _Found:
    """A run as its folder has it: record, finished points or runs, bytes of its files, and what changes when any of that does."""

    record: RunRecord
    points: int
    size_bytes: int
    signature: tuple[int, ...]


class FolderSync:
    """Keeps the rows of one data folder's runs equal to their files. Thread-safe, and safe beside other processes that do the same."""

    def __init__(self, engine: Engine, files: RunFiles) -> None:
        self.origin = _origin_of(files.root)
        self._engine, self._files, self._runs = engine, files, files.root / RUNS_FOLDER
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, ...]] = {}
        self._known: set[str] | None = None
        self._unfinished: set[str] = set()
        self._unpublished: set[str] | None = set() if not files.shared_url else None
        self.problems: dict[str, str] = {}
        with reading(engine) as connection:
            found = connection.execute(select(FOLDERS).where(FOLDERS.c.origin == self.origin)).mappings().one_or_none()
        self._scanned_ns = found["scanned_ns"] if found else 0
        place = {"host": platform.node(), "path": str(files.root.resolve())}
        if found is None or {name: found[name] for name in place} != place:
            self._remember(place, found["scanned_ns"] if found else 0)

    def run(self) -> None:
        """Look for what is new or has changed. StoreError when the database cannot be written."""
        with self._lock:
            names, scanned_ns = self._new_names()
            with reading(self._engine) as connection:
                query = select(RUNS.c.id, RUNS.c.state).where(RUNS.c.origin == self.origin, RUNS.c.state.in_(_ACTIVE))
                active = {row.id: row.state for row in connection.execute(query)}
            batch: list[_Found] = []
            for name in {*names, *active}:
                if (found := self._changed(name, active.get(name))) is not None:
                    batch.append(found)
                if len(batch) == _BATCH:
                    self._store(batch)
                    batch = []
            self._store(batch)
            self._publish()
            if scanned_ns is not None:
                self._scanned_ns = scanned_ns
                # Another process may leave this folder unread from now on, unless something in it is still to come.
                if not self._unfinished:
                    with writing(self._engine) as connection:
                        connection.execute(update(FOLDERS).where(FOLDERS.c.origin == self.origin).values(scanned_ns=scanned_ns))

    def place_of(self, connection: Connection, origin: str) -> str:
        """Where a data folder was when it was last opened."""
        found = connection.execute(select(FOLDERS).where(FOLDERS.c.origin == origin)).mappings().one_or_none()
        if found is None:
            return "their data folder is not known"
        if origin == self.origin:
            return f"they were removed from {found['path']}"
        return f"they lie on {found['host']} in {found['path']}; name a place that all hosts reach with KVCANARY_FILES_URL"

    def _new_names(self) -> tuple[set[str], int | None]:
        """Folders that may hold a run that the database does not know, and the folder's change time where all were looked at."""
        try:
            changed_ns = self._runs.stat().st_mtime_ns
            if changed_ns == self._scanned_ns:
                return set(self._unfinished), None
            names = {entry.name for entry in os.scandir(self._runs) if not entry.name.startswith(".")}
        except FileNotFoundError:
            return set(), None
        except OSError as error:
            raise StoreError(f"runs under {self._runs} cannot be listed: {error.strerror}") from error
        self._unfinished &= names
        self.problems = {name: text for name, text in self.problems.items() if name in names}
        if self._known is None:
            with reading(self._engine) as connection:
                self._known = set(connection.scalars(select(RUNS.c.id).where(RUNS.c.origin == self.origin)))
        settled = time.time_ns() - changed_ns > _TIME_STEP_NS
        return names - self._known, changed_ns if settled else None

    def _changed(self, name: str, stored_state: str | None) -> _Found | None:
        """A run that is new or has changed, None otherwise. stored_state: what the database says of an active one."""
        folder = RunFolder(self._runs / name)
        if not (folder.path / "run.json").is_file():
            if stored_state is not None:
                return self._vanished(name)
            # Its writer is between making the folder and writing the record, or it is no run.
            self._unfinished.add(name)
            return None
        try:
            # Before the record, so that what is written between the two is seen the next time.
            signature = folder.signature()
            record = settle(folder)
            # A slower process may have put an earlier state over a later one.
            if self._seen.get(name) == signature and stored_state == record.state.value:
                return None
            found = _Found(record, folder.count_finished(), folder.size_bytes(), signature)
        except (StoreError, OSError) as error:
            self._unfinished.add(name)
            self.problems[name] = str(error)
            return None
        self._unfinished.discard(name)
        self.problems.pop(name, None)
        return found

    def _vanished(self, name: str) -> _Found | None:
        """A run whose folder was removed by hand is over, and what the database knows of it is kept."""
        with reading(self._engine) as connection:
            points = connection.scalar(select(RUNS.c.points).where(RUNS.c.id == name))
            document = connection.scalar(select(DOCUMENTS.c.document).where(DOCUMENTS.c.run_id == name))
        if document is None:
            return None
        record = RunRecord.from_document(json.loads(document))
        sentence = "Interrupted: its folder was removed while it was active."
        ended = replace(record, state=RunState.INTERRUPTED, finished_s=time.time(), sentence=sentence)
        return _Found(ended, points or 0, 0, ())

    def _publish(self) -> None:
        """Copy finished runs to the shared place; what cannot be copied now is tried again at the next look."""
        if self._unpublished is None:
            wanted = RUNS.c.origin == self.origin, RUNS.c.files_url == "", RUNS.c.state.not_in(_ACTIVE)
            with reading(self._engine) as connection:
                self._unpublished = set(connection.scalars(select(RUNS.c.id).where(*wanted)))
        for name in sorted(self._unpublished):
            folder = self._files.own(name)
            if folder is not None:
                try:
                    url = self._files.publish(folder)
                except StoreError as error:
                    self.problems[name] = str(error)
                    continue
                with writing(self._engine) as connection:
                    connection.execute(update(RUNS).where(RUNS.c.id == name).values(files_url=url))
                self.problems.pop(name, None)
            self._unpublished.discard(name)

    def _store(self, found: Sequence[_Found]) -> None:
        if not found:
            return
        # In one order for all writers: two that locked the same rows the other way round would wait for each other.
        found = sorted(found, key=lambda run: run.record.id)
        with writing(self._engine) as connection:
            own = upsert_runs(connection, self.origin, found)
            # Purged by somebody else after it was read here: it must not come back.
            purged = {run.record.id for run in found if run.signature and not (self._runs / run.record.id).exists()} & own
            if purged:
                remove_runs(connection, purged)
        for run in found:
            name = run.record.id
            if name in purged:
                continue
            if name not in own:
                self.problems[name] = f"run {name} is in the store already, from another data folder; rename its folder to keep both"
                continue
            self._seen[name] = run.signature
            if self._known is not None:
                self._known.add(name)
            if self._files.shared_url and self._unpublished is not None and not run.record.state.active:
                self._unpublished.add(name)

    def _remember(self, place: dict[str, str], scanned_ns: int) -> None:
        with writing(self._engine) as connection:
            values = {"origin": self.origin, **place, "scanned_ns": scanned_ns}
            insert = insert_for(connection)(FOLDERS).values(values)
            connection.execute(insert.on_conflict_do_update(index_elements=["origin"], set_=place))


def upsert_runs(connection: Connection, origin: str, found: Sequence[_Found]) -> set[str]:
    """Write rows and documents of runs and return their ids; those that another data folder's runs have are left alone and left out.

    What people added to a run stays.
    """
    rows = [from_record(run.record, origin=origin, points=run.points, size_bytes=run.size_bytes) for run in found]
    # What goes on with a private campaign holds its results.
    earlier = [str(run.record.spec.get("continues", "")) for run in found]
    hidden = set(connection.scalars(select(RUNS.c.id).where(RUNS.c.id.in_(set(earlier) - {""}), RUNS.c.private == 1)))
    for row, continued in zip(rows, earlier, strict=True):
        row["private"] |= int(bool(row["owner"]) and continued in hidden)
    insert = insert_for(connection)
    into_runs = insert(RUNS)
    changes = {name: into_runs.excluded[name] for name in rows[0] if name not in ("id", "private")}
    connection.execute(into_runs.on_conflict_do_update(index_elements=["id"], set_=changes, where=RUNS.c.origin == origin), rows)
    ids = [run.record.id for run in found]
    own = set(connection.scalars(select(RUNS.c.id).where(RUNS.c.id.in_(ids), RUNS.c.origin == origin)))
    documents = [{"run_id": run.record.id, "document": json.dumps(run.record.to_document())} for run in found if run.record.id in own]
    if documents:
        into_documents = insert(DOCUMENTS)
        change = {"document": into_documents.excluded.document}
        connection.execute(into_documents.on_conflict_do_update(index_elements=["run_id"], set_=change), documents)
    return own


def remove_runs(connection: Connection, run_ids: Collection[str]) -> None:
    """Take rows, documents and labels of runs out of the database."""
    for column in (LABELS.c.run_id, DOCUMENTS.c.run_id, RUNS.c.id):
        connection.execute(delete(column.table).where(column.in_(run_ids)))


def insert_for(connection: Connection) -> Any:
    """The INSERT of the database that knows what to do about a conflict."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _origin_of(root: Path) -> str:
    """The name of a data folder, given once and kept in it, whatever host or path it is reached by."""
    path = root / "origin"
    try:
        (root / LOCKS_FOLDER).mkdir(parents=True, exist_ok=True)
        with FileLock(root / LOCKS_FOLDER / "origin.lock", timeout=LOCK_WAIT_S):
            if not path.is_file():
                fresh = root / ".origin"
                fresh.write_text(uuid.uuid4().hex, encoding="utf-8")
                os.replace(fresh, path)
            return path.read_text(encoding="utf-8").strip()
    except Timeout as error:
        raise StoreError(f"data folder {root} is held by another program for more than {LOCK_WAIT_S:g} s; try again") from error
    except OSError as error:
        raise StoreError(f"data folder {root} cannot be written: {error.strerror}; choose another one with KVCANARY_HOME") from error
