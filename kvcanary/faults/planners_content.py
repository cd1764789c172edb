"""Planners of faults in what stands in memory: records and KV bytes, of a slot, of a run of slots, or of a whole row."""

from __future__ import annotations

from typing import Any

from kvcanary import layout
from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.planning import Planner, foreign, op
from kvcanary.faults.scene import Scene


def overwrite(kind: OpKind) -> Planner:
    """Foreign content on a prefix slot: records and bytes, or bytes alone."""

    def plan(scene: Scene) -> list[FaultOp]:
        cell = scene.prefix_cell(inside_window=False)
        if cell is None:
            return []
        fields = foreign(scene, cell) if kind is OpKind.FOREIGN_WRITE else {"seed": int(scene.rng.integers(1 << 16))}
        return [op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **fields)]

    return plan


def padding(scene: Scene) -> list[FaultOp]:
    """A rank without tokens of its own writes bytes to a slot that a request reads."""
    cell = scene.prefix_cell(inside_window=False) if scene.step.pad_tokens else None
    return [] if cell is None else [op(scene, Hook.MODEL_FORWARD, OpKind.WRITE_BYTES, slot=cell.slot, seed=scene.step.index)]


def padding_slot_0(scene: Scene) -> list[FaultOp]:
    """The same to slot 0, which is there for it."""
    if not scene.step.pad_tokens:
        return []
    return [op(scene, Hook.MODEL_FORWARD, OpKind.WRITE_BYTES, slot=0, seed=scene.step.index + 1)]


def window_reused(scene: Scene) -> list[FaultOp]:
    """A slot of the window's pool goes to another request while this one still reads it."""
    cell = scene.prefix_cell() if scene.step.window else None
    if cell is None:
        return []
    slot = scene.in_window(cell.slot)
    return [op(scene, Hook.BEFORE_PLAN, OpKind.FOREIGN_WRITE, group=Group.SWA, slot=slot, **foreign(scene, cell))]


def cells(count: int, *kinds: tuple[OpKind, dict[str, Any]], reloaded: bool = False) -> Planner:
    """The same operations on a run of neighbouring slots; reloaded: on such as came back from the host for this forward."""

    def plan(scene: Scene) -> list[FaultOp]:
        cells = scene.reloaded_run(count) if reloaded else scene.run_of_cells(count)
        return [op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, seed=cell.slot, **fields) for cell in cells for kind, fields in kinds]

    return plan


def foreign_records(kind: OpKind, *, reloaded: bool = False) -> Planner:
    """A run of slots holds neighbouring records of another request: a right chain of its own, at other positions."""

    def plan(scene: Scene) -> list[FaultOp]:
        ops = []
        before: dict[str, int] = {}
        for cell in scene.reloaded_run(3) if reloaded else scene.run_of_cells(3):
            record = foreign(scene, cell)
            if before:
                record["prev_hash"] = layout.mix3(before["prev_hash"], before["token"], before["position"])
            ops.append(op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **record))
            before = record
        return ops

    return plan


def payload(kind: OpKind, **fields: Any) -> Planner:
    """One operation on the bytes or the record of a prefix slot."""

    def plan(scene: Scene) -> list[FaultOp]:
        cell = scene.prefix_cell(inside_window=False)
        return [] if cell is None else [op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **fields)]

    return plan


def whole_row(pattern: int) -> Planner:
    """A repeated two-byte pattern over the whole row of a prefix slot."""

    def plan(scene: Scene) -> list[FaultOp]:
        return payload(OpKind.FILL_BYTES, count=scene.engine.options.kv_row_bytes, seed=pattern)(scene)

    return plan


def stuck(scene: Scene) -> list[FaultOp]:
    """Bytes that no write changes any more: as verify finds them before the forward, and after the model wrote."""
    cell = scene.prefix_cell(inside_window=False)
    if cell is None:
        return []
    fields: dict[str, Any] = {"slot": cell.slot, "byte": 4, "count": 2, "seed": int(scene.rng.integers(1 << 16)), "lasting": True}
    return [op(scene, hook, OpKind.FILL_BYTES, **fields) for hook in (Hook.BEFORE_PLAN, Hook.MODEL_FORWARD)]


def early_read(scene: Scene) -> list[FaultOp]:
    """The bytes are right again before TAIL looks."""
    cells = scene.reloaded_run(3)
    late = [op(scene, Hook.BEFORE_PLAN, OpKind.WRITE_BYTES, slot=cell.slot, seed=cell.slot) for cell in cells]
    ended = [
        op(
            scene,
            Hook.MODEL_FORWARD,
            OpKind.SET_BYTES_OF,
            slot=cell.slot,
            token=scene.token_of(cell.rid, cell.position),
            position=cell.position,
        )
        for cell in cells
    ]
    return late + ended


def arrived(shift: int, *, from_other: bool) -> Planner:
    """Neighbouring slots hold records and bytes of other tokens of a right chain: of each other, or of another request's same positions."""

    def plan(scene: Scene) -> list[FaultOp]:
        cells = scene.run_of_cells(2)
        if not cells:
            return []
        source = scene.other_request(cells[0].rid, longer_than=cells[-1].position) if from_other else cells[0].rid
        if source is None:
            return []
        ops = []
        for cell, place in zip(cells, (cells[shift].position, cells[1 - shift].position), strict=True):
            ops.append(op(scene, Hook.BEFORE_PLAN, OpKind.FOREIGN_WRITE, slot=cell.slot, **scene.record_of(source, place)))
        return ops

    return plan


def flip_written(hook: Hook) -> Planner:
    """A byte of this forward's own token, at the given moment."""

    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written()
        return [] if token is None else [op(scene, hook, OpKind.FLIP_BYTES, slot=token.slot)]

    return plan


def flip_cached(scene: Scene) -> list[FaultOp]:
    """A byte of a slot that the prefix cache holds and no request uses."""
    slots = scene.cached_slots()
    return [op(scene, Hook.BEFORE_PLAN, OpKind.FLIP_BYTES, slot=int(scene.rng.choice(slots)))] if slots.size else []
