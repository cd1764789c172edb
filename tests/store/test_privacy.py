"""Runs that only their owner sees: in no list, no choice and under no name for anybody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from kvcanary.errors import StoreError
from kvcanary.lab.records import Verdict
from kvcanary.store.database import Store
from kvcanary.store.documents import parse_document
from kvcanary.store.export import export_json
from tests.store.conftest import OpenStore
from tests.store.making import point, run_folder
from tests.store.test_opening import load

ADA, BOB = "https://login.example#1", "https://login.example#2"
OWNER = f"ada (x) ({ADA})"
USES: dict[str, Callable[[Store, str], object]] = {
    "row": Store.row,
    "record": Store.record,
    "folder": Store.folder,
    "points": Store.points,
    "slots": Store.slots,
    "cards": Store.cards,
    "result": Store.result,
    "document": Store.document,
    "set_note": lambda store, run_id: store.set_note(run_id, "mine now"),
    "add_label": lambda store, run_id: store.add_label(run_id, "mine"),
    "remove_label": lambda store, run_id: store.remove_label(run_id, "secret"),
    "delete": Store.delete,
    "restore": Store.restore,
    "set_private": lambda store, run_id: store.set_private(run_id, False),
}


def test_every_way_to_a_run_is_looked_at() -> None:
    by_id = {name for name, code in vars(Store).items() if callable(code) and "run_id" in getattr(code, "__annotations__", {})}
    assert by_id - {"_changing", "_missing", "_see"} == set(USES)


@pytest.fixture
def private(open_store: OpenStore, tmp_path: Path) -> str:
    """The id of a benchmark of Ada's, beside one that everybody sees."""
    folder = run_folder(tmp_path / "home", 7, owner=OWNER, settings={"model": "secret-7b"}, machine={"processor": "Hidden"})
    folder.append_point(point())
    run_folder(tmp_path / "home", 8)
    store = open_store()
    store.add_label(folder.path.name, "secret")
    store.set_private(folder.path.name, True)
    return folder.path.name


@pytest.mark.parametrize("use", USES)
def test_what_is_private_is_not_there_for_others(open_store: OpenStore, private: str, use: str) -> None:
    store = open_store()
    with pytest.raises(StoreError, match=f"no run '{private}'"):
        USES[use](store.seen_by(BOB), private)
    assert store.row(private).private
    for own in (store.seen_by(ADA), store):
        USES[use](own, private)


def test_lists_counts_and_choices_know_it_for_its_owner_alone(open_store: OpenStore, private: str) -> None:
    store = open_store()
    bob, ada = store.seen_by(BOB), store.seen_by(ADA)
    for seen, number in ((bob, 1), (ada, 2), (store, 2)):
        assert (len(seen.list()), seen.count(), len(seen.records())) == (number, number, number)
    assert (bob.list(label="secret"), bob.list(text=private), bob.count(model="secret-7b")) == ([], [], 0)
    assert [name for name, found in bob.choices().items() if {"secret-7b", "secret", "Hidden"} & set(found)] == []
    assert [name for name, found in ada.choices().items() if {"secret-7b", "secret", "Hidden"} & set(found)] == [
        "machine",
        "model",
        "label",
    ]
    store.delete(private)
    assert (bob.count(deleted=True), ada.count(deleted=True)) == (0, 1)


def test_trouble_with_a_private_run_and_its_size_are_told_to_nobody_else(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store = open_store(shared_url=str(tmp_path / "file" / "runs"))
    kept = store.save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={}, owner=OWNER)
    bob = store.seen_by(BOB)
    assert any(kept in problem for problem in store.damaged())
    assert (bob.damaged(), bob.disk_use().by_kind) == ([], {})
    assert store.disk_use().by_kind.keys() == store.seen_by(ADA).disk_use().by_kind.keys() == {"plan"}
    with pytest.raises(StoreError, match=f"no run '{kept}'"):
        bob.row(kept)


def test_what_is_kept_begins_private_and_what_ran_does_not(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    kept = store.save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={}, owner=OWNER)
    read = store.save_inspection("a.log", verdict=Verdict.PASS, sentence="Fine.", document={}, owner=OWNER)
    ran = run_folder(tmp_path / "home", 9, owner=OWNER).path.name
    nobodys = store.save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={})
    assert {row.id: row.private for row in store.list()} == {kept: True, read: True, ran: False, nobodys: False}
    assert {row.id for row in store.seen_by(BOB).list()} == {ran, nobodys}
    with pytest.raises(StoreError, match="was made without a login"):
        store.set_private(nobodys, True)
    store.set_private(kept, False)
    # Its folder is read again: what its owner said stays said.
    (tmp_path / "home" / "runs" / kept).touch()
    folder = store.folder(kept)
    folder.update_record(sentence="Starts well.")
    assert open_store().seen_by(BOB).row(kept).private is False


def test_what_goes_on_with_a_private_campaign_is_never_seen_by_others(open_store: OpenStore, tmp_path: Path) -> None:
    """Not even by who looks between its start and the first word of the dashboard that started it."""
    store, root = open_store(), tmp_path / "home"
    hidden, shown = (run_folder(root, number, "campaign", owner=OWNER) for number in (1, 2))
    store.set_private(hidden.path.name, True)
    more = {folder: run_folder(root, 10 + at, "campaign", owner=OWNER) for at, folder in enumerate((hidden, shown))}
    nobodys = run_folder(root, 20, "campaign")
    for earlier, folder in ((hidden, more[hidden]), (shown, more[shown]), (hidden, nobodys)):
        folder.update_record(spec={"continues": earlier.path.name})
    assert {row.id for row in open_store().seen_by(BOB).list()} == {folder.path.name for folder in (shown, more[shown], nobodys)}


def test_a_database_that_is_made_anew_hides_what_was_kept(tmp_path: Path) -> None:
    first = Store.open(None, tmp_path)
    kept = first.save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={}, owner=OWNER)
    first.close()
    for file in tmp_path.glob("store.sqlite3*"):
        file.unlink()
    again = Store.open(None, tmp_path)
    assert (again.seen_by(BOB).count(), again.row(kept).private, again.row(kept).owner) == (0, True, OWNER)
    again.close()


def test_what_an_operator_takes_in_is_for_everybody(open_store: OpenStore, tmp_path: Path) -> None:
    store = Store.open(None, tmp_path / "elsewhere")
    kept = store.save_plan({}, verdict=Verdict.PASS, sentence="Starts.", document={}, owner=OWNER)
    exported = export_json(store, kept)
    store.close()
    here = open_store()
    assert here.take_in(parse_document(exported)) == kept
    assert here.seen_by(BOB).row(kept).owner == OWNER


def test_owners_of_an_earlier_schema_are_known_and_nothing_becomes_private(database_url: str, open_store: OpenStore) -> None:
    load(database_url, "0002")
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    run_id = "20260401-101500-benchmark-0a1b2c3d"
    with engine.begin() as found:
        where = {"id": run_id}
        document = json.loads(found.execute(text("SELECT document FROM documents WHERE run_id = :id"), where).scalar_one())
        found.execute(
            text("UPDATE documents SET document = :new WHERE run_id = :id"), {**where, "new": json.dumps({**document, "owner": OWNER})}
        )
    engine.dispose()
    row = open_store().seen_by(BOB).row(run_id)
    assert (row.owner, row.private) == (OWNER, False)
    open_store().set_private(run_id, True)
    assert open_store().seen_by(ADA).row(run_id).private
