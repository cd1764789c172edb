"""The store: every plan, benchmark, campaign and inspection as a run that can be found, opened, annotated, deleted and kept in bounds.

A run's files are its truth; the database is an index over them and holds what people add. It lives in the data folder (SQLite) or wherever
a URL says, where several hosts may share it.
"""

from __future__ import annotations

import copy
import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from kvcanary.errors import StoreError
from kvcanary.lab.lifecycle import RUN_ID, RUNS_FOLDER, new_folder
from kvcanary.lab.machine import machine, versions
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict
from kvcanary.store.connection import name_of, open_database, reading, writing
from kvcanary.store.disk import DiskUse, measure
from kvcanary.store.documents import RunDocument, write_run
from kvcanary.store.files import RunFiles
from kvcanary.store.retention import beyond, mark_deleted
from kvcanary.store.rows import EQUAL, LABEL_LIMIT, NOTE_LIMIT, Filters, RunRow, condition, order_by, to_row, visible_to
from kvcanary.store.runs import SlotArrays, read_cards, read_slot_arrays
from kvcanary.store.schema import DOCUMENTS, LABELS, RUNS
from kvcanary.store.sync import FolderSync, insert_for, remove_runs

DATABASE_NAME = "store.sqlite3"
UNDO_S = 24 * 3600.0

_Rows = list[RunRow]
_Records = list[RunRecord]
_Texts = list[str]
_Points = list[Point]
_Cards = list[dict[str, Any]]


class Store:
    """Thread-safe; any number of processes may have the same store open. Reads look at the run folders first, so they are always current."""

    def __init__(self, url: str, root: Path, shared_url: str = "") -> None:
        self.root = root
        self.files = RunFiles(root, shared_url)
        self._engine = open_database(url)
        self._not_removed: dict[str, str] = {}
        self._viewer: str | None = None
        self._sync = FolderSync(self._engine, self.files)
        self._sync.run()

    @classmethod
    def open(cls, url: str | None, data_folder: Path, shared_url: str = "") -> Store:
        """Open or make a store; its schema is brought up to date and runs that lie in the data folder are taken in.

        url: any database that SQLAlchemy reaches, None for SQLite in the data folder. shared_url: a folder or fsspec URL that the files of
        finished runs are copied to, for other hosts on the same database. StoreError: unreachable, locked, damaged, full, read-only, newer.
        """
        return cls(url or f"sqlite:///{data_folder / DATABASE_NAME}", data_folder, shared_url)

    def seen_by(self, key: str) -> Store:
        """This store for one person, by the key of their login: private runs of others are not there. Connections are shared.

        Retention and purging are for who runs the store, and look at all runs.
        """
        theirs = copy.copy(self)
        theirs._viewer = key
        return theirs

    def close(self) -> None:
        """Give back connections."""
        self._engine.dispose()

    def __str__(self) -> str:
        return name_of(self._engine)

    def list(self, *, order: str = "newest", limit: int | None = None, offset: int = 0, **filters: Unpack[Filters]) -> _Rows:
        """Rows that fit all filters; order is newest, oldest or largest."""
        self._sync.run()
        query = select(RUNS).where(condition(filters), self._visible).order_by(*order_by(order)).limit(limit).offset(offset)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
            labels = _labels_of(connection, [row["id"] for row in rows])
        return [to_row(row, labels.get(row["id"], ())) for row in rows]

    def count(self, **filters: Unpack[Filters]) -> int:
        """How many runs fit all filters."""
        self._sync.run()
        with reading(self._engine) as connection:
            return connection.scalar(select(func.count()).select_from(RUNS).where(condition(filters), self._visible)) or 0

    def choices(self) -> dict[str, _Texts]:
        """What there is to filter by: kind, verdict, state, machine, model and label, each sorted and without the empty text."""
        self._sync.run()
        found = {}
        with reading(self._engine) as connection:
            for name in EQUAL:
                # Deleted runs are among them, so that an index alone answers.
                found[name] = sorted(value for value in connection.scalars(select(RUNS.c[name]).where(self._visible).distinct()) if value)
            labels = select(LABELS.c.label).distinct()
            if self._viewer is not None:
                labels = labels.join(RUNS, RUNS.c.id == LABELS.c.run_id).where(self._visible)
            found["label"] = sorted(connection.scalars(labels))
        return found

    def row(self, run_id: str) -> RunRow:
        """One row, deleted or not; StoreError when there is no such run."""
        self._sync.run()
        with reading(self._engine) as connection:
            found = connection.execute(select(RUNS).where(RUNS.c.id == _checked(run_id), self._visible)).mappings().one_or_none()
            if found is None:
                raise self._missing(run_id)
            return to_row(found, _labels_of(connection, [run_id]).get(run_id, ()))

    def record(self, run_id: str) -> RunRecord:
        """One record, as its folder has it, else as the database does; StoreError when there is no such run or it cannot be read."""
        self._see(run_id)
        if (own := self.files.own(run_id)) is not None:
            return own.read_record()
        with reading(self._engine) as connection:
            document = connection.scalar(select(DOCUMENTS.c.document).where(DOCUMENTS.c.run_id == _checked(run_id)))
        if document is None:
            raise self._missing(run_id)
        return RunRecord.from_document(json.loads(document))

    def records(self, *, order: str = "newest", limit: int | None = None, offset: int = 0, **filters: Unpack[Filters]) -> _Records:
        """Like `list`, with the whole record of each."""
        self._sync.run()
        query = select(DOCUMENTS.c.document).join(RUNS, RUNS.c.id == DOCUMENTS.c.run_id).where(condition(filters), self._visible)
        with reading(self._engine) as connection:
            documents = connection.scalars(query.order_by(*order_by(order)).limit(limit).offset(offset)).all()
        return [RunRecord.from_document(json.loads(document)) for document in documents]

    def folder(self, run_id: str) -> RunFolder:
        """A folder to read a run's files from; StoreError where they cannot be had here, naming where they are."""
        self._see(run_id)
        if (own := self.files.own(run_id)) is not None:
            return own
        with reading(self._engine) as connection:
            row = connection.execute(select(RUNS).where(RUNS.c.id == _checked(run_id))).mappings().one_or_none()
            if row is None:
                raise self._missing(run_id)
            if row["files_url"]:
                return self.files.folder(run_id, row["files_url"])
            raise StoreError(f"files of run {run_id} are not here: {self._sync.place_of(connection, row['origin'])}")

    def points(self, run_id: str) -> _Points:
        """Its measured points."""
        return self.folder(run_id).read_points()

    def slots(self, run_id: str) -> SlotArrays | None:
        """Its map, None where the run did not get that far."""
        return read_slot_arrays(self.folder(run_id))

    def cards(self, run_id: str) -> _Cards:
        """Cards of its bad slots."""
        return read_cards(self.folder(run_id))

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The document of a plan or an inspection, None for a run of another kind."""
        return self.folder(run_id).read_result()

    def document(self, run_id: str) -> dict[str, Any]:
        """The whole run but its arrays, as one JSON-ready document with its schema and version."""
        row, folder = self.row(run_id), self.folder(run_id)
        return {
            **self.record(run_id).to_document(),
            "note": row.note,
            "labels": [*row.labels],
            "points": [asdict(point) for point in folder.read_points()],
            "cards": read_cards(folder),
            "result": folder.read_result(),
        }

    def damaged(self) -> _Texts:
        """One sentence per folder that cannot be read, copied or removed; none for one person, as nothing says whose they are."""
        if self._viewer is not None:
            return []
        self._sync.run()
        return [*self._sync.problems.values(), *self._not_removed.values()]

    def set_note(self, run_id: str, note: str) -> None:
        """Replace the note of a run; empty takes it away."""
        if len(note) > NOTE_LIMIT:
            raise StoreError(f"a note must be at most {NOTE_LIMIT} characters, got {len(note)}; put longer text beside the run and name it")
        with self._changing(run_id) as connection:
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(note=note))

    def add_label(self, run_id: str, label: str) -> None:
        """Give a run a label; one that it has stays."""
        label = label.strip()
        if not 1 <= len(label) <= LABEL_LIMIT:
            raise StoreError(f"a label must be 1 to {LABEL_LIMIT} characters, got {len(label)}")
        with self._changing(run_id) as connection:
            connection.execute(insert_for(connection)(LABELS).values(run_id=run_id, label=label).on_conflict_do_nothing())

    def remove_label(self, run_id: str, label: str) -> None:
        """Take a label away; one that it does not have is no error."""
        self._see(run_id)
        with writing(self._engine) as connection:
            connection.execute(delete(LABELS).where(LABELS.c.run_id == run_id, LABELS.c.label == label.strip()))

    def delete(self, run_id: str) -> None:
        """Take a run out of every list; `restore` brings it back until `purge`. StoreError while it is active."""
        self._sync.run()
        if run_id in self._sync.problems and self._viewer is None:
            # A folder that cannot be read has no row that could be marked, and names nobody whose it is.
            self.files.remove(run_id, "")
            return
        with self._changing(run_id) as connection:
            state = connection.scalar(select(RUNS.c.state).where(RUNS.c.id == run_id))
            if state is not None and RunState(state).active:
                raise StoreError(f"run {run_id} is {state}; stop it before it is deleted")
            connection.execute(update(RUNS).where(RUNS.c.id == run_id, RUNS.c.deleted_s.is_(None)).values(deleted_s=time.time()))

    def restore(self, run_id: str) -> None:
        """Undo a deletion; StoreError when its files are gone already."""
        with self._changing(run_id) as connection:
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(deleted_s=None))

    def set_private(self, run_id: str, private: bool) -> None:
        """Whether its owner alone sees a run; StoreError for one that has none."""
        with self._changing(run_id) as connection:
            if private and not connection.scalar(select(RUNS.c.owner_key).where(RUNS.c.id == run_id)):
                raise StoreError(f"run {run_id} was made without a login, so that there is nobody to keep it to")
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(private=int(private)))

    def removable(self, after_s: float = UNDO_S) -> _Rows:
        """What `purge` would remove now, newest first."""
        self._sync.run()
        with reading(self._engine) as connection:
            rows = connection.execute(select(RUNS).where(*self._in_bin(after_s)).order_by(*order_by("newest"))).mappings().all()
        return [to_row(row, ()) for row in rows]

    def purge(self, after_s: float = UNDO_S) -> _Texts:
        """Remove for good what was deleted here more than after_s seconds ago; returns the ids. Other data folders purge their own."""
        own = self._in_bin(after_s)
        with reading(self._engine) as connection:
            old = connection.scalars(select(RUNS.c.id).where(*own).order_by(RUNS.c.id)).all()
        gone = []
        for run_id in old:
            with writing(self._engine) as connection:
                # Locked until the files are gone, so that a restore comes before or finds nothing.
                files_url = connection.scalar(select(RUNS.c.files_url).where(RUNS.c.id == run_id, *own).with_for_update())
                if files_url is not None:
                    try:
                        self.files.remove(run_id, files_url)
                    except StoreError as error:
                        self._not_removed[run_id] = str(error)
                        continue
                    self._not_removed.pop(run_id, None)
                    remove_runs(connection, [run_id])
                    gone.append(run_id)
        return gone

    def retain(self, *, keep_last: int | None = None, newer_than: float | None = None, dry_run: bool = False) -> _Rows:
        """Delete runs that are neither among the last `keep_last` nor newer than `newer_than` (seconds since the epoch); returns them.

        Active runs, and runs with a note or a label, stay. Deletions can be restored until they are purged. StoreError without a rule.
        """
        which = beyond(keep_last, newer_than)
        self._sync.run()
        with writing(self._engine) as connection:
            rows = connection.execute(select(RUNS).where(*which)).mappings().all() if dry_run else mark_deleted(connection, which)
        return sorted((to_row(row, ()) for row in rows), key=lambda row: row.created_s, reverse=True)

    def disk_use(self) -> DiskUse:
        """What the store takes and what is free."""
        self._sync.run()
        return measure(self._engine, self.root, self._visible)

    def save_plan(self, settings: dict[str, Any], *, verdict: Verdict, sentence: str, document: dict[str, Any], owner: str = "") -> str:
        """Keep a plan as a run and return its id. settings: flat; document: what `kvcanary plan --json` writes; owner: who alone sees it."""
        return self._save("plan", {"settings": settings}, verdict, sentence, document, owner)

    def save_inspection(self, source: str, *, verdict: Verdict, sentence: str, document: dict[str, Any], owner: str = "") -> str:
        """Keep an inspection as a run and return its id. source: the name of what was read; document: what `kvcanary inspect --json` writes."""
        return self._save("inspection", {"source": source}, verdict, sentence, document, owner)

    def take_in(self, document: RunDocument) -> str:
        """Keep a run that another store exported, with its note and labels, and return its id, which it keeps. Everybody sees it.

        StoreError when there is a run of that id, also a deleted one, or when the run is not over.
        """
        record = document.record
        if record.state.active:
            raise StoreError(f"run {record.id} is {record.state}; only a run that is over can be taken in")
        if not RUN_ID.fullmatch(record.id):
            raise StoreError(f"run id must look like 20260131-235959-benchmark-0a1b2c3d, got {record.id[:60]!r}")
        self._sync.run()
        with reading(self._engine) as connection:
            if connection.scalar(select(RUNS.c.id).where(RUNS.c.id == record.id)) is not None:
                raise StoreError(f"run {record.id} is in the store already")
        write_run(RunFolder(self.root / RUNS_FOLDER / record.id), document)
        self.set_private(record.id, False)
        self.set_note(record.id, document.note)
        for label in document.labels:
            self.add_label(record.id, label)
        return record.id

    def _save(self, kind: str, spec: dict[str, Any], verdict: Verdict, sentence: str, document: dict[str, Any], owner: str) -> str:
        folder = new_folder(self.root / RUNS_FOLDER, kind)
        now = time.time()
        record = RunRecord(
            id=folder.path.name, kind=kind, state=RunState.DONE, spec=spec, created_s=now, started_s=now, finished_s=now, verdict=verdict,
            sentence=sentence, machine=machine(), versions=versions(), host=platform.node(), owner=owner,
        )  # fmt: skip
        try:
            folder.write_result(document)
            folder.write_record(record)
        except OSError as error:
            raise StoreError(f"the {kind} cannot be stored under {folder.path.parent}: {error.strerror}") from error
        self._sync.run()
        return record.id

    @contextmanager
    def _changing(self, run_id: str) -> Iterator[Connection]:
        """A transaction on a run that exists."""
        self._sync.run()
        with writing(self._engine) as connection:
            if connection.scalar(select(RUNS.c.id).where(RUNS.c.id == _checked(run_id), self._visible)) is None:
                raise self._missing(run_id)
            yield connection

    @property
    def _visible(self) -> ColumnElement[bool]:
        return visible_to(self._viewer)

    def _see(self, run_id: str) -> None:
        """Before anything is read of a run past its row: StoreError, as for one that is not there, where the viewer may not see it."""
        if self._viewer is not None:
            self.row(run_id)

    def _in_bin(self, after_s: float) -> tuple[ColumnElement[bool], ...]:
        return RUNS.c.deleted_s <= time.time() - after_s, RUNS.c.origin == self._sync.origin

    def _missing(self, run_id: str) -> StoreError:
        return StoreError((self._viewer is None and self._sync.problems.get(run_id)) or f"no run {run_id[:60]!r} in store {self}")


def _checked(run_id: str) -> str:
    """A text that can be asked for; some databases refuse to be asked for others."""
    return "" if "\0" in run_id else run_id


def _labels_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for start in range(0, len(run_ids), 500):
        query = select(LABELS).where(LABELS.c.run_id.in_(run_ids[start : start + 500])).order_by(LABELS.c.label)
        for run_id, label in connection.execute(query):
            found[run_id] = (*found.get(run_id, ()), label)
    return found
