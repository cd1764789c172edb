"""The benchmark: gate, measured points, then planted faults and one sweep over the whole pool for the map."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvcanary.errors import KvCanaryError
from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.gate import compare_flags, run_gate
from kvcanary.lab.limits import measure_limits
from kvcanary.lab.measure import KvPool, measure_point
from kvcanary.lab.planted import expected_flags, kinds_that_fit, plant
from kvcanary.lab.pool_map import coverage, write_map
from kvcanary.lab.records import BenchmarkSpec, Point, Progress, RunFolder, RunState, Verdict
from kvcanary.lab.scene import Scene
from kvcanary.lab.tables import write_points
from kvcanary.lab.usable_memory import free_bytes
from kvcanary.lab.workloads import plan_benchmark
from kvcanary.units import format_count, format_rate


class StopRequested(KvCanaryError):
    """Somebody asked the job to stop."""


@dataclass(slots=True)
class Reporter:
    """Where progress goes and where the wish to stop comes from."""

    folder: RunFolder
    started_s: float
    steps: int = 1
    done: int = 0

    def step(self, stage: str, message: str, advance: int = 0) -> None:
        """Report a stage; raises StopRequested when the run was asked to stop."""
        self.done += advance
        elapsed = time.monotonic() - self.started_s
        eta = elapsed / self.done * (self.steps - self.done) if self.done >= 2 else None
        self.folder.write_progress(Progress(stage=stage, done=self.done, total=self.steps, message=message, eta_s=eta))
        self.check()

    def check(self) -> None:
        """Raise StopRequested when the run was asked to stop."""
        if self.folder.stop_file.exists():
            raise StopRequested("stopped on request")


def run_benchmark(folder: RunFolder, spec: BenchmarkSpec, before_point: Callable[[], None] | None = None) -> None:
    """Run a spec and write everything into its folder; the record says at each moment what is known so far.

    before_point is called before each measured point, for ranks that measure at the same moment.
    """
    report = Reporter(folder, time.monotonic())
    durations: dict[str, float] = {}
    report.step("preparing", "choosing a backend and compiling it")
    plan = plan_benchmark(spec, free_bytes(spec.device))
    report.steps = len(plan.workloads) + 3
    backend, reason = choose_backend(spec.backend, spec.device)
    folder.update_record(backend={"name": backend.name, "reason": reason}, skipped=plan.skipped, notes=plan.notes)
    started = time.perf_counter()
    _warm_up(backend, spec)
    durations["prepare_s"] = time.perf_counter() - started
    report.step("gate", "comparing with the reference and finding planted faults", advance=1)
    started = time.perf_counter()
    gate = run_gate(backend, spec.device, spec.seed)
    durations["gate_s"] = time.perf_counter() - started
    folder.update_record(gate=tuple(gate), durations_s=durations)
    failed = [check for check in gate if not check.ok]
    if failed:
        sentence = f"Fail: the gate did not hold, nothing was timed. {failed[0].name}: {failed[0].detail}."
        folder.update_record(verdict=Verdict.FAIL, sentence=sentence)
        return
    report.step("limits", "what this machine can do at most", advance=1)
    started = time.perf_counter()
    folder.update_record(limits=measure_limits(backend, spec.device, spec.seed, report.check))
    durations["limits_s"] = time.perf_counter() - started
    report.step("measuring", "first point")
    started = time.perf_counter()
    kv = KvPool(spec.device)
    for number, workload in enumerate(plan.workloads, start=1):
        message = f"point {number} of {len(plan.workloads)}: {workload.kind} of {format_count(workload.shape.requests)} requests"
        report.step("measuring", message)
        if before_point is not None:
            before_point()
        measured = measure_point(backend, workload, spec, kv, report.check)
        if measured.false_alarms:
            sentence = f"Fail: {format_count(measured.false_alarms)} violations reported on a sound pool at {message}."
            folder.update_record(verdict=Verdict.FAIL, sentence=sentence)
            return
        folder.append_point(measured.point)
        report.step("measuring", message, advance=1)
    durations["measure_s"] = time.perf_counter() - started
    report.step("sweep", "planting faults and sweeping the pool" if spec.faults else "sweeping the pool")
    started = time.perf_counter()
    _final_sweep(folder, backend, spec, Scene(plan.final, spec.seed, spec.device, kv.rows(plan.final)), len(gate))
    durations["sweep_s"] = time.perf_counter() - started
    folder.update_record(durations_s=durations)
    report.step("done", "finished", advance=1)


def _warm_up(backend: Backend, spec: BenchmarkSpec) -> None:
    """Compile everything that will be timed; backends that compile offer `prepare`."""
    prepare: Callable[[], Any] | None = getattr(backend, "prepare", None)
    if prepare is not None:
        prepare()


def _final_sweep(folder: RunFolder, backend: Backend, spec: BenchmarkSpec, scene: Scene, checks: int) -> None:
    """Fill the pool, plant faults when asked, sweep once, and judge: all expected slots reported and no other."""
    scene.stamp_everything(backend)
    faults = plant(scene, kinds_that_fit(scene), spec.seed) if spec.faults else []
    scene.sweep(backend)
    detail, ok = compare_flags(scene, expected_flags(faults))
    seen = coverage(scene, faults)
    write_map(folder, scene, faults)
    in_reach = len(faults) - seen["faults_out_of_reach"]
    planted = (
        f"{in_reach} of {len(faults)} planted faults in reach, all reported at the expected slots"
        if faults
        else "no faults planted, and none reported"
    )
    rates = best_rates(folder.read_points()) if ok else ""
    sentence = (
        f"{'Pass' if ok else 'Fail'}: {rates}the gate held ({checks} checks); {planted if ok else detail}; "
        f"{format_count(seen['verified'])} slots verified, {format_count(seen['free'])} free, "
        f"{seen['ring_kept']} violation rows kept and {seen['ring_dropped']} dropped."
    )
    folder.update_record(
        verdict=Verdict.PASS if ok else Verdict.FAIL, sentence=sentence, coverage=seen, faults=tuple(asdict(fault) for fault in faults)
    )


def best_rates(points: Iterable[Point]) -> str:
    """'verify 137 M slots/s and stamp 2.55 M tokens/s at best in decode; '; empty where no decode point was measured."""
    decode = [point for point in points if point.workload == "decode"]
    verify = max((point.verify.items_per_s for point in decode if point.verify is not None), default=0.0)
    stamp = max((point.stamp.items_per_s for point in decode if point.stamp is not None), default=0.0)
    parts = [f"{op} {format_rate(rate, what)}" for op, rate, what in (("verify", verify, "slots"), ("stamp", stamp, "tokens")) if rate]
    return f"{' and '.join(parts)} at best in decode; " if parts else ""


def finish(folder: RunFolder, state: RunState, error: str = "") -> None:
    """Close a run: partial where points exist but no verdict was reached."""
    record = folder.read_record()
    changes: dict[str, Any] = {"state": state, "finished_s": time.time(), "error": error}
    points = folder.read_points()
    # After a failure, which may be a full disk, the record is what matters; points.jsonl holds the points already.
    if points and state is not RunState.FAILED:
        write_points(folder.points_file, points)
    if record.verdict is Verdict.NOT_RUN and state is not RunState.DONE:
        changes["verdict"] = Verdict.PARTIAL if points else Verdict.NOT_RUN
        changes["sentence"] = f"{state.value.capitalize()} after {len(points)} points; the pool was not swept." + (
            f" {error}" if error else ""
        )
    folder.update_record(**changes)
