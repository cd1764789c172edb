"""The store on SQLite and on PostgreSQL: what is listed, found, annotated, deleted, restored, kept in bounds and shared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sqlalchemy import update

from kvcanary.errors import StoreError
from kvcanary.lab import leases, lifecycle
from kvcanary.lab.records import Point, RunState, Verdict
from kvcanary.lab.tables import write_slots
from kvcanary.store import connection
from kvcanary.store import files as files_module
from kvcanary.store.database import Store
from kvcanary.store.schema import RUNS
from tests.store.conftest import OpenStore
from tests.store.making import card, point, run_folder


def ids(store: Store, **filters: Any) -> list[int]:
    """The numbers that `run_folder` gave."""
    return [int(row.id.rpartition("-")[2], 16) for row in store.list(**filters)]


def some_runs(home: Path) -> None:
    run_folder(home, 1, settings={"model": "qwen3-32b"}, machine={"processor": "Xeon", "accelerator": "H200"})
    run_folder(home, 2, verdict=Verdict.FAIL, sentence="Fail: 3 slots differ.", machine={"processor": "Xeon"})
    run_folder(home, 3, kind="campaign", verdict=Verdict.PARTIAL, state=RunState.STOPPED, settings={"model": "llama-3"})
    run_folder(home, 4, kind="campaign", machine={"processor": "EPYC 9965"}, sentence="100 % of 12")


QUESTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [4, 3, 2, 1]),
    ({"kind": "campaign"}, [4, 3]),
    ({"kind": "plan"}, []),
    ({"verdict": "fail"}, [2]),
    ({"state": RunState.STOPPED}, [3]),
    ({"machine": "H200"}, [1]),
    ({"machine": "Xeon"}, [2]),
    ({"model": "llama-3"}, [3]),
    ({"kind": "benchmark", "verdict": "pass"}, [1]),
    ({"newer_than": 3.0}, [4, 3]),
    ({"text": "SLOTS fail"}, [2]),
    ({"text": "h200"}, [1]),
    ({"text": "100 %"}, [4]),
    ({"text": "_"}, []),
    ({"text": "passxeon"}, []),
    ({"text": "00000003"}, [3]),
    ({"order": "oldest", "limit": 2}, [1, 2]),
    ({"limit": 2, "offset": 1}, [3, 2]),
    ({"deleted": True}, []),
    ({"label": "x"}, []),
]


def test_runs_are_found_by_what_is_asked(open_store: OpenStore, tmp_path: Path) -> None:
    some_runs(tmp_path / "home")
    store = open_store()
    for filters, found in QUESTIONS:
        assert ids(store, **filters) == found, filters
        assert [record.id for record in store.records(**filters)] == [row.id for row in store.list(**filters)]
        only = {name: value for name, value in filters.items() if name not in ("order", "limit", "offset")}
        assert store.count(**only) == len(ids(store, **only)), filters


def test_a_filter_or_an_order_that_is_none_is_named(open_store: OpenStore) -> None:
    with pytest.raises(StoreError, match=r"filtered by kind, verdict, .* got 'colour'"):
        open_store().list(colour="red")  # type: ignore[call-arg]
    with pytest.raises(StoreError, match="order must be one of newest, oldest, largest, got 'best'"):
        open_store().list(order="best")


def test_a_row_says_what_the_record_says(open_store: OpenStore, tmp_path: Path) -> None:
    folder = run_folder(
        tmp_path / "home", 7, settings={"model": "qwen3-32b"}, machine={"processor": "Xeon"}, host="node-1", started_s=7.5, finished_s=9.25
    )
    folder.append_point(point())
    folder.append_point(point(16))
    row = open_store().row(folder.path.name)
    assert (row.kind, row.state, row.verdict, row.device) == ("benchmark", RunState.DONE, Verdict.PASS, "cpu")
    assert (row.created_s, row.started_s, row.finished_s, row.points) == (7.0, 7.5, 9.25, 2)
    assert (row.model, row.machine, row.host, row.note, row.labels) == ("qwen3-32b", "Xeon", "node-1", "", ())
    assert row.size_bytes == sum(path.stat().st_size for path in folder.path.iterdir())


def test_what_there_is_to_filter_by(open_store: OpenStore, tmp_path: Path) -> None:
    some_runs(tmp_path / "home")
    store = open_store()
    store.add_label(store.list()[0].id, "night")
    assert store.choices() == {
        "kind": ["benchmark", "campaign"], "verdict": ["fail", "partial", "pass"], "state": ["done", "stopped"],
        "machine": ["EPYC 9965", "H200", "Xeon"], "model": ["llama-3", "qwen3-32b"], "label": ["night"],
    }  # fmt: skip


def test_notes_and_labels_are_kept_and_seen_by_others(open_store: OpenStore, tmp_path: Path) -> None:
    first = run_folder(tmp_path / "home", 1).path.name
    second = run_folder(tmp_path / "home", 2).path.name
    store, other = open_store(), open_store()
    store.set_note(first, "after the driver update; 100 % sure")
    for label in ("night", " baseline ", "night"):
        store.add_label(first, label)
    other.add_label(second, "night")
    assert other.row(first).note == "after the driver update; 100 % sure"
    assert other.row(first).labels == ("baseline", "night")
    assert ids(other, label="night") == [2, 1]
    assert ids(other, text="driver UPDATE") == [1]
    other.set_note(first, "Übergabe")
    assert ids(other, text="Übergabe") == [1]
    other.remove_label(first, "night")
    other.remove_label(first, "never had")
    other.set_note(first, "")
    assert (store.row(first).labels, store.row(first).note) == (("baseline",), "")


def test_what_a_note_and_a_label_may_be(open_store: OpenStore, tmp_path: Path) -> None:
    run_id, store = run_folder(tmp_path / "home", 1).path.name, open_store()
    with pytest.raises(StoreError, match="a label must be 1 to 60 characters, got 0"):
        store.add_label(run_id, "  ")
    with pytest.raises(StoreError, match="a label must be 1 to 60 characters, got 61"):
        store.add_label(run_id, "x" * 61)
    with pytest.raises(StoreError, match="a note must be at most 10000 characters, got 10001"):
        store.set_note(run_id, "x" * 10_001)
    for action in (lambda: store.add_label("nobody", "x"), lambda: store.set_note("nobody", "x"), lambda: store.delete("nobody")):
        with pytest.raises(StoreError, match="no run 'nobody' in store"):
            action()


def test_what_is_no_run_is_not_opened(open_store: OpenStore, tmp_path: Path) -> None:
    run_folder(tmp_path / "home", 1)
    (tmp_path / "home" / "outside").mkdir()
    (tmp_path / "home" / "outside" / "run.json").write_text("{}")
    store = open_store()
    for run_id in ("../outside", ".hidden", "", "missing", "a/b", "nul\x00byte", "x" * 500):
        for open_it in (store.record, store.row, store.points, store.folder):
            with pytest.raises(StoreError, match="no run"):
                open_it(run_id)


def test_a_deletion_can_be_undone_until_it_is_purged(open_store: OpenStore, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "home", 1)
    run_id, store = folder.path.name, open_store()
    store.add_label(run_id, "kept")
    store.delete(run_id)
    assert (ids(store), ids(store, deleted=True), ids(open_store())) == ([], [1], [])
    assert store.row(run_id).deleted_s == pytest.approx(time.time(), abs=60)
    assert store.purge(after_s=3600) == []
    store.restore(run_id)
    assert store.row(run_id).labels == ("kept",)
    store.delete(run_id)
    assert store.purge(after_s=0) == [run_id]
    assert not folder.path.exists()
    with pytest.raises(StoreError, match="no run"):
        store.restore(run_id)
    assert (ids(open_store()), ids(open_store(), deleted=True)) == ([], [])


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING])
def test_an_active_run_is_not_deleted(open_store: OpenStore, tmp_path: Path, state: RunState) -> None:
    run_id = run_folder(tmp_path / "home", 1, state=state, pid=os.getpid(), pid_started_s=psutil.Process().create_time()).path.name
    store = open_store()
    with pytest.raises(StoreError, match=f"run {run_id} is {state}; stop it before it is deleted"):
        store.delete(run_id)
    assert store.retain(keep_last=0) == []
    assert ids(store) == [1]


def test_a_purge_that_was_cut_short_shows_no_half_run_and_is_finished_later(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, store = run_folder(tmp_path / "home", 1).path.name, open_store()
    store.delete(run_id)

    def interrupted(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files_module.shutil, "rmtree", interrupted)
        assert store.purge(after_s=0) == []
        assert store.damaged() == [f"run {run_id} cannot be deleted: [Errno 5] Input/output error"]
    assert ids(store) == []
    assert open_store().purge(after_s=0) == [run_id]
    assert list((tmp_path / "home" / "runs").iterdir()) == []


def test_retention_deletes_what_no_rule_keeps_and_says_so_first(open_store: OpenStore, tmp_path: Path) -> None:
    for number in range(1, 9):
        run_folder(tmp_path / "home", number)
    store = open_store()
    names = {number: row.id for number, row in zip(range(8, 0, -1), store.list(), strict=True)}
    store.set_note(names[1], "do not lose")
    store.add_label(names[2], "baseline")
    with pytest.raises(StoreError, match="retention needs a rule"):
        store.retain()
    with pytest.raises(StoreError, match="keep_last must be 0 or more, got -1"):
        store.retain(keep_last=-1)
    assert [row.id for row in store.retain(keep_last=2, newer_than=5.0, dry_run=True)] == [names[4], names[3]]
    assert len(ids(store)) == 8
    store.retain(keep_last=2, newer_than=5.0)
    assert ids(store) == [8, 7, 6, 5, 2, 1]
    assert ids(store, deleted=True) == [4, 3]
    store.retain(keep_last=3)
    assert ids(store) == [8, 7, 6, 2, 1]
    store.restore(names[3])
    assert ids(store) == [8, 7, 6, 3, 2, 1]


def test_retention_and_a_writer_of_the_same_runs_do_not_wait_for_each_other(open_store: OpenStore, tmp_path: Path) -> None:
    """By age and by place in the file the runs stand the other way round than by id, by which a writer goes."""
    later, earlier = run_folder(tmp_path / "home", 2, created_s=1.0).path.name, run_folder(tmp_path / "home", 1, created_s=2.0)
    moved = earlier.path.rename(tmp_path / "not yet")
    store = open_store()
    moved.rename(earlier.path)
    assert ids(store) == [1, 2]
    deleted: list[str] = []
    retention = threading.Thread(target=lambda: deleted.extend(row.id for row in store.retain(keep_last=0)))
    with connection.writing(store._engine) as writer:
        writer.execute(update(RUNS).where(RUNS.c.id == earlier.path.name).values(points=7))
        retention.start()
        retention.join(1.0)
        assert retention.is_alive()
        writer.execute(update(RUNS).where(RUNS.c.id == later).values(points=8))
    retention.join(30.0)
    assert deleted == [earlier.path.name, later]
    assert [row.points for row in store.list(deleted=True)] == [7, 8]


def test_disk_use_counts_files_of_runs_by_kind(open_store: OpenStore, tmp_path: Path) -> None:
    benchmark, campaign = run_folder(tmp_path / "home", 1), run_folder(tmp_path / "home", 2, kind="campaign")
    (benchmark.path / "slots.parquet").write_bytes(bytes(5000))
    sizes = {folder: sum(path.stat().st_size for path in folder.path.iterdir()) for folder in (benchmark, campaign)}
    store = open_store()
    assert store.disk_use().by_kind == {"benchmark": sizes[benchmark], "campaign": sizes[campaign]}
    store.delete(benchmark.path.name)
    use = store.disk_use()
    assert (use.by_kind, use.deleted_bytes, use.runs_bytes) == ({"campaign": sizes[campaign]}, sizes[benchmark], sizes[campaign])
    assert use.free_bytes > 0


def test_plans_and_inspections_are_runs(open_store: OpenStore) -> None:
    store = open_store()
    plan = store.save_plan({"model": "m1"}, verdict=Verdict.FAIL, sentence="Will not start.", document={"schema": "kvcanary.plan"})
    seen = store.save_inspection("server.log", verdict=Verdict.FAIL, sentence="2 slots.", document={"schema": "kvcanary.inspection"})
    assert [(row.kind, row.state, row.model) for row in store.list(order="oldest")] == [("plan", "done", "m1"), ("inspection", "done", "")]
    other = open_store()
    assert other.result(plan) == {"schema": "kvcanary.plan"}
    assert other.record(seen).spec == {"source": "server.log"}
    assert all(record.machine["memory_bytes"] > 0 and "numpy" in record.versions and record.host for record in other.records())
    document = json.loads(json.dumps(other.document(seen), allow_nan=False))
    assert (document["schema"], document["result"]) == ("kvcanary.run", {"schema": "kvcanary.inspection"})


def test_what_changes_in_a_folder_is_seen_at_the_next_look(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    assert ids(store) == []
    lives = {"pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    folder = run_folder(tmp_path / "home", 1, state=RunState.RUNNING, verdict=Verdict.NOT_RUN, **lives)
    assert store.list()[0].state is RunState.RUNNING
    folder.append_point(point())
    assert store.list()[0].points == 1
    folder.update_record(state=RunState.DONE, verdict=Verdict.PASS)
    assert (store.list()[0].state, store.list()[0].verdict) == (RunState.DONE, Verdict.PASS)
    assert store.points(folder.path.name) == [point()]


def test_a_state_that_a_slow_process_put_back_is_put_right(open_store: OpenStore, tmp_path: Path) -> None:
    lives = {"pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    folder = run_folder(tmp_path / "home", 1, state=RunState.RUNNING, **lives)
    slow, quick = open_store(), open_store()
    read_early = slow._sync._changed(folder.path.name, None)
    assert read_early is not None
    folder.update_record(state=RunState.DONE)
    assert quick.list()[0].state is RunState.DONE
    slow._sync._store([read_early])
    assert quick.list()[0].state is RunState.DONE


def test_a_run_that_was_purged_while_another_process_took_it_in_does_not_come_back(open_store: OpenStore, tmp_path: Path) -> None:
    slow, quick = open_store(), open_store()
    run_id = run_folder(tmp_path / "home", 1).path.name
    found = slow._sync._changed(run_id, None)
    assert found is not None
    quick.delete(run_id)
    assert quick.purge(after_s=0) == [run_id]
    slow._sync._store([found])
    assert (slow.count(), quick.count()) == (0, 0)


def test_a_folder_whose_record_comes_later_is_taken_in_then(open_store: OpenStore, tmp_path: Path) -> None:
    path = tmp_path / "home" / "runs" / "20260504-030201-benchmark-00000009"
    path.mkdir(parents=True)
    os.utime(path.parent, (1.0, 1.0))
    store = open_store()
    assert ids(store) == []
    ready = run_folder(tmp_path / "elsewhere", 9)
    shutil.copy(ready.path / "run.json", path / "run.json")
    assert ids(store) == [9]
    assert ids(open_store()) == [9]


def test_a_worker_that_was_killed_while_nobody_looked_is_interrupted_when_somebody_does(open_store: OpenStore, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    started_s = psutil.Process(process.pid).create_time()
    process.wait()
    folder = run_folder(tmp_path / "home", 1, state=RunState.RUNNING, verdict=Verdict.NOT_RUN, pid=process.pid, pid_started_s=started_s)
    folder.append_point(point())
    row = open_store().list()[0]
    assert (row.state, row.verdict, row.points) == (RunState.INTERRUPTED, Verdict.PARTIAL, 1)
    assert "Interrupted after 1 points" in row.sentence


def test_a_run_whose_folder_was_removed_is_over_and_what_is_known_of_it_stays(open_store: OpenStore, tmp_path: Path) -> None:
    lives = {"pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    running, done = run_folder(tmp_path / "home", 1, state=RunState.RUNNING, **lives), run_folder(tmp_path / "home", 2)
    store = open_store()
    assert store.count() == 2
    for folder in (running, done):
        shutil.rmtree(folder.path)
    assert [row.state for row in store.list()] == [RunState.DONE, RunState.INTERRUPTED]
    assert store.record(done.path.name).sentence == "Pass number 2."
    with pytest.raises(StoreError, match="are not here: they were removed from"):
        store.points(done.path.name)


def test_a_damaged_folder_is_named_and_hides_no_other(open_store: OpenStore, tmp_path: Path) -> None:
    run_folder(tmp_path / "home", 1)
    bad = run_folder(tmp_path / "home", 2)
    good_text = (bad.path / "run.json").read_text()
    (bad.path / "run.json").write_text("{")
    store = open_store()
    assert ids(store) == [1]
    assert [text.partition(" cannot")[0] for text in store.damaged()] == [f"run {bad.path.name}"]
    (bad.path / "run.json").write_text(good_text)
    assert ids(store) == [2, 1]
    assert store.damaged() == []


def test_two_hosts_on_one_database_see_each_others_runs_but_not_their_files(open_store: OpenStore, tmp_path: Path) -> None:
    here = run_folder(tmp_path / "host-a", 1)
    here.append_point(point())
    there = run_folder(tmp_path / "host-b", 2)
    first, second = open_store("host-a"), open_store("host-b")
    assert ids(second) == [2, 1]
    assert ids(first) == [2, 1]
    assert second.record(here.path.name) == here.read_record()
    with pytest.raises(StoreError, match=rf"they lie on .* in {tmp_path}/host-a; name a place .* KVCANARY_FILES_URL"):
        second.points(here.path.name)
    first.delete(there.path.name)
    assert first.purge(after_s=0) == []
    assert there.path.exists()
    assert second.purge(after_s=0) == [there.path.name]


def test_a_run_of_another_folder_under_the_same_name_is_not_overwritten(open_store: OpenStore, tmp_path: Path) -> None:
    run_folder(tmp_path / "host-a", 1, sentence="of a")
    run_folder(tmp_path / "host-b", 1, sentence="of b")
    first, second = open_store("host-a"), open_store("host-b")
    assert [row.sentence for row in first.list()] == ["of a"]
    assert [row.sentence for row in second.list()] == ["of a"]
    assert "is in the store already, from another data folder" in second.damaged()[0]


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_finished_runs_are_copied_to_a_place_that_all_hosts_reach(open_store: OpenStore, tmp_path: Path, place: str) -> None:
    shared = str(tmp_path / "shared") if place == "folder" else f"memory://{tmp_path.name}"
    folder = run_folder(tmp_path / "host-a", 1)
    folder.append_point(point())
    folder.write_cards([card(3)])
    status = np.arange(9, dtype=np.uint8) % 3
    write_slots(folder.slots_file, {"status": status, "flags": status, "chain_index": np.arange(9)}, length=4)
    lives = {"pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    running = run_folder(tmp_path / "host-a", 2, state=RunState.RUNNING, **lives)
    first, second = open_store("host-a", shared), open_store("host-b", shared)
    assert first.count() == 2
    assert second.points(folder.path.name) == [point()]
    assert second.cards(folder.path.name) == [card(3)]
    arrays = second.slots(folder.path.name)
    assert arrays is not None
    assert arrays.status.tobytes() == status.tobytes()
    with pytest.raises(StoreError, match="are not here"):
        second.points(running.path.name)
    running.append_point(point(32))
    running.update_record(state=RunState.DONE)
    first.count()
    assert second.points(running.path.name) == [point(32)]
    first.delete(folder.path.name)
    assert first.purge(after_s=0) == [folder.path.name]
    with pytest.raises(StoreError, match="no run"):
        open_store("host-c", shared).points(folder.path.name)


def test_a_copy_that_fails_is_named_and_made_later(open_store: OpenStore, tmp_path: Path) -> None:
    run_id = run_folder(tmp_path / "host-a", 1).path.name
    (tmp_path / "shared").write_text("in the way")
    store = open_store("host-a", str(tmp_path / "shared"))
    assert ids(store) == [1]
    assert f"run {run_id} cannot be copied to" in store.damaged()[0]
    (tmp_path / "shared").unlink()
    assert store.damaged() == []
    assert (tmp_path / "shared" / run_id / "run.json").is_file()


def test_a_folder_that_moved_is_still_the_same(open_store: OpenStore, tmp_path: Path) -> None:
    run_id = run_folder(tmp_path / "home", 1).path.name
    open_store().set_note(run_id, "moved along")
    (tmp_path / "home").rename(tmp_path / "new-home")
    moved = open_store("new-home")
    assert moved.row(run_id).note == "moved along"
    assert moved.points(run_id) == []
    assert isinstance(moved.folder(run_id).read_points(), list)


def test_looking_at_the_store_starts_and_claims_nothing(open_store: OpenStore, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "home", 1, state=RunState.QUEUED, verdict=Verdict.NOT_RUN)
    lifecycle.enlist(folder)
    store = open_store()
    assert store.list()[0].state is RunState.QUEUED
    assert not folder.claim_file.exists()
    assert not leases.is_held(leases.device_lock(tmp_path / "home", "cpu"))


def test_points_of_every_kind_come_back(open_store: OpenStore, tmp_path: Path) -> None:
    folder, store = run_folder(tmp_path / "home", 1), open_store()
    points = [point(batch) for batch in (1, 8, 64)]
    for one in points:
        folder.append_point(one)
    assert store.points(folder.path.name) == points
    assert all(isinstance(one, Point) for one in points)
