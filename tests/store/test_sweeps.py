"""Running a sweep: what is finished is found, what is lost is begun again, what fails ends nothing, and each point is there once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kvcanary.errors import JobError
from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.sweep import Sweep, SweepPoint, read_sweep
from kvcanary.store import sweeps
from kvcanary.store.sweep_progress import all_sweeps, ask_to_stop
from kvcanary.store.sweeps import ATTEMPTS, LocalExecutor, Outcome, Place, RayExecutor, finished, granted_device, run_point, run_sweep
from tests.store import postgres
from tests.stored_runs import store_run

SWEEP = read_sweep("{name: seeds, kind: campaign, base: {faults: [payload_bytes.bit_flip], configs: [partial]}, grid: {seeds: [1, 2, 3]}}")


class ScriptedJobs:
    """Instead of a job manager: each start ends at once in the next scripted state, or raises."""

    script: Sequence[RunState | Exception] = ()
    started: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self, spec: object, *, sweep: str) -> str:
        kind = type(self)
        state = kind.script[len(kind.started)]
        kind.started = (*kind.started, sweep)
        if isinstance(state, Exception):
            raise state
        verdict = Verdict.PASS if state is RunState.DONE else Verdict.NOT_RUN
        number = len(list(self.root.glob("runs/*")))
        return store_run(self.root, number, kind="campaign", state=state, sweep=sweep, verdict=verdict)

    def status(self, run_id: str) -> SimpleNamespace:
        return SimpleNamespace(record=RunFolder(self.root / "runs" / run_id).read_record())

    def close(self) -> None:
        pass


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedJobs]:
    fresh = type("Jobs", (ScriptedJobs,), {})
    monkeypatch.setattr(sweeps, "JobManager", fresh)
    return fresh


def run_first(root: Path, place: Place | None = None) -> Outcome:
    point = SWEEP.points[0]
    assert point.spec is not None
    return run_point(SWEEP.name, SWEEP.kind, point.key, asdict(point.spec), place or Place(home=str(root)))


def records(root: Path) -> list[RunRecord]:
    store = Place(home=str(root)).open()
    try:
        return store.records()
    finally:
        store.close()


def test_a_point_is_marked_labelled_and_run_once(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    jobs.script = [RunState.DONE]
    first, again = run_first(tmp_path), run_first(tmp_path)
    assert (first.state, first.verdict, first.run_id) == ("done", "pass", again.run_id)
    assert jobs.started == (f"seeds/{SWEEP.points[0].key}",)
    store = Place(home=str(tmp_path)).open()
    assert [row.id for row in store.list(label="sweep:seeds")] == [first.run_id]
    store.close()


def test_a_lost_worker_is_replaced_and_not_for_ever(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    jobs.script = [RunState.INTERRUPTED, RunState.DONE]
    assert run_first(tmp_path).done
    assert len(jobs.started) == 2
    jobs.started, jobs.script = (), [RunState.INTERRUPTED] * 9
    outcome = run_first(tmp_path / "other")
    assert (outcome.state, len(jobs.started)) == ("interrupted", ATTEMPTS)


def test_a_lost_worker_is_not_replaced_in_a_sweep_that_is_to_stop(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    """As one is that did not react to the wish and was ended."""
    jobs.script = [RunState.INTERRUPTED] * 3
    stop, point = threading.Event(), SWEEP.points[0]
    stop.set()
    assert point.spec is not None
    outcome = run_point(SWEEP.name, SWEEP.kind, point.key, asdict(point.spec), Place(home=str(tmp_path)), stop)
    assert (outcome.state, len(jobs.started)) == ("interrupted", 1)


def test_a_run_without_its_label_is_found_too(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    """A crash between the start of a run and its label."""
    run = store_run(tmp_path, 1, kind="campaign", sweep=f"seeds/{SWEEP.points[0].key}")
    assert run_first(tmp_path).run_id == run
    assert jobs.started == ()
    assert list(finished(SWEEP, Place(home=str(tmp_path)))) == [SWEEP.points[0].key]


def test_a_run_that_was_lost_before_its_label_is_listed_with_its_sweep(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    lost = store_run(tmp_path, 0, kind="campaign", state=RunState.INTERRUPTED, sweep=f"seeds/{SWEEP.points[0].key}")
    jobs.script = [RunState.DONE]
    again = run_first(tmp_path)
    store = Place(home=str(tmp_path)).open()
    assert {row.id for row in store.list(label="sweep:seeds")} == {lost, again.run_id}
    store.close()


def test_a_run_of_another_sweep_is_none_of_this_one(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    store_run(tmp_path, 0, kind="campaign", sweep=f"other/{SWEEP.points[0].key}")
    jobs.script = [RunState.DONE]
    outcome = run_first(tmp_path)
    assert (outcome.state, len(jobs.started)) == ("done", 1)
    store = Place(home=str(tmp_path)).open()
    assert [row.id for row in store.list(label=SWEEP.label)] == [outcome.run_id]
    store.close()


def test_a_run_on_another_host_is_not_waited_for(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    """A host that is lost says nothing, so its run is active in the database for ever."""
    lives = {"state": RunState.RUNNING, "pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    place = Place(home=str(tmp_path / "here"), database_url=f"sqlite:///{tmp_path / 'shared.sqlite3'}")
    lost = store_run(tmp_path / "there", 1, kind="campaign", sweep=f"seeds/{SWEEP.points[0].key}", **lives)
    replace(place, home=str(tmp_path / "there")).open().close()
    jobs.script = [RunState.DONE]
    outcome = run_first(tmp_path / "here", place)
    assert (outcome.state, outcome.run_id != lost, len(jobs.started)) == ("done", True, 1)


def test_a_run_that_another_process_has_begun_is_waited_for(
    jobs: type[ScriptedJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = {"state": RunState.RUNNING, "pid": os.getpid(), "pid_started_s": psutil.Process().create_time()}
    run = store_run(tmp_path, 1, kind="campaign", sweep=f"seeds/{SWEEP.points[0].key}", **lives)
    looks: list[str] = []

    def ends(self: ScriptedJobs, run_id: str) -> SimpleNamespace:
        looks.append(run_id)
        folder = RunFolder(self.root / "runs" / run_id)
        return SimpleNamespace(record=folder.read_record() if len(looks) < 3 else folder.update_record(state=RunState.DONE))

    monkeypatch.setattr(jobs, "status", ends)
    outcome = run_first(tmp_path)
    assert (outcome.state, outcome.run_id, looks, jobs.started) == ("done", run, [run] * 3, ())


def test_a_failed_point_ends_nothing_and_the_next_call_runs_what_is_missing(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    jobs.script = [RunState.DONE, RunState.FAILED, JobError("the disk is full")]
    place = Place(home=str(tmp_path))
    assert [outcome.state for outcome in run_sweep(SWEEP, place, LocalExecutor())] == ["done", "failed", "failed"]
    jobs.started, jobs.script = (), [RunState.DONE, RunState.DONE]
    outcomes = list(run_sweep(SWEEP, place, LocalExecutor()))
    assert [(outcome.key, outcome.found) for outcome in outcomes] == [(point.key, number == 0) for number, point in enumerate(SWEEP.points)]
    assert jobs.started == tuple(f"seeds/{point.key}" for point in SWEEP.points[1:])
    assert Counter(record.sweep for record in records(tmp_path) if record.state is RunState.DONE) == {
        f"seeds/{point.key}": 1 for point in SWEEP.points
    }


def test_a_point_that_cannot_run_is_refused_with_its_reason(jobs: type[ScriptedJobs], tmp_path: Path) -> None:
    sweep = read_sweep("{name: x, kind: campaign, grid: {seeds: [0]}}")
    (outcome,) = run_sweep(sweep, Place(home=str(tmp_path)), LocalExecutor())
    assert (outcome.state, outcome.verdict) == ("refused", "not run")
    assert "seeds must be between 1 and" in outcome.sentence


def test_closing_the_stream_begins_nothing_more(jobs: type[ScriptedJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.script = [RunState.DONE] * 3
    waiting, begun = threading.Event(), threading.Event()
    start = jobs.start

    def slow(self: ScriptedJobs, spec: object, *, sweep: str) -> str:
        if jobs.started:
            waiting.set()
            begun.wait(20)
        return start(self, spec, sweep=sweep)

    monkeypatch.setattr(jobs, "start", slow)
    stream = run_sweep(SWEEP, Place(home=str(tmp_path)), LocalExecutor())
    next(stream)
    assert waiting.wait(20)
    seen: list[bool] = []

    def let_go() -> None:
        seen.extend(sweep.alive for sweep in all_sweeps(tmp_path))
        begun.set()

    threading.Timer(0.5, let_go).start()
    stream.close()
    assert len(jobs.started) == 2
    # The point that ran was waited for, and the sweep said so.
    assert seen == [True]
    assert not all_sweeps(tmp_path)[0].alive


def test_a_sweep_that_is_asked_to_stop_says_so_of_each_point(
    jobs: type[ScriptedJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    later: list[str] = []

    def running(self: ScriptedJobs, run_id: str) -> SimpleNamespace:
        """Goes on until it is asked to stop, and for two more looks."""
        record = RunFolder(self.root / "runs" / run_id).read_record()
        later.extend(asked[:1])
        return SimpleNamespace(record=replace(record, state=RunState.STOPPED if len(later) > 2 else RunState.RUNNING))

    monkeypatch.setattr(jobs, "script", [RunState.STOPPED] * 3)
    monkeypatch.setattr(jobs, "status", running)
    monkeypatch.setattr(jobs, "stop", lambda _self, run_id: asked.append(run_id), raising=False)

    def ask() -> None:
        while not jobs.started:
            time.sleep(0.01)
        ask_to_stop(tmp_path, all_sweeps(tmp_path)[0].id)

    threading.Thread(target=ask, daemon=True).start()
    outcomes = list(run_sweep(SWEEP, Place(home=str(tmp_path)), LocalExecutor()))
    assert [(outcome.state, bool(outcome.run_id)) for outcome in outcomes] == [("stopped", True), ("stopped", False), ("stopped", False)]
    assert (len(asked), len(jobs.started)) == (1, 1)
    assert all_sweeps(tmp_path)[0].sentence == "Sweep seeds: 0 of 3 points done, 3 stopped."


def test_a_task_that_ray_cancels_asks_its_run_to_stop(jobs: type[ScriptedJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is another process, which would go on."""
    stopped: list[str] = []

    def cancelled(_self: ScriptedJobs, _run_id: str) -> SimpleNamespace:
        raise KeyboardInterrupt

    jobs.script = [RunState.RUNNING]
    monkeypatch.setattr(jobs, "status", cancelled)
    monkeypatch.setattr(jobs, "stop", lambda _self, run_id: stopped.append(run_id), raising=False)
    with pytest.raises(KeyboardInterrupt):
        run_first(tmp_path)
    assert stopped == [record.id for record in records(tmp_path)]


class FakeRay:
    """Answers a cancellation at once, and tells what it was asked for."""

    class Cancelled(Exception):
        pass

    exceptions = SimpleNamespace(TaskCancelledError=Cancelled, RayError=OSError)

    def __init__(self) -> None:
        self.asked: list[object] = []

    def is_initialized(self) -> bool:
        return True

    def remote(self, *_task: object, **_options: object) -> Any:
        wish = SimpleNamespace(set=SimpleNamespace(remote=lambda: self.asked.append("wish")))
        task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _sweep, _kind, key, *_: key))
        return task if _task else lambda _class: SimpleNamespace(remote=lambda: wish)

    def cancel(self, reference: str) -> None:
        self.asked.append(reference)

    def wait(self, references: list[str], **_: object) -> tuple[list[str], list[str]]:
        return [reference for reference in references if reference in self.asked][:1], []

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if callable(reference):
            return reference()
        raise FakeRay.Cancelled


def test_tasks_that_wait_are_cancelled_before_one_that_runs_leaves_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, stop = FakeRay(), threading.Event()
    monkeypatch.setattr(sweeps, "_ray", lambda: ray)
    stop.set()
    outcomes = list(RayExecutor().run(SWEEP, SWEEP.points, Place(home=str(tmp_path)), stop))
    assert [outcome.state for outcome in outcomes] == ["stopped"] * 3
    assert ray.asked == ["wish", *(point.key for point in reversed(SWEEP.points))]


def test_a_task_asks_for_the_wish_to_stop_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool | Exception] = [False, OSError("the actor died"), True]
    now = [100.0]

    def answer() -> bool:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wish = sweeps._AskedWish(FakeRay(), SimpleNamespace(is_set=SimpleNamespace(remote=lambda: answer)))
    seen = []
    for seconds in (0.0, 0.5, 1.1, 0.5, 1.0, 5.0):
        now[0] += seconds
        seen.append((wish.is_set(), len(answers)))
    assert seen == [(False, 2), (False, 2), (False, 1), (False, 1), (True, 0), (True, 0)]


def test_devices_run_side_by_side_and_points_of_one_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    both = threading.Barrier(2, timeout=30)

    def fake(name: str, kind: str, key: str, values: dict[str, str], place: Place, stop: threading.Event) -> Outcome:
        device = values["device"]
        now[device] += 1
        most[device] = max(most[device], now[device])
        both.wait()
        now[device] -= 1
        return Outcome(key=key, run_id="r", state="done", verdict="pass", sentence="")

    monkeypatch.setattr(sweeps, "run_point", fake)
    points = [SweepPoint(key=f"{n}", varied={}, spec=SWEEP.points[0].spec) for n in range(2)]
    spec = SWEEP.points[0].spec
    assert spec is not None
    points += [SweepPoint(key=f"c{n}", varied={}, spec=type(spec)(**{**asdict(spec), "device": "cuda:0"})) for n in range(2)]
    sweep, stop = Sweep(name="x", kind="campaign", points=tuple(points)), threading.Event()
    done = list(LocalExecutor().run(sweep, points, Place(home=str(tmp_path)), stop))
    assert sorted(outcome.key for outcome in done) == ["0", "1", "c0", "c1"]
    assert most == {"cpu": 1, "cuda:0": 1}


@pytest.mark.parametrize(
    ("device", "granted", "found", "mask_left"),
    [
        ("cpu", [], "cpu", True),
        ("cuda", [3], "cuda:3", False),
        ("cuda:0", ["5"], "cuda:5", False),
        ("cuda:1", ["GPU-ab12"], "cuda:0", True),
    ],
)
def test_a_point_runs_on_the_gpu_that_was_granted(device: str, granted: list[int | str], found: str, mask_left: bool) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "3"}
    assert granted_device(device, granted, environment) == found
    assert ("CUDA_VISIBLE_DEVICES" in environment) == mask_left


def _kill_first(root: Path, killed: list[int]) -> None:
    """Wait for a Ray worker whose job runs, then end both at once, as a lost node would."""
    end = time.monotonic() + 200
    while time.monotonic() < end and not killed:
        for path in (root / "runs").glob("*/run.json"):
            record = RunFolder(path.parent).read_record()
            workers = [p.pid for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0].startswith(f"ray::{record.sweep}")]
            if record.state is RunState.RUNNING and record.pid is not None and workers:
                for pid in (*workers, record.pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two processors, and one accelerator that nobody looks for: Ray takes the number for granted."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'kvcanary[ray]'")
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store as the hosts of a cluster share it, on PostgreSQL where a server can be started."""
    url = "" if postgres.why_not() else postgres.new_database(request.getfixturevalue("postgres_url"), "cluster")
    return Place(home=str(tmp_path), database_url=url, files_url=str(tmp_path / "shared"))


@pytest.mark.usefixtures("cluster")
def test_a_ray_cluster_that_loses_a_worker_has_each_point_once(shared_store: Place, tmp_path: Path) -> None:
    killed: list[int] = []
    killer = threading.Thread(target=_kill_first, args=(tmp_path, killed))
    killer.start()
    outcomes = list(run_sweep(SWEEP, shared_store, RayExecutor()))
    killer.join()
    assert len(killed) >= 2
    assert sorted(outcome.key for outcome in outcomes) == sorted(point.key for point in SWEEP.points)
    assert all(outcome.done and outcome.verdict == "pass" for outcome in outcomes), outcomes
    # Looked at from another host, which shares the database and the place of the files.
    elsewhere = replace(shared_store, home=str(tmp_path / "elsewhere")) if shared_store.database_url else shared_store
    store = elsewhere.open()
    states = [(record.sweep, record.state) for record in store.records(label=SWEEP.label)]
    assert Counter(sweep for sweep, state in states if state is RunState.DONE) == {f"seeds/{point.key}": 1 for point in SWEEP.points}
    assert [state for _, state in states if state is not RunState.DONE] == [RunState.INTERRUPTED]
    assert all((store.folder(outcome.run_id).path / "campaign.jsonl").is_file() for outcome in outcomes)
    store.close()
    assert all(outcome.found for outcome in run_sweep(SWEEP, shared_store, RayExecutor()))


@pytest.mark.usefixtures("cluster")
def test_points_on_an_accelerator_ask_for_one_gpu_and_run_on_the_one_that_they_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(*task: Any) -> dict[str, Any]:
        """The task as it is, but what Ray granted and the device of the point are told instead of running it."""
        import ray

        from kvcanary.store import sweeps as there

        def told(_sweep: str, _kind: str, key: str, values: dict[str, Any], _place: Place, _stop: object) -> Outcome:
            begun = time.time()
            time.sleep(0.3)
            granted = ray.get_runtime_context().get_assigned_resources()
            said = {"device": values["device"], "granted": granted, "begun": begun, "ended": time.time()}
            return Outcome(key=key, run_id="", state="done", verdict="pass", sentence=json.dumps(said))

        run_point = there.run_point
        there.run_point = told
        try:
            return there._ray_point(*task)
        finally:
            there.run_point = run_point

    monkeypatch.setattr(sweeps, "_ray_point", watched)
    sweep = read_sweep(
        "{name: gpus, kind: bench, base: {preset_settings: laptop}, grid: {device: [cpu, 'cuda:5'], seed: [1, 2]}}", elsewhere=True
    )
    said = {outcome.key: json.loads(outcome.sentence) for outcome in run_sweep(sweep, Place(home=str(tmp_path)), RayExecutor())}
    host, first, second = [said[point.key] for point in sweep.points[1:]]
    assert (host["device"], host["granted"].get("CPU"), host["granted"].get("GPU")) == ("cpu", 1.0, None)
    for point in (first, second):
        assert (point["device"], point["granted"]["GPU"]) == ("cuda:0", 1.0)
    # There is one, so that they take turns.
    assert first["ended"] <= second["begun"] or second["ended"] <= first["begun"]


@pytest.mark.usefixtures("cluster")
def test_a_sweep_on_ray_that_is_asked_to_stop_ends_what_runs_and_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, whole = tmp_path / "begun", sweeps._ray_point

    def patient(*task: Any) -> dict[str, Any]:
        """Runs until it is interrupted, or hears of the wish where interrupts are ignored."""
        import ray

        from kvcanary.store import sweeps as there

        begun.touch()
        wish = there._AskedWish(ray, task[-1])
        while not wish.is_set():
            time.sleep(0.1)
        # As Ray runs a task that it was to cancel.
        return whole(*task)

    monkeypatch.setattr(sweeps, "_ray_point", patient)

    def ask() -> None:
        while not begun.exists():
            time.sleep(0.02)
        ask_to_stop(tmp_path, all_sweeps(tmp_path)[0].id)

    threading.Thread(target=ask, daemon=True).start()
    outcomes = list(run_sweep(SWEEP, Place(home=str(tmp_path)), RayExecutor()))
    assert [(outcome.state, outcome.verdict) for outcome in outcomes] == [("stopped", "not run")] * 3
    assert records(tmp_path) == []
