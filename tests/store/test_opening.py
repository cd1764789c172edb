"""Opening a store: made once, migrated from every earlier schema, and one sentence for each way in which it cannot be used."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from kvcanary.errors import StoreError
from kvcanary.lab.records import Verdict
from kvcanary.store import connection
from kvcanary.store.database import Store
from kvcanary.store.home import open_store as open_from_environment
from kvcanary.store.schema import METADATA
from tests.store import postgres
from tests.store.conftest import OpenStore
from tests.store.making import card, run_folder
from tests.stored_runs import store_run

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMAS = sorted({path.name.split(".")[0].removeprefix("store_") for path in GOLDEN.glob("store_*.sql")})
HEAD = SCHEMAS[-1]


def load(url: str, schema: str) -> None:
    """Fill an empty database with a golden store."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
            database.executescript((GOLDEN / f"store_{schema}.sqlite.sql").read_text(encoding="utf-8"))
        return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute((GOLDEN / f"store_{schema}.postgresql.sql").read_bytes())


def revision(store: Store) -> str | None:
    with connection.reading(store._engine) as found:
        return MigrationContext.configure(found).get_current_revision()


def test_the_newest_schema_has_a_golden_store() -> None:
    steps = sorted((Path(connection.__file__).with_name("migrations") / "versions").glob("step_*.py"))
    assert [step.stem.removeprefix("step_") for step in steps] == SCHEMAS


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_store_of_each_earlier_schema_is_read_and_brought_up_to_date(database_url: str, open_store: OpenStore, schema: str) -> None:
    load(database_url, schema)
    store = open_store()
    assert revision(store) == HEAD
    assert [(row.kind, row.state, row.verdict, row.note) for row in store.list()] == [
        ("campaign", "interrupted", "partial", ""), ("benchmark", "done", "pass", "after the driver update"),
    ]  # fmt: skip
    row = store.list(label="night")[0]
    assert (row.labels, row.sentence, row.points, row.size_bytes) == (("baseline", "night"), "Pass: 14 checks; it's sound.", 6, 4321)
    assert (row.created_s, row.finished_s, row.device, row.machine, row.host) == (100.5, 109.25, "cpu", "Xeon", "node-1")
    assert [row.deleted_s for row in store.list(deleted=True)] == [500.25]
    assert store.record(row.id).sentence == "Pass: 14 checks; it's sound."
    with pytest.raises(StoreError, match="they lie on node-1 in /data/a"):
        store.points(row.id)


def test_the_steps_lead_to_the_tables_that_the_code_reads(open_store: OpenStore) -> None:
    with connection.reading(open_store()._engine) as found:
        assert compare_metadata(MigrationContext.configure(found), METADATA) == []


def test_a_newer_schema_is_refused_with_a_sentence_and_left_alone(database_url: str, open_store: OpenStore) -> None:
    open_store().save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={})
    engine = open_store()._engine
    with connection.writing(engine) as found:
        found.exec_driver_sql("UPDATE alembic_version SET version_num = '9001'")
    with pytest.raises(StoreError, match=r"was written by a newer kvcanary \(schema 9001, this one knows up to 0003\); update kvcanary"):
        open_store()
    with connection.reading(engine) as found:
        assert MigrationContext.configure(found).get_current_revision() == "9001"


OPEN_AND_COUNT = """
import sys
from pathlib import Path
from kvcanary.store.database import Store
sys.stdin.readline()
print(Store.open(sys.argv[1], Path(sys.argv[2])).count())
"""


@pytest.mark.parametrize("schema", [None, *SCHEMAS[:-1]])
def test_processes_that_open_at_once_make_or_migrate_one_store(
    database_url: str, open_store: OpenStore, tmp_path: Path, schema: str | None
) -> None:
    if schema is not None:
        load(database_url, schema)
    for number in range(3):
        run_folder(tmp_path / "home", number)
    command = [sys.executable, "-c", OPEN_AND_COUNT, database_url, str(tmp_path / "home")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    expected = 3 if schema is None else 5
    assert [int(process.communicate(timeout=120)[0]) for process in processes] == [expected] * 4
    assert revision(open_store()) == HEAD


def test_folders_of_versions_without_a_database_are_taken_in(open_store: OpenStore, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "home_v1", tmp_path / "home")
    store = open_store()
    row = store.list()[0]
    assert (row.id, row.state, row.verdict, row.model) == ("20260318-091011-benchmark", "done", "pass", "qwen3-32b")
    assert [(point.workload, point.batch) for point in store.points(row.id)] == [("decode", 8), ("sweep", 1)]
    assert store.cards(row.id) == [card(77)]
    assert store.record(row.id).gate[0].name == "bytes equal the reference"


def test_the_environment_names_folder_and_database(tmp_path: Path) -> None:
    store = open_from_environment({"KVCANARY_HOME": str(tmp_path / "home")})
    assert str(store) == str(tmp_path / "home" / "store.sqlite3")
    other = open_from_environment(
        {"KVCANARY_HOME": str(tmp_path / "home"), "KVCANARY_DATABASE_URL": f"sqlite:///{tmp_path}/other.sqlite3", "KVCANARY_FILES_URL": "x"}
    )
    assert str(other) == str(tmp_path / "other.sqlite3")
    assert (other.files.shared_url, other.root) == ("x", tmp_path / "home")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "database URL is not understood"),
        ("oracle9://x/y", "database URL is not understood"),
        ("sqlite://", "cannot live in memory"),
        ("sqlite:///:memory:", "cannot live in memory"),
        ("postgresql://me:secret@127.0.0.1:1/none", r"store postgresql\+psycopg://me:\*\*\*@127.0.0.1:1/none does not answer as it should"),
    ],
)
def test_a_url_that_leads_nowhere_is_explained_without_its_password(tmp_path: Path, url: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence) as caught:
        Store.open(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def filled(home: Path, count: int = 40) -> Path:
    """A closed SQLite store with some runs; returns its file."""
    for number in range(count):
        run_folder(home, number)
    store = Store.open(None, home)
    assert store.count() == count
    store.close()
    return home / "store.sqlite3"


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, 20_000])
def test_a_truncated_store_is_named_and_the_way_out_works(tmp_path: Path, keep: int) -> None:
    file = filled(tmp_path)
    os.truncate(file, keep)
    with pytest.raises(StoreError, match=r"is damaged.*move it away and start again: runs are read anew from their folders") as caught:
        Store.open(None, tmp_path).list()
    assert "\n" not in str(caught.value)
    file.rename(tmp_path / "damaged")
    assert Store.open(None, tmp_path).count() == 40


def test_the_log_of_a_store_that_was_moved_away_is_not_applied_to_the_next_one(tmp_path: Path) -> None:
    file = filled(tmp_path / "home")
    store = Store.open(None, tmp_path / "home")
    for row in store.list():
        store.set_note(row.id, "of the store that was moved away " * 50)
    # As a killed process leaves it: pages that only the log has.
    shutil.copy(file.with_name("store.sqlite3-wal"), tmp_path / "log")
    store.close()
    file.rename(tmp_path / "damaged")
    shutil.copy(tmp_path / "log", file.with_name("store.sqlite3-wal"))
    again = Store.open(None, tmp_path / "home")
    assert [row.note for row in again.list()] == [""] * 40
    with connection.reading(again._engine) as found:
        assert found.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_text("These are my notes about the cluster. " * 200)
    with pytest.raises(StoreError, match="is damaged"):
        Store.open(None, tmp_path)


def test_a_store_that_another_program_has_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOCK_WAIT_S", 0.3)
    run_id = run_folder(tmp_path, 1).path.name
    store = Store.open(None, tmp_path)
    other = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"is locked by another program for more than 0.3 s; close that program"):
        store.set_note(run_id, "waiting")
    assert store.count() == 1
    other.execute("ROLLBACK")
    store.set_note(run_id, "waiting")
    assert store.row(run_id).note == "waiting"


def test_a_run_that_came_while_the_store_was_locked_is_taken_in_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOCK_WAIT_S", 0.3)
    store = Store.open(None, tmp_path)
    other = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    run_folder(tmp_path, 1)
    with pytest.raises(StoreError, match="is locked"):
        store.count()
    other.execute("ROLLBACK")
    assert store.count() == 1


def test_a_row_that_another_has_locked_is_named_on_a_server(
    postgres_url: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite locks whole files, see above")
    monkeypatch.setattr(connection, "LOCK_WAIT_S", 0.3)
    run_id = run_folder(tmp_path, 1).path.name
    store = Store.open(database_url, tmp_path)
    with psycopg.connect(database_url) as other:
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match=r"is locked by another program for more than 0.3 s"):
            store.set_note(run_id, "waiting")
    store.set_note(run_id, "waiting")


def test_a_database_server_that_goes_is_named_and_is_used_again_when_it_is_back(tmp_path: Path) -> None:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as server:
        store = Store.open(postgres.new_database(server.url, "gone"), tmp_path)
        before = store.save_plan({}, verdict=Verdict.PASS, sentence="before", document={})
        server.stop()
        with pytest.raises(StoreError, match=r"store postgresql.* does not answer as it should: .*refused"):
            store.list()
        meanwhile = store_run(tmp_path, 2)
        server.start()
        assert {row.id for row in store.list()} == {before, meanwhile}
        # No question in between: the connections at hand are dead, and nobody is told.
        server.stop()
        server.start()
        store.set_note(before, "still here")
        assert store.row(before).note == "still here"
        store.close()


@pytest.mark.skipif(os.getuid() == 0 and not shutil.which("setpriv"), reason="root may write what is read-only, and there is no setpriv")
def test_a_read_only_store_is_named(tmp_path: Path) -> None:
    file = filled(tmp_path, 1)
    command = [sys.executable, "-c", OPEN_AND_COUNT, "", str(tmp_path)]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    for path in (*tmp_path.parents[:2], tmp_path, tmp_path / "runs"):
        path.chmod(0o755)
    for path in (file, file.with_name("store.sqlite3.lock"), tmp_path / "locks"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(command, input="now\n", capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr or "init_fs_encoding" in done.stderr:
        pytest.skip("another user cannot read this Python")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kvcanary.errors.StoreError: ")
    assert "writable" in last or "cannot be written" in last


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.getuid() != 0 or not shutil.which("mount") or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    return place


def fill_up(place: Path) -> None:
    """Take all the room there is."""
    with (place / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass


def write_much(store: Store, run_id: str) -> None:
    for number in range(200):
        store.set_note(run_id, f"{number} " * 2000)


def test_a_full_disk_is_named_and_what_was_stored_stays(small_disk: Path) -> None:
    try:
        run_id = run_folder(small_disk, 1).path.name
        store = Store.open(None, small_disk)
        assert store.count() == 1
        fill_up(small_disk)
        with pytest.raises(StoreError, match=r"cannot be written (because the disk is full|\(disk I/O error)"):
            write_much(store, run_id)
        with pytest.raises(StoreError, match="cannot be stored"):
            store.save_plan({}, verdict=Verdict.PASS, sentence="", document={"text": "x" * 100_000})
        (small_disk / "filler").unlink()
        assert store.count() >= 1
        store.set_note(run_id, "there is room again")
        store.close()
        again = Store.open(None, small_disk)
        assert again.row(run_id).note == "there is room again"
        again.close()
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


def test_a_store_is_opened_without_waiting_for_torch(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from kvcanary.store.database import Store; Store.open(None, Path(sys.argv[1])).list()\n"
    code += "print(sorted({'torch', 'pandas', 'numba', 'streamlit'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=GOLDEN.parents[1])
    assert done.stdout == "[]\n"
