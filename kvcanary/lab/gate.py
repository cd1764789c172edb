"""The gate before any number: equal bytes to the reference, then planted faults that verify must find, all and only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from kvcanary.kernels.reference import ReferenceBackend
from kvcanary.kernels.types import Backend
from kvcanary.lab.planted import expected_flags, kinds_for, plant
from kvcanary.lab.records import GateCheck
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import LaunchTag, RealKvHashMode

_SMALL = SceneShape(num_slots=130, requests=5, length=23, shuffled=True, row_bytes=48, ring_capacity=64)
_FAULTY = SceneShape(num_slots=4100, requests=15, length=265, page_size=4, shuffled=True, row_bytes=64)


def run_gate(backend: Backend, device: torch.device | str, seed: int) -> list[GateCheck]:
    """Every check, in order; the run goes on only when all are ok."""
    return list(_checks(backend, device, seed))


def _checks(backend: Backend, device: torch.device | str, seed: int) -> Iterator[GateCheck]:
    for mode in RealKvHashMode:
        yield _same_bytes(backend, device, seed, mode)
    for mode in RealKvHashMode:
        yield _finds_faults(backend, device, seed, mode)


def _same_bytes(backend: Backend, device: torch.device | str, seed: int, mode: RealKvHashMode) -> GateCheck:
    """Prefill, damage, sweep and decode the same small scene with the backend and with the reference, and compare what they wrote."""
    shape = replace(_SMALL, hash_mode=mode)
    mine, truth = Scene(shape, seed, device), Scene(shape, seed)
    for scene, worker in ((mine, backend), (truth, ReferenceBackend())):
        scene.stamp_everything(worker, LaunchTag.HEAD_K_FULL)
        scene.stamp_everything(worker)
        plant(scene, kinds_for(scene), seed)
        scene.sweep(worker)
    pairs: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {"sweep entries": (_entries(mine), _entries(truth))}
    for scene, worker in ((mine, backend), (truth, ReferenceBackend())):
        _decode_step(scene, worker)
    pairs |= {
        "decode entries": (_entries(mine), _entries(truth)),
        "write plan": (_write_plan(mine), _write_plan(truth)),
        "TAIL records": (mine.buffer, truth.buffer),
        "HEAD records": (mine.head_buffer, truth.head_buffer),
        "violation rows": (_sorted_rows(mine), _sorted_rows(truth)),
        "violation count": (mine.ring.write_index, truth.ring.write_index),
        "launches": (mine.counters.kernel_runs, truth.counters.kernel_runs),
        "slots per launch": (mine.counters.slot_runs, truth.counters.slot_runs),
        "coverage": (mine.coverage.counts, truth.coverage.counts),
        "slot flags": (mine.coverage.slot_flags, truth.coverage.slot_flags),
    }
    different = [name for name, (left, right) in pairs.items() if not _equal(left, right)]
    detail = f"{', '.join(pairs)} over {shape.used} tokens"
    if different:
        detail = f"differs from the reference in: {', '.join(different)}"
    return GateCheck(name=f"equal bytes to the reference, real-KV hash {mode.name.lower()}", ok=not different, detail=detail)


def _decode_step(scene: Scene, worker: Backend) -> None:
    """One forward that writes the last two tokens of each request: HEAD and TAIL verify, then stamp."""
    prefix = scene.shape.length - 2
    for tag in (LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL):
        verify_plan, write_plan = scene.plan(worker, prefix, 2)
        worker.verify(scene.launch(tag), verify_plan)
        worker.stamp(scene.launch(tag), write_plan, scene.stamp_inputs(prefix, 2))


def _finds_faults(backend: Backend, device: torch.device | str, seed: int, mode: RealKvHashMode) -> GateCheck:
    scene = Scene(replace(_FAULTY, hash_mode=mode), seed, device)
    scene.stamp_everything(backend)
    scene.sweep(backend)
    name = f"planted faults found, all and only, real-KV hash {mode.name.lower()}"
    before = int(scene.ring.write_index.item())
    if before:
        return GateCheck(name=name, ok=False, detail=f"{before} violations reported on a sound pool")
    faults = plant(scene, kinds_for(scene), seed)
    scene.sweep(backend)
    detail, ok = compare_flags(scene, expected_flags(faults))
    return GateCheck(name=name, ok=ok, detail=f"{len(faults)} faults: {detail}")


def compare_flags(scene: Scene, expected: dict[int, int]) -> tuple[str, bool]:
    """Reported slots against the expected ones, in words, and whether they are the same slots with the same reasons, once each."""
    assert scene.coverage.slot_flags is not None, "a scene always has slot flags"
    flags = scene.coverage.slot_flags
    reported = {int(slot): int(flags[slot]) for slot in torch.nonzero(flags).flatten().tolist()}
    missed = [slot for slot, bits in expected.items() if reported.get(slot, 0) != bits]
    extra = [slot for slot in reported if slot not in expected]
    counted = int(scene.ring.write_index.item())
    if missed or extra:
        return f"missed or wrong at slots {missed[:5]}, reported without cause at slots {extra[:5]}", False
    if counted != len(expected):
        return f"{len(expected)} slots reported as expected, but {counted} violations counted", False
    return f"{len(expected)} slots reported as expected, no other", True


def _entries(scene: Scene) -> torch.Tensor:
    plan = scene.verify_plan
    count = int(plan.num_valid.item())
    columns = (plan.slot_indices, plan.expected_tokens, plan.expected_positions, plan.prev_slot_indices)
    return torch.stack([column[:count] for column in columns])


def _write_plan(scene: Scene) -> torch.Tensor:
    return torch.cat([scene.write_plan.offsets, scene.write_plan.seed_slot_indices, scene.write_plan.num_valid_reqs])


def _sorted_rows(scene: Scene) -> torch.Tensor:
    rows = scene.ring.kept()
    return torch.tensor(sorted(rows.tolist()), dtype=torch.int64).reshape(-1, rows.shape[1])


def _equal(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    return left is not None and right is not None and torch.equal(left.cpu(), right.cpu())
