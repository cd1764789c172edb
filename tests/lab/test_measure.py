"""A measured point: which launches it is made of, and that a false alarm while timing is no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import pytest
import torch

from kvcanary.kernels.backends import get_backend
from kvcanary.kernels.numba_cpu import NumbaBackend
from kvcanary.kernels.types import Launch, VerifyPlan
from kvcanary.lab import benchmark, bounds, measure, workloads
from kvcanary.lab.measure import KvPool, measure_point
from kvcanary.lab.records import SAMPLE_LIMIT, BenchmarkSpec, Point, RunFolder, RunRecord, RunState, Timing, Verdict
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.lab.workloads import Preset, Workload
from kvcanary.layout import LaunchTag, RealKvHashMode

SPEC = BenchmarkSpec(settings={}, preset="tiny")
SHAPE = SceneShape(num_slots=401, requests=4, length=64, row_bytes=32, shuffled=True)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = Preset(name="tiny", batches=2, min_repeats=3, seconds=0.0, prefix=16, layouts=("contiguous",), every_hash_mode=False)
    monkeypatch.setitem(workloads.PRESETS, "tiny", preset)


def measured(kind: str, prefix: int, extend: int, mode: RealKvHashMode) -> Point:
    workload = Workload(kind=kind, shape=replace(SHAPE, hash_mode=mode), prefix=prefix, extend=extend)
    found = measure_point(get_backend("numba"), workload, SPEC, KvPool("cpu"), lambda: None)
    assert found.false_alarms == 0
    return found.point


def test_decode_times_plan_stamp_and_verify_beside_their_bounds() -> None:
    point = measured("decode", 60, 4, RealKvHashMode.NONE)
    assert point.plan is not None
    assert point.stamp is not None
    assert point.verify is not None
    assert (point.stamp.items, point.verify.items) == (16, 240)
    assert point.stamp.bytes_moved == 16 * (24 + 32)
    assert point.verify.bytes_moved == 240 * (32 + 32)
    assert point.stamp_bound is not None
    assert point.verify_bound is not None
    assert point.stamp.repeats >= 3
    assert (point.head_stamp, point.head_verify) == (None, None)


@pytest.mark.parametrize(("mode", "hashed"), [(RealKvHashMode.PARTIAL, 16), (RealKvHashMode.ALL, 32)])
def test_where_tail_hashes_kv_head_is_timed_apart(mode: RealKvHashMode, hashed: int) -> None:
    point = measured("decode", 60, 4, mode)
    assert point.head_stamp is not None
    assert point.head_verify is not None
    assert point.verify is not None
    assert point.verify.bytes_moved == 240 * (64 + hashed)
    assert point.head_verify.bytes_moved == 240 * 64


def test_a_first_chunk_has_nothing_to_verify_and_a_sweep_is_no_forward() -> None:
    first = measured("prefill", 0, 64, RealKvHashMode.NONE)
    assert first.verify is None
    assert first.forward_s is not None
    sweep = measured("sweep", 64, 64, RealKvHashMode.NONE)
    assert sweep.verify is not None
    assert sweep.stamp is not None
    assert sweep.verify.items == sweep.stamp.items == 256
    assert sweep.forward_s is None


def test_one_forward_is_the_plan_and_four_launches() -> None:
    def lasting(seconds: float) -> Timing:
        return Timing(p20_s=seconds, p50_s=seconds, p80_s=seconds, repeats=1, items=1, bytes_moved=1)

    point = Point(
        workload="decode", layout="contiguous", hash_mode="none", batch=1, prefix=8,
        plan=lasting(1.0), stamp=lasting(2.0), verify=lasting(4.0),
    )  # fmt: skip
    assert point.forward_s == 1 + 2 * (2 + 4)
    assert replace(point, head_stamp=lasting(0.5), head_verify=lasting(0.25)).forward_s == 1 + 2 + 4 + 0.75
    assert Point.from_dict({**vars_of(point)}) == point


def vars_of(point: Point) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(point)


def test_a_bound_reads_and_writes_what_the_operation_does() -> None:
    scene = Scene(replace(SHAPE, hash_mode=RealKvHashMode.ALL), 3)
    backend = get_backend("numba")
    scene.stamp_everything(backend)
    plan, _ = scene.plan(backend, 64, 0)
    inputs, before = scene.stamp_inputs(0, 64), scene.buffer.clone()
    bounds.verify_bound(scene, plan, 256)()
    bounds.stamp_bound(scene, inputs)()
    assert torch.equal(scene.buffer, before)


def test_kv_rows_are_made_once_and_remade_for_another_shape() -> None:
    pool, shape = KvPool("cpu"), replace(SHAPE, hash_mode=RealKvHashMode.ALL)
    rows = pool.rows(shape)
    assert rows is not None
    assert pool.rows(replace(shape, hash_mode=RealKvHashMode.PARTIAL)) is rows
    assert pool.rows(replace(shape, hash_mode=RealKvHashMode.NONE)) is None
    wider = pool.rows(replace(shape, row_bytes=64))
    assert wider is not None
    assert wider.shape == (401, 64)


class AlarmedOnThreads(NumbaBackend):
    """Sound in the gate's sweeps and false in TAIL launches without KV, as a backend that breaks at one size would be."""

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        super().verify(launch, plan, check_tokens=check_tokens)
        if launch.tag is LaunchTag.TAIL_K_FULL and launch.buffer.shape[0] == 1001:
            launch.ring.write_index.add_(1)


def test_a_false_alarm_while_timing_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_record(RunRecord(id=tmp_path.name, kind="benchmark", state=RunState.RUNNING, spec={}, created_s=0.0))
    monkeypatch.setattr(benchmark, "choose_backend", lambda *_: (AlarmedOnThreads(), "a test double"))
    settings = {"pool_slot_count": 1000, "max_seq_len_per_req": 100, "req_to_token_pool_size": 2, "cuda_graph_max_bs": 2}
    benchmark.run_benchmark(folder, replace(SPEC, settings=settings))
    record = folder.read_record()
    assert all(check.ok for check in record.gate)
    assert record.verdict is Verdict.FAIL
    assert "violations reported on a sound pool" in record.sentence
    assert folder.read_points() == []


@pytest.mark.parametrize("found", [True, False])
def test_rates_are_claimed_only_where_the_sweep_found_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    folder = RunFolder(tmp_path)
    folder.write_record(RunRecord(id=tmp_path.name, kind="benchmark", state=RunState.RUNNING, spec={}, created_s=0.0))
    if not found:
        monkeypatch.setattr(benchmark, "compare_flags", lambda *_: ("1 planted slot was not reported", False))
    settings = {"pool_slot_count": 1000, "max_seq_len_per_req": 100, "req_to_token_pool_size": 2, "cuda_graph_max_bs": 2}
    benchmark.run_benchmark(folder, replace(SPEC, settings=settings))
    record = folder.read_record()
    assert record.verdict is (Verdict.PASS if found else Verdict.FAIL)
    assert ("at best in decode" in record.sentence, "1 planted slot was not reported" in record.sentence) == (found, not found)


def test_a_timing_keeps_its_repeats_in_order_and_not_more_than_the_limit() -> None:
    few = Timing.of([0.003, 0.001, 0.002], items=7, bytes_moved=9)
    assert (few.p50_s, few.repeats, few.samples_s) == (0.002, 3, (0.003, 0.001, 0.002))
    many = Timing.of([index * 1e-6 for index in range(1, 9_001)], items=7, bytes_moved=9)
    assert (len(many.samples_s), many.samples_s[0], many.samples_s[-1], many.repeats) == (SAMPLE_LIMIT, 1e-6, 9e-3, 9_000)
    assert list(many.samples_s) == sorted(many.samples_s)
    assert Timing.from_dict(asdict(many)) == many


def test_a_measured_point_comes_with_its_samples() -> None:
    point = measured("decode", 60, 4, RealKvHashMode.NONE)
    assert point.stamp is not None
    assert len(point.stamp.samples_s) == point.stamp.repeats


def test_a_point_of_version_1_has_no_samples() -> None:
    old = {"p20_s": 1e-6, "p50_s": 2e-6, "p80_s": 3e-6, "repeats": 5, "items": 16, "bytes_moved": 896}
    point = Point.from_dict({"workload": "decode", "layout": "contiguous", "hash_mode": "none", "batch": 4, "prefix": 60, "stamp": old})
    assert point.stamp == Timing(**old)
    assert point.stamp.samples_s == ()


@pytest.mark.parametrize(("compiled", "turn"), [(0, 8), (2, 8), (4, 1)])
def test_turns_are_as_long_as_the_calls_let_them_be_once_compiled(monkeypatch: pytest.MonkeyPatch, compiled: int, turn: int) -> None:
    order: list[str] = []

    def once(clock: object, call: Callable[[], None]) -> float:
        call()
        return 9.0 if len(order) <= compiled else 1e-5

    monkeypatch.setattr(measure._Clock, "_once", once)
    preset = Preset(name="tiny", batches=2, min_repeats=9, seconds=1e-3, prefix=16, layouts=("contiguous",), every_hash_mode=False)
    clock = measure._Clock("cpu", preset, lambda: None)
    clock.time_beside(lambda: order.append("call"), lambda: order.append("bound"), items=8, moved=64)
    turns = [len(list(same)) for _, same in groupby(order[4 if compiled else 2 :])]
    assert len(turns) > 2
    assert set(turns) == {turn}


def test_a_call_and_its_bound_take_turns() -> None:
    order: list[str] = []
    preset = Preset(name="tiny", batches=2, min_repeats=4, seconds=1e-5, prefix=16, layouts=("contiguous",), every_hash_mode=False)
    clock = measure._Clock("cpu", preset, lambda: None)
    timing, bound, _ = clock.time_beside(lambda: order.append("call"), lambda: order.append("bound"), items=8, moved=64)
    runs = [name for index, name in enumerate(order[2:]) if index == 0 or order[1 + index] != name]
    assert runs[:4] == ["call", "bound", "call", "bound"]
    assert timing.repeats == bound.repeats == order.count("call") - 1 == order.count("bound") - 1
    assert (timing.items, bound.bytes_moved) == (8, 64)
