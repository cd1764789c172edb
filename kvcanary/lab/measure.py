"""Times one workload: plan, stamp and verify apart, each beside a bound that moves the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvcanary.config.settings import Settings
from kvcanary.kernels.types import Backend
from kvcanary.lab import bounds
from kvcanary.lab.records import BenchmarkSpec, Point, Timing
from kvcanary.lab.scene import Scene, kv_rows
from kvcanary.lab.shape import SceneShape
from kvcanary.lab.workloads import PRESETS, Preset, Workload
from kvcanary.layout import LaunchTag, RealKvHashMode

_MAX_REPEATS = 10_000
# Short calls take turns with their bound in groups, so that the caches of one are not always those that the other left behind.
_TURN, _LONG_S = 8, 0.01


class KvPool:
    """The KV rows that all scenes of one run share: they depend on the slot alone, and filling them costs more than a measurement."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rows: torch.Tensor | None = None

    def rows(self, shape: SceneShape) -> torch.Tensor | None:
        """The rows of this shape, uint8 [num_slots, row_bytes]; None where nothing is hashed."""
        if shape.hash_mode is RealKvHashMode.NONE:
            return None
        if self._rows is None or self._rows.shape != (shape.num_slots, shape.row_bytes):
            self._rows = None
            self._rows = kv_rows(shape, self._device)
        return self._rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A point, and the violations that the sound pool reported while it was measured; any is a false alarm."""

    point: Point
    false_alarms: int


def measure_point(backend: Backend, workload: Workload, spec: BenchmarkSpec, kv: KvPool, check: Callable[[], None]) -> Measured:
    """Build the workload's pool, then time what a forward (or a sweep) launches; `check` is called now and then and may raise."""
    shape = workload.shape
    scene = Scene(shape, spec.seed, spec.device, kv.rows(shape))
    scene.stamp_everything(backend)
    clock = _Clock(spec.device, PRESETS[spec.preset], check)
    point = Point(
        workload=workload.kind, layout=workload.layout, hash_mode=shape.hash_mode.name.lower(), batch=shape.requests,
        prefix=workload.prefix, halves=2 if Settings.from_flat(spec.settings).canary.verify_v_half else 1,
    )  # fmt: skip
    if workload.kind == "sweep":
        point = _stamp(point, clock, scene, backend, 0, shape.length)
        point = _verify(point, clock, scene, backend, shape.length, LaunchTag.SWEEP_K_FULL)
    else:
        plan, first = clock.time(lambda: scene.plan(backend, workload.prefix, workload.extend), shape.requests, 0)
        point = replace(point, plan=plan, warm_up_s=first)
        point = _stamp(point, clock, scene, backend, workload.prefix, workload.extend)
        if workload.prefix:
            point = _verify(point, clock, scene, backend, workload.prefix, LaunchTag.TAIL_K_FULL)
        if shape.hash_mode is not RealKvHashMode.NONE:
            point = _head(point, clock, scene, backend, workload)
    return Measured(point=point, false_alarms=int(scene.ring.write_index.item()))


def _stamp(point: Point, clock: _Clock, scene: Scene, backend: Backend, prefix: int, extend: int) -> Point:
    _, plan = scene.plan(backend, prefix, extend)
    inputs, launch = scene.stamp_inputs(prefix, extend), scene.launch(LaunchTag.TAIL_K_FULL)
    tokens = scene.shape.requests * extend
    moved = bounds.stamp_bytes(scene, tokens)
    timing, bound, first = clock.time_beside(lambda: backend.stamp(launch, plan, inputs), bounds.stamp_bound(scene, inputs), tokens, moved)
    replayed = clock.time_replayed(backend, lambda: backend.stamp(launch, plan, inputs), tokens, moved)
    return replace(point, stamp=timing, stamp_bound=bound, stamp_graph=replayed, warm_up_s=point.warm_up_s + first)


def _verify(point: Point, clock: _Clock, scene: Scene, backend: Backend, prefix: int, tag: LaunchTag) -> Point:
    plan, _ = scene.plan(backend, prefix, 0)
    launch, entries = scene.launch(tag), scene.shape.requests * prefix
    moved = bounds.verify_bytes(scene, entries)
    timing, bound, first = clock.time_beside(
        lambda: backend.verify(launch, plan), bounds.verify_bound(scene, plan, entries), entries, moved
    )
    replayed = clock.time_replayed(backend, lambda: backend.verify(launch, plan), entries, moved)
    return replace(point, verify=timing, verify_bound=bound, verify_graph=replayed, warm_up_s=point.warm_up_s + first)


def _head(point: Point, clock: _Clock, scene: Scene, backend: Backend, workload: Workload) -> Point:
    """HEAD's own launches, which hash no KV and work on a buffer of their own."""
    scene.stamp_everything(backend, LaunchTag.HEAD_K_FULL)
    launch = scene.launch(LaunchTag.HEAD_K_FULL)
    verify_plan, write_plan = scene.plan(backend, workload.prefix, workload.extend)
    inputs, count = scene.stamp_inputs(workload.prefix, workload.extend), scene.shape.requests
    tokens, entries = count * workload.extend, count * workload.prefix
    stamp, first = clock.time(lambda: backend.stamp(launch, write_plan, inputs), tokens, tokens * bounds.STAMP_BYTES)
    point = replace(point, head_stamp=stamp, warm_up_s=point.warm_up_s + first)
    if entries:
        verify, first = clock.time(lambda: backend.verify(launch, verify_plan), entries, entries * bounds.VERIFY_BYTES)
        point = replace(point, head_verify=verify, warm_up_s=point.warm_up_s + first)
    return point


class _Clock:
    """Times a call: the first apart, then at least min_repeats and for about `seconds`.

    On an accelerator by its own events, each call with cold caches: a forward of the model lies between two launches of the canary.
    """

    def __init__(self, device: str, preset: Preset, check: Callable[[], None]) -> None:
        self._on_gpu = device != "cpu"
        self._preset, self._check = preset, check
        self._flushed = torch.empty(2 * _cache_bytes(device), dtype=torch.uint8, device=device) if self._on_gpu else None

    def time(self, call: Callable[[], Any], items: int, moved: int) -> tuple[Timing, float]:
        """Quantiles over the repeats, and the seconds of the first call."""
        first, (times,) = self._in_turns(call)
        return Timing.of(times, items=items, bytes_moved=moved), first

    def time_beside(self, call: Callable[[], Any], bound: Callable[[], Any], items: int, moved: int) -> tuple[Timing, Timing, float]:
        """The same of a call and of its bound, in turns: what else happens on the machine has to meet both alike."""
        first, both = self._in_turns(call, bound)
        timing, beside = (Timing.of(times, items=items, bytes_moved=moved) for times in both)
        return timing, beside, first

    def _in_turns(self, *calls: Callable[[], Any]) -> tuple[float, list[list[float]]]:
        """Seconds of the very first call, and those of the repeats of each."""
        firsts = [self._once(call) for call in calls]
        # A first call may have compiled, so one that took long is no measure of the next.
        again = max(firsts) > _LONG_S
        times: list[list[float]] = [[self._once(call)] if again else [] for call in calls]
        spent = sum(map(sum, times))
        turn = 1 if again and max(map(max, times)) > _LONG_S else min(_TURN, self._preset.min_repeats)
        while len(times[0]) < self._preset.min_repeats or (spent < len(calls) * self._preset.seconds and len(times[0]) < _MAX_REPEATS):
            for call, found in zip(calls, times, strict=True):
                found.extend(self._once(call) for _ in range(turn))
                spent += sum(found[-turn:])
            self._check()
        return firsts[0], times

    def time_replayed(self, backend: Backend, launch: Callable[[], Any], items: int, moved: int) -> Timing | None:
        """The same launch replayed from a CUDA graph, as a server runs it; None where the backend is not made for capture."""
        if not self._on_gpu or backend.name != "triton":
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        return self.time(graph.replay, items, moved)[0]

    def _once(self, call: Callable[[], Any]) -> float:
        if self._flushed is None:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        self._flushed.zero_()
        event: Any = torch.cuda.Event
        before, after = event(enable_timing=True), event(enable_timing=True)
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3


def _cache_bytes(device: str) -> int:
    """Size of the accelerator's second-level cache."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
