"""One benchmark on every rank of a torchrun at the same moment: a barrier before each point, and all ranks beside each other at the end.

The ranks meet over gloo, on GPUs too: what is exchanged is a number per point, and a meeting on the device would disturb what is measured.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kvcanary.errors import ConfigError, JobError
from kvcanary.lab import leases, lifecycle
from kvcanary.lab.points import Point, Timing
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.worker import run_claimed

# Longer than any point of the longest effort.
_TIMEOUT = timedelta(minutes=30)
_OPS = ("stamp", "verify", "plan", "head_stamp", "head_verify", "stamp_bound", "verify_bound")
_ORDER = (Verdict.FAIL, Verdict.NOT_RUN, Verdict.PARTIAL, Verdict.PASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank ran, and how long it waited for the others before points."""

    rank: int
    host: str
    device: str
    run_id: str
    verdict: Verdict
    sentence: str
    waited_s: float
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One operation on all ranks: median seconds by rank, the slowest rank, and its median over the fastest one's."""

    workload: str
    layout: str
    hash_mode: str
    batch: int
    prefix: int
    op: str
    p50_s: tuple[float, ...]
    slowest_rank: int
    skew: float


def run_rank(root: Path, spec: BenchmarkSpec, environment: Mapping[str, str]) -> list[RankResult] | None:
    """Run this rank's benchmark together with the others; rank 0 gets all results, in the order of the ranks, the others None.

    The run is stored under `root` like any other. Raises ConfigError for a torchrun without its variables, JobError when the device has
    another job or a rank is lost.
    """
    local, rank = _number(environment, "LOCAL_RANK"), _number(environment, "RANK")
    device = f"cuda:{local}" if spec.device.startswith("cuda") else spec.device
    with _group(), _lease(root, device, local):
        record, waited_s = _run_here(root, replace(spec, device=device))
        folder = RunFolder(root / lifecycle.RUNS_FOLDER / record.id)
        points = tuple(without_samples(point) for point in folder.read_points())
        own = RankResult(
            rank=rank, host=platform.node(), device=device, run_id=record.id, verdict=record.verdict, sentence=record.sentence,
            waited_s=waited_s, points=points,
        )  # fmt: skip
        gathered: list[RankResult | None] | None = [None] * dist.get_world_size() if rank == 0 else None
        with _lost_rank():
            dist.gather_object(own, gathered)
    return None if gathered is None else [result for result in gathered if result is not None]


def rank_rows(results: Sequence[RankResult]) -> list[RankRow]:
    """Every operation that all ranks measured, in the order of the first rank."""
    tables = [_timings(result.points) for result in results]
    rows = []
    for key in tables[0] if tables else ():
        if all(key in table for table in tables):
            medians = tuple(table[key].p50_s for table in tables)
            slowest = max(range(len(medians)), key=medians.__getitem__)
            workload, layout, mode, batch, prefix, op = key
            rows.append(
                RankRow(
                    workload=workload, layout=layout, hash_mode=mode, batch=batch, prefix=prefix, op=op, p50_s=medians,
                    slowest_rank=results[slowest].rank, skew=max(medians) / min(medians),
                )
            )  # fmt: skip
    return rows


def overall(results: Sequence[RankResult], rows: Sequence[RankRow]) -> tuple[Verdict, str]:
    """The worst verdict, and the ranks in one sentence."""
    verdict = min((result.verdict for result in results), key=_ORDER.index)
    bad = [result for result in results if result.verdict is verdict and verdict is not Verdict.PASS]
    hosts = len({result.host for result in results})
    text = f"{verdict.value.capitalize()}: {len(results)} ranks on {hosts} host{'s' if hosts > 1 else ''}"
    if bad:
        text += f"; rank {bad[0].rank} is {bad[0].verdict.value}: {bad[0].sentence}"
    measured = [row for row in rows if not row.op.endswith("_bound")]
    if measured:
        slow = [row.slowest_rank for row in measured]
        usual = max(sorted(set(slow)), key=slow.count)
        worst = max(measured, key=lambda row: row.skew)
        text += (
            f"; rank {usual} is the slowest in {slow.count(usual)} of {len(slow)} operations, the largest skew is {worst.skew:.2f} "
            f"({worst.op.replace('_', ' ')} of {worst.workload} batch {worst.batch}, rank {worst.slowest_rank})"
        )
    return verdict, f"{text.rstrip('.')}."


@dataclass(slots=True)
class _Meeting:
    """Ranks wait for each other before each point. One that is through keeps coming until all are, so that nobody waits for ever."""

    waited_s: float = 0.0
    _flag: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))

    def before_point(self) -> None:
        """Return when every rank has come here, or is through."""
        started = time.perf_counter()
        self._exchange(1)
        self.waited_s += time.perf_counter() - started

    def leave(self) -> None:
        """Come to the meetings that the other ranks still have."""
        while self._exchange(0):
            pass

    def _exchange(self, measuring: int) -> int:
        self._flag.fill_(measuring)
        with _lost_rank():
            dist.all_reduce(self._flag)
        return int(self._flag.item())


def _run_here(root: Path, spec: BenchmarkSpec) -> tuple[RunRecord, float]:
    folder = lifecycle.new_folder(root / lifecycle.RUNS_FOLDER, "benchmark")
    # Claimed before it is there to be seen, so that no manager takes it out of the queue.
    folder.claim()
    worker_lease = leases.take(folder.worker_lock)
    record = RunRecord(id=folder.path.name, kind="benchmark", state=RunState.QUEUED, spec=asdict(spec), created_s=time.time())
    meeting = _Meeting()
    try:
        folder.write_record(record)
        lifecycle.enlist(folder)
        run_claimed(folder, spec.device, meeting.before_point)
        meeting.leave()
    finally:
        if worker_lease is not None:
            worker_lease.release()
    return folder.read_record(), meeting.waited_s


@contextmanager
def _group() -> Iterator[None]:
    try:
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise JobError(f"the ranks cannot meet: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _lease(root: Path, device: str, local_rank: int) -> Iterator[None]:
    """Keep other jobs off the device; ranks that share a processor share the lease of the first."""
    if device == "cpu" and local_rank > 0:
        yield
        return
    lease = leases.take(leases.device_lock(root, device))
    if lease is None:
        raise JobError(f"device {device} runs another job; wait for it or stop it, then start torchrun again")
    try:
        yield
    finally:
        lease.release()


@contextmanager
def _lost_rank() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise JobError(f"a rank was lost: {str(error).splitlines()[0][:200]}") from error


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdigit():
        raise ConfigError(f"{name} must be a whole number as torchrun sets it, got {text[:20]!r}")
    return int(text)


def _timings(points: Sequence[Point]) -> dict[tuple[str, str, str, int, int, str], Timing]:
    return {
        (point.workload, point.layout, point.hash_mode, point.batch, point.prefix, op): timing
        for point in points
        for op in _OPS
        if (timing := getattr(point, op)) is not None
    }


def without_samples(point: Point) -> Point:
    """What travels between ranks; the samples stay in the rank's own run."""
    return replace(point, **{op: replace(timing, samples_s=()) for op in _OPS if (timing := getattr(point, op)) is not None})
