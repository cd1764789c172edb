"""kill -9 at random moments: no finished point is lost, no acknowledged change is lost, and the store is sound. 50 moments in the long profile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec, RunRecord, RunState
from kvcanary.store import connection
from kvcanary.store.database import Store
from tests.store.conftest import OpenStore

LONG = settings().max_examples > 1000
WRITER_MOMENTS, WORKER_MOMENTS, JOB_MOMENTS = (50, 50, 50) if LONG else (6, 2, 1)
WAIT_S = 120.0
SMALL = {
    "pool_slot_count": 3000, "req_to_token_pool_size": 4, "cuda_graph_max_bs": 4, "max_seq_len_per_req": 512, "chunked_prefill_size": 256,
    "max_prefill_tokens": 256,
}  # fmt: skip
ROOT = Path(__file__).parents[2]

# Says what it has done after it was done; whatever it said has to be there later.
WRITER = """
import sys
from pathlib import Path
from kvcanary.lab.records import Verdict
from kvcanary.store.database import Store

store = Store.open(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
while True:
    run_id = store.save_plan({"model": sys.argv[3]}, verdict=Verdict.PASS, sentence="Starts.", document={"text": "x" * 3000})
    print("saved", run_id, flush=True)
    store.set_note(run_id, "note of " + run_id)
    print("noted", run_id, flush=True)
    store.add_label(run_id, "kept")
    print("labelled", run_id, flush=True)
    doomed = store.save_inspection("log", verdict=Verdict.FAIL, sentence="Bad.", document={})
    store.delete(doomed)
    print("deleted", doomed, flush=True)
    store.purge(after_s=0)
    print("purged", doomed, flush=True)
"""

# What the dashboard's process does: it starts a job, looks at the store, and adds to it.
DASHBOARD = """
import json, sys
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.ui import services

run_id = services.jobs().start(BenchmarkSpec(settings=json.loads(sys.argv[1]), preset="quick"))
number = 0
while True:
    services.runs().list(limit=50)
    services.runs().set_note(run_id, str(number))
    print(run_id, number, flush=True)
    number += 1
"""


def sound(store: Store) -> None:
    """The database is whole, and each row has what belongs to it."""
    with connection.reading(store._engine) as found:
        if found.dialect.name == "sqlite":
            assert found.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
            assert found.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        orphans = "SELECT count(*) FROM runs WHERE id NOT IN (SELECT run_id FROM documents)"
        assert found.exec_driver_sql(orphans).scalar() == 0
    assert store.damaged() == []
    for row in store.list():
        assert store.record(row.id).id == row.id


@pytest.mark.timeout(1800 if LONG else 300)
def test_what_a_killed_writer_said_it_did_is_done(database_url: str, open_store: OpenStore, tmp_path: Path) -> None:
    chosen = random.Random(20261130)
    store = open_store()
    said: list[str] = []
    for moment in range(WRITER_MOMENTS):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, database_url, str(tmp_path / "home"), f"m{moment}"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chosen.uniform(0.0, 0.5))
        process.kill()
        # A line that was cut off was not said.
        said += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.wait()
        sound(store)
    assert len(said) > WRITER_MOMENTS
    rows = {row.id: row for row in [*store.list(), *store.list(deleted=True)]}
    for line in said:
        word, run_id = line.split()
        if word in ("saved", "noted", "labelled"):
            assert rows[run_id].deleted_s is None
            assert store.result(run_id) == {"text": "x" * 3000}
        if word == "noted":
            assert rows[run_id].note == f"note of {run_id}"
        if word == "labelled":
            assert rows[run_id].labels == ("kept",)
        if word == "deleted":
            assert run_id not in rows or rows[run_id].deleted_s is not None
        if word == "purged":
            assert run_id not in rows
            assert not (tmp_path / "home" / "runs" / run_id).exists()
    store.purge(after_s=0)
    names = {path.name for path in (tmp_path / "home" / "runs").iterdir() if (path / "run.json").exists()}
    assert names == {row.id for row in store.list()}


def until_over(home: Path, run_id: str) -> RunRecord:
    """What a manager that comes later makes of the run."""
    manager = JobManager(home)
    try:
        return manager.wait(run_id, WAIT_S)
    finally:
        manager.close()


@pytest.mark.timeout(3600 if LONG else 300)
def test_a_killed_worker_loses_no_finished_point(open_store: OpenStore, tmp_path: Path) -> None:
    chosen = random.Random(7)
    home, store = tmp_path / "home", open_store()
    interrupted = with_points = 0
    for moment in range(WORKER_MOMENTS):
        manager = JobManager(home)
        run_id = manager.start(BenchmarkSpec(settings=SMALL, preset="standard"))
        folder = manager.folder(run_id)
        # Half of them die whenever, while they load or measure, the others with a point just stored.
        end = time.monotonic() + (chosen.uniform(0.0, 8.0) if moment % 2 else WAIT_S)
        while time.monotonic() < end and not folder.read_points() and folder.read_record().state.active:
            time.sleep(0.01)
        time.sleep(chosen.uniform(0.0, 0.3))
        finished = folder.read_points()
        for worker in [*manager._workers.values()]:
            worker.kill()
        record = manager.wait(run_id, WAIT_S)
        manager.close()
        row = store.row(run_id)
        assert record.state in (RunState.INTERRUPTED, RunState.DONE)
        interrupted += record.state is RunState.INTERRUPTED
        with_points += bool(finished)
        assert (row.state, row.verdict, row.points) == (record.state, record.verdict, len(folder.read_points()))
        assert folder.read_points()[: len(finished)] == finished
        assert store.points(run_id) == folder.read_points()
        sound(store)
    assert interrupted
    assert with_points


def wait_gone(pid: int | None) -> None:
    """Workers outlive who started them; the next moment starts when they are through."""
    if pid is not None and psutil.pid_exists(pid):
        psutil.Process(pid).wait(WAIT_S)


@pytest.mark.timeout(7200 if LONG else 300)
def test_a_job_outlives_a_killed_dashboard_and_is_found_again(database_url: str, open_store: OpenStore, tmp_path: Path) -> None:
    chosen = random.Random(11)
    home = tmp_path / "home"
    for _ in range(JOB_MOMENTS):
        environment = {**os.environ, "KVCANARY_HOME": str(home), "KVCANARY_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", DASHBOARD, json.dumps(SMALL)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chosen.uniform(0.0, 4.0))
        process.kill()
        lines = [first, *(line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n"))]
        process.wait()
        run_id, last = lines[-1].split()
        store = open_store()
        assert int(store.row(run_id).note) >= int(last)
        record = until_over(home, run_id)
        assert (record.state, record.verdict) == (RunState.DONE, "pass"), record.sentence + record.error
        assert (store.row(run_id).state, store.row(run_id).points) == (RunState.DONE, len(store.points(run_id)))
        sound(store)


@pytest.mark.timeout(7200 if LONG else 300)
def test_a_run_of_a_killed_command_is_there(tmp_path: Path) -> None:
    chosen = random.Random(13)
    home = tmp_path / "home"
    options = [text for name, value in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    killed = 0
    for moment in range(JOB_MOMENTS):
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcanary", "bench", *options, "--home", str(home)], cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + WAIT_S
        while len([*home.glob("runs/*/run.json")]) == moment and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(chosen.uniform(0.0, 6.0))
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = Store.open(None, home)
        assert store.count() == moment + 1
        run_id = store.list()[0].id
        record = until_over(home, run_id)
        wait_gone(record.pid)
        assert (record.state, record.verdict) == (RunState.DONE, "pass"), record.sentence + record.error
        assert store.row(run_id).points == len(store.points(run_id)) > 0
        sound(store)
        store.close()
    assert killed
