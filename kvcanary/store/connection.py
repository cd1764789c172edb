"""Opening the database of a store: SQLite in a file or anything SQLAlchemy reaches, brought up to the newest schema, with errors as sentences."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from kvcanary.errors import StoreError

LOCK_WAIT_S = 30.0
# A file that is shorter is taken for a new database by SQLite, which would then begin an empty one in its place.
_HEADER_BYTES = 100
_MIGRATIONS = Path(__file__).with_name("migrations")
# Any number that nothing else in the database takes; held while the schema is brought up to date.
_ADVISORY_KEY = 0x6B76_6361_6E61
_DAMAGED = "is damaged; move it away and start again: runs are read anew from their folders; notes, labels and who may see a run are lost"
# What the engines say, in the order in which it is looked for, and what it means to the operator.
_SENTENCES = (
    ("database is locked", "is locked by another program for more than {wait:g} s; close that program, then try again"),
    ("lock timeout", "is locked by another program for more than {wait:g} s; close that program, then try again"),
    ("disk is full", "cannot be written because the disk is full; free space there, then try again"),
    ("No space left", "cannot be written because the disk is full; free space there, then try again"),
    ("disk I/O error", "cannot be written (disk I/O error: a full or failing disk); free space there, then try again"),
    ("readonly database", "cannot be written because it is read-only; make it and its folder writable, or choose another data folder"),
    ("unable to open database file", "cannot be opened; make it and its folder readable and writable, or choose another data folder"),
    ("malformed", _DAMAGED),
    ("not a database", _DAMAGED),
)


def open_database(url: str) -> Engine:
    """An engine whose database has the newest schema. StoreError for what cannot be reached, read, written or is of a newer schema."""
    try:
        parsed = _with_driver(make_url(url))
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _server(parsed)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ValueError) as error:
        raise StoreError(
            f"database URL is not understood: {error}; it must look like postgresql://user@host/name or sqlite:///file"
        ) from error
    with guarded(engine):
        _migrate(engine)
    return engine


def name_of(engine: Engine) -> str:
    """The store for a sentence: its file, or its URL without the password."""
    url = engine.url
    return str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)


@contextmanager
def guarded(engine: Engine) -> Iterator[None]:
    """Raise what the database says as one StoreError sentence."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _explained(engine, error) from error


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that will write; on SQLite it takes the write lock at its start, so that it never fails half way for want of it."""
    with guarded(engine), engine.execution_options(kvcanary_write=True).begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads."""
    with guarded(engine), engine.begin() as connection:
        yield connection


def _explained(engine: Engine, error: Exception) -> StoreError:
    said = str(getattr(error, "orig", None) or error).strip()
    for words, sentence in _SENTENCES:
        if words.lower() in said.lower():
            return StoreError(f"store {name_of(engine)} {sentence.format(wait=LOCK_WAIT_S)}")
    return StoreError(f"store {name_of(engine)} does not answer as it should: {said.splitlines()[0] if said else type(error).__name__}")


def _with_driver(url: URL) -> URL:
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def _server(url: URL) -> Engine:
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.get_backend_name() == "postgresql":
        options["connect_args"] = {"connect_timeout": 10, "options": f"-c lock_timeout={int(LOCK_WAIT_S * 1000)}"}
    return create_engine(url, **options)


def _sqlite(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreError("a store is shared by several processes and cannot live in memory; name a file: sqlite:///file")
    engine = _sqlite_engine(url)
    _create(Path(str(url.database)), url)
    return engine


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_S})

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own transactions start too late and end around DDL; ours are explicit.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("kvcanary_write") else "BEGIN")

    return engine


def _create(path: Path, url: URL) -> None:
    """Make a new store beside its final name and rename it, so that an empty file under that name is damage and not a beginning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_WAIT_S):
            if path.exists():
                if path.stat().st_size < _HEADER_BYTES:
                    raise StoreError(
                        f"store {path} is damaged (it is empty); move it away and start again: runs are read anew from their folders, "
                        "only notes, labels and who may see a run are lost"
                    )
                return
            # What a store that was moved away left behind would be applied to the new one.
            for leftover in ("-wal", "-shm"):
                path.with_name(path.name + leftover).unlink(missing_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            engine = _sqlite_engine(url.set(database=str(fresh)))
            with guarded(engine):
                with engine.connect() as connection:
                    # Kept in the file: readers and one writer at a time do not wait for each other.
                    connection.exec_driver_sql("COMMIT")
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                    connection.exec_driver_sql("BEGIN")
                _migrate(engine)
            engine.dispose()
            fresh.rename(path)
    except Timeout as error:
        raise StoreError(f"store {path} is being opened by another program for more than {LOCK_WAIT_S:g} s; try again") from error
    except OSError as error:
        raise StoreError(
            f"store {path} cannot be opened: {error.strerror or error}; make its folder writable or choose another one with KVCANARY_HOME"
        ) from error


def _migrate(engine: Engine) -> None:
    """Apply what is missing under a lock of the database, so that of two processes one does it and the other finds it done."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    head = script.get_current_head()
    with engine.connect() as connection:
        if _revision(connection) == head:
            return
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})
        found = _revision(connection)
        if found is not None and found not in {step.revision for step in script.walk_revisions()}:
            raise StoreError(
                f"store {name_of(engine)} was written by a newer kvcanary (schema {found}, this one knows up to {head}); update kvcanary"
            )
        with EnvironmentContext(config, script, fn=lambda revision, _context: script._upgrade_revs(str(head), revision)) as environment:
            environment.configure(connection=connection, target_metadata=None)
            environment.run_migrations()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
