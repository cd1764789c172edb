"""Runs the points of a sweep wherever an executor puts them, each once, and finds again what earlier calls have finished."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kvcanary.errors import JobError, KvCanaryError
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec, RunRecord, RunState, Verdict
from kvcanary.lab.sweep import Sweep, SweepPoint, spec_from, sweep_label
from kvcanary.store.database import Store
from kvcanary.store.sweep_progress import reporting
from kvcanary.store.wish import StopWish

# A point whose worker is lost is begun again so often; a spec that kills its worker each time must come to an end.
ATTEMPTS = 3
_POLL_S = 0.2
# How often a sweep on Ray looks whether it is to stop.
_WAIT_S = 0.5
_CANCEL_S = 10.0
# How often a task on Ray asks the same.
_ASK_S = 1.0
# Runs that a crash may have left without their label are among the newest.
_UNLABELLED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a point's run is kept: data folder, and database and shared files as URLs, empty for the folder's own. JSON-ready."""

    home: str
    database_url: str = ""
    files_url: str = ""

    def open(self) -> Store:
        """The store of this place."""
        return Store.open(self.database_url or None, Path(self.home), self.files_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a point. run_id is empty where nothing was started; found: an earlier call had finished it."""

    key: str
    run_id: str
    state: str
    verdict: str
    sentence: str
    found: bool = False

    @property
    def done(self) -> bool:
        """Whether the point ran to its end, whatever its verdict."""
        return self.state == RunState.DONE.value


class Wish(Protocol):
    """Whether the sweep is to stop: a threading.Event, for one."""

    def is_set(self) -> bool:
        """Asked again and again while a point runs."""
        ...


class Executor(Protocol):
    """Where points run. One seam: points with a spec in, an outcome for each as it ends."""

    def run(self, sweep: Sweep, points: Sequence[SweepPoint], place: Place, stop: threading.Event) -> Iterator[Outcome]:
        """Run them; an outcome per point in the order in which they end.

        When `stop` is set, what runs is asked to stop and what has not begun does not; closing the iterator does the same.
        """
        ...


def run_sweep(sweep: Sweep, place: Place, executor: Executor) -> Generator[Outcome]:
    """An outcome per point: those that cannot run and those that are finished already first, then the rest as it ends.

    How far it is stands in the data folder while it runs, where `sweep_progress` reads it and can ask it to stop.
    """
    # Closed before the report ends: points that run are waited for.
    with reporting(Path(place.home), sweep) as report, contextlib.closing(_outcomes(sweep, place, executor, report.stop)) as outcomes:
        for outcome in outcomes:
            report.add(outcome.state, outcome.verdict, found=outcome.found)
            yield outcome


def _outcomes(sweep: Sweep, place: Place, executor: Executor, stop: threading.Event) -> Generator[Outcome]:
    done = finished(sweep, place)
    missing = []
    for point in sweep.points:
        if point.spec is None:
            yield Outcome(key=point.key, run_id="", state="refused", verdict=Verdict.NOT_RUN.value, sentence=point.problem)
        elif point.key in done:
            yield _outcome(point.key, done[point.key], found=True)
        else:
            missing.append(point)
    yield from executor.run(sweep, missing, place, stop)


def finished(sweep: Sweep, place: Place) -> dict[str, RunRecord]:
    """Records of points that ran to their end, by key."""
    store = place.open()
    try:
        return {key: records[0] for key, records in _by_key(store, sweep.name, sweep.label).items() if records[0].state is RunState.DONE}
    finally:
        store.close()


def run_point(sweep_name: str, kind: str, key: str, values: Mapping[str, Any], place: Place, stop: Wish | None = None) -> Outcome:
    """Run one point to its end and return what became of it; whoever runs it a second time finds the first.

    A run of the point that another process has begun under the same data folder is waited for: its worker outlives who started it.
    """
    label, mark = sweep_label(sweep_name), f"{sweep_name}/{key}"
    store = place.open()
    try:
        manager = JobManager(Path(place.home))
        try:
            last: RunRecord | None = None
            for _ in range(ATTEMPTS):
                known = _by_key(store, sweep_name, label).get(key, [])
                for record in known:
                    # Whoever started it may have been killed before this.
                    store.add_label(record.id, label)
                if known and known[0].state is RunState.DONE:
                    return _outcome(key, known[0])
                # One on another host cannot be followed from here, and when that host is lost nobody says so.
                run_id = next((record.id for record in known if record.state.active and store.files.own(record.id)), "")
                run_id = run_id or manager.start(spec_from(kind, values), sweep=mark)
                store.add_label(run_id, label)
                last = _follow(manager, run_id, stop)
                # A look takes its end into the database, and its files to where other hosts find them.
                store.row(run_id)
                if last.state is not RunState.INTERRUPTED or (stop is not None and stop.is_set()):
                    break
        finally:
            manager.close()
        assert last is not None
        return _outcome(key, last)
    except KvCanaryError as error:
        return Outcome(key=key, run_id="", state=RunState.FAILED.value, verdict=Verdict.NOT_RUN.value, sentence=str(error))
    finally:
        store.close()


def _follow(manager: JobManager, run_id: str, stop: Wish | None) -> RunRecord:
    asked = False
    try:
        while (record := manager.status(run_id).record).state.active:
            if stop is not None and stop.is_set() and not asked:
                asked = True
                manager.stop(run_id)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        # How Ray cancels a task; the run's own process would go on.
        with contextlib.suppress(JobError):
            manager.stop(run_id)
        raise
    return record


def _by_key(store: Store, name: str, label: str) -> dict[str, list[RunRecord]]:
    """Records of a sweep's points, also of those that a crash left without their label; of each point first the finished, then the active ones."""
    records = {record.id: record for record in (*store.records(limit=_UNLABELLED), *store.records(label=label))}
    found: dict[str, list[RunRecord]] = {}
    for record in records.values():
        sweep, _, key = record.sweep.rpartition("/")
        if sweep == name:
            found.setdefault(key, []).append(record)
    for mine in found.values():
        mine.sort(key=lambda record: (record.state is not RunState.DONE, not record.state.active, record.created_s))
    return found


def _outcome(key: str, record: RunRecord, *, found: bool = False) -> Outcome:
    return Outcome(
        key=key, run_id=record.id, state=record.state.value, verdict=record.verdict.value,
        sentence=record.sentence or record.error, found=found,
    )  # fmt: skip


class LocalExecutor:
    """Worker processes on this host: devices side by side, the points of one device one after another."""

    def run(self, sweep: Sweep, points: Sequence[SweepPoint], place: Place, stop: threading.Event) -> Iterator[Outcome]:
        """As `Executor.run`."""
        devices = sorted({point.spec.device for point in points if point.spec is not None})

        def one(point: SweepPoint) -> Outcome:
            if stop.is_set() or point.spec is None:
                return _stopped(point.key)
            return run_point(sweep.name, sweep.kind, point.key, asdict(point.spec), place, stop)

        pools = {device: ThreadPoolExecutor(1, thread_name_prefix=f"kvcanary-sweep-{device}") for device in devices}
        try:
            waiting = [pools[point.spec.device].submit(one, point) for point in points if point.spec is not None]
            for future in as_completed(waiting):
                yield future.result()
        finally:
            stop.set()
            for pool in pools.values():
                pool.shutdown(wait=True)


class RayExecutor:
    """Tasks on a Ray cluster. A task carries its spec; results land in the store that the place names, which all nodes reach.

    A point on an accelerator asks for one GPU and runs on the one that Ray gives it. A worker or a node that is lost is replaced, and the
    task that it ran begins again; what its first run finished is found and not run twice.
    """

    def __init__(self, address: str = "") -> None:
        self._address = address

    def run(self, sweep: Sweep, points: Sequence[SweepPoint], place: Place, stop: threading.Event) -> Iterator[Outcome]:
        """As `Executor.run`. KvCanaryError when ray is not installed or the cluster cannot be reached."""
        ray = _ray()
        own = not ray.is_initialized()
        if own:
            try:
                ray.init(address=self._address or None, include_dashboard=False, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise KvCanaryError(f"the Ray cluster {self._address or 'on this host'} cannot be reached: {error}") from error
        waiting: dict[Any, SweepPoint] = {}
        try:
            task, wish = ray.remote(_ray_point), ray.remote(num_cpus=0)(StopWish).remote()
            for point in points:
                if point.spec is not None:
                    options = task.options(num_cpus=1, num_gpus=point.devices, max_retries=ATTEMPTS, name=f"{sweep.name}/{point.key}")
                    waiting[options.remote(sweep.name, sweep.kind, point.key, asdict(point.spec), asdict(place), wish)] = point
            asked = False
            while waiting:
                if stop.is_set() and not asked:
                    asked = True
                    _cancel(ray, waiting, wish)
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_WAIT_S)
                for reference in ready:
                    yield _ray_result(ray, reference, waiting.pop(reference))
        finally:
            if waiting:
                _cancel(ray, waiting, wish)
                # A task asks its run to stop before it ends, for which a cluster that is taken down at once leaves no time.
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCEL_S)
            if own:
                ray.shutdown()


class _AskedWish:
    """The wish as a task sees it, asked once a second; one that cannot be asked any more is none."""

    def __init__(self, ray: Any, wish: Any) -> None:
        self._ray, self._wish, self._again_s, self._set = ray, wish, 0.0, False

    def is_set(self) -> bool:
        if not self._set and time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _ASK_S
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._set = self._ray.get(self._wish.is_set.remote(), timeout=_CANCEL_S)
        return self._set


def _cancel(ray: Any, waiting: Mapping[Any, SweepPoint], wish: Any) -> None:
    """Those that wait first, so that none of them takes the place of one that ran."""
    wish.set.remote()
    for reference in reversed(waiting):
        ray.cancel(reference)


def _stopped(key: str) -> Outcome:
    return Outcome(key=key, run_id="", state="stopped", verdict=Verdict.NOT_RUN.value, sentence="Stopped with the sweep.")


def _ray_result(ray: Any, reference: Any, point: SweepPoint) -> Outcome:
    """A task's outcome; one that Ray gave up is a failed point, which does not end the sweep."""
    try:
        return Outcome(**ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        return _stopped(point.key)
    except ray.exceptions.RayError as error:
        sentence = f"Ray gave the point up: {str(error).strip().splitlines()[0][:300]}"
        return Outcome(key=point.key, run_id="", state=RunState.FAILED.value, verdict=Verdict.NOT_RUN.value, sentence=sentence)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise KvCanaryError("Ray is not installed here; pip install 'kvcanary[ray]' brings it, --executor local does without") from None
    return ray


def _ray_point(sweep_name: str, kind: str, key: str, values: dict[str, Any], place: dict[str, str], wish: Any) -> dict[str, Any]:
    """The task on its worker."""
    import ray

    asked = _AskedWish(ray, wish)
    if asked.is_set():
        return asdict(_stopped(key))
    spec = spec_from(kind, values)
    if isinstance(spec, BenchmarkSpec):
        spec = replace(spec, device=granted_device(spec.device, ray.get_gpu_ids(), os.environ))
    return asdict(run_point(sweep_name, kind, key, asdict(spec), Place(**place), asked))


def granted_device(device: str, granted: Sequence[int | str], environment: dict[str, str] | os._Environ[str]) -> str:
    """The device of a point on the node that took it: the GPU that Ray granted, by its number on the host.

    The host's number and not 'the first that is visible' is what the job queue keeps apart, so the mask is taken away. A GPU that has a
    name instead of a number stays behind the mask, as its first.
    """
    if device == "cpu" or not granted:
        return device
    first = str(granted[0])
    if not first.isdigit():
        return "cuda:0"
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    return f"cuda:{first}"
