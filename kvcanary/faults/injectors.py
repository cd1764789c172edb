"""Seeded injectors: each finds a victim in the running forward and writes down what to break.

The record is the list of operations with their steps, so a fault is replayed by applying it again. Whether it changed anything is what
the executor reports for each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.faults.catalogue import find
from kvcanary.faults.memory import Group, Strip
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.scene import Cell, Scene
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.step import Step

# A lasting fault: a wrong cell stays wrong as long as anybody reads the row.
_FOREVER = 1 << 30
_BF16_NAN = 0x7FC0
_PREV_HASH_BYTE = 16

Planner = Callable[[Scene], list[FaultOp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """Ground truth of one injection: what (kind, variant), when (step), where (ops, slots), who (rids of the batch that use them), seed."""

    kind: str
    variant: str
    seed: int
    step: int
    ops: tuple[FaultOp, ...]
    slots: tuple[int, ...]
    rids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "kind": self.kind,
            "variant": self.variant,
            "seed": self.seed,
            "step": self.step,
            "ops": [op.to_dict() for op in self.ops],
            "slots": list(self.slots),
            "rids": list(self.rids),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The record of a stored run; ConfigError for a field that is missing or unknown."""
        try:
            return cls(
                **{
                    **values,
                    "ops": tuple(FaultOp.from_dict(op) for op in values["ops"]),
                    "slots": tuple(values["slots"]),
                    "rids": tuple(values["rids"]),
                }
            )
        except (TypeError, KeyError) as error:
            raise ConfigError(f"a fault record cannot be read: {error}") from None


class Injector:
    """Breaks one thing, once, at the first forward from `start_step` on that has a victim for it.

    ConfigError for an unknown kind or variant, or one that changes nothing in memory and so has nothing to inject.
    """

    def __init__(self, kind: str, variant: str, *, seed: int, start_step: int = 0) -> None:
        described = find(kind, variant)
        if not described.in_memory:
            raise ConfigError(f"{kind}.{variant} cannot be injected: {described.blind}")
        self.kind, self.variant, self.seed, self.start_step = kind, variant, seed, start_step
        self.record: FaultRecord | None = None
        self._planner = _PLANNERS[kind, variant]
        self._rng = np.random.default_rng([seed, 4])

    def offer(self, engine: ServingEngine, step: Step) -> FaultRecord | None:
        """Look at a scheduled step; the record when the fault happens here, else None. Later offers return None."""
        if self.record is not None or step.index < self.start_step:
            return None
        scene = Scene(engine, step, self._rng)
        ops = self._planner(scene)
        if not ops:
            return None
        hit = {op.slot for op in ops if op.slot > 0 and op.group is Group.FULL}
        rids = sorted({op.rid for op in ops if op.rid > 0} | scene.users(hit))
        slots = sorted({op.slot for op in ops if op.slot >= 0})
        self.record = FaultRecord(
            kind=self.kind, variant=self.variant, seed=self.seed, step=step.index, ops=tuple(ops), slots=tuple(slots), rids=tuple(rids)
        )
        return self.record


def _op(scene: Scene, hook: Hook, kind: OpKind, *, lasting: bool = False, **fields: Any) -> FaultOp:
    step = scene.step.index
    return FaultOp(hook=hook, kind=kind, step=step, until=_FOREVER if lasting else step + 1, **fields)


def _foreign(scene: Scene, cell: Cell) -> dict[str, Any]:
    """The record of a token that never was here: other id, other position, other history."""
    return {
        "token": int(scene.rng.integers(scene.engine.options.vocab_size)),
        "position": cell.position + 3,
        "prev_hash": int(scene.rng.integers(1 << 63)),
    }


def _overwrite(kind: OpKind) -> Planner:
    """Foreign content on a prefix slot: records and bytes, or bytes alone."""

    def plan(scene: Scene) -> list[FaultOp]:
        cell = scene.prefix_cell(inside_window=False)
        if cell is None:
            return []
        fields = _foreign(scene, cell) if kind is OpKind.FOREIGN_WRITE else {"seed": int(scene.rng.integers(1 << 16))}
        return [_op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **fields)]

    return plan


def _padding(scene: Scene) -> list[FaultOp]:
    cell = scene.prefix_cell(inside_window=False) if scene.step.pad_tokens else None
    return [] if cell is None else [_op(scene, Hook.MODEL_FORWARD, OpKind.WRITE_BYTES, slot=cell.slot, seed=scene.step.index)]


def _padding_slot_0(scene: Scene) -> list[FaultOp]:
    if not scene.step.pad_tokens:
        return []
    return [_op(scene, Hook.MODEL_FORWARD, OpKind.WRITE_BYTES, slot=0, seed=scene.step.index + 1)]


def _redirect(kind: OpKind, *, lasting_cell: bool = False) -> Planner:
    """This forward's token goes to a slot that another request of the batch reads."""

    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written()
        slot = scene.foreign_slot(token.rid) if token else None
        if token is None or slot is None:
            return []
        ops = [_op(scene, Hook.WRITE, kind, rid=token.rid, position=token.position, slot=slot)]
        if lasting_cell:
            ops.append(_op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=token.rid, position=token.position, slot=slot))
        return ops

    return plan


def _set_cell(scene: Scene) -> list[FaultOp]:
    cell = scene.prefix_cell()
    slot = scene.foreign_slot(cell.rid) if cell else None
    if cell is None or slot is None:
        return []
    return [_op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=slot)]


def _zero_cell(scene: Scene) -> list[FaultOp]:
    cell = scene.prefix_cell()
    if cell is None:
        return []
    return [_op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=0)]


def _zero_seed(scene: Scene) -> list[FaultOp]:
    cell = scene.seed_cell()
    return (
        [] if cell is None else [_op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=0)]
    )


def _stale_row(*, whole: bool) -> Planner:
    """Leading cells of one row are another's. The victim's prefix is the shorter one, so that the other can fill it."""

    def plan(scene: Scene) -> list[FaultOp]:
        places = sorted(scene.prefixes(6), key=lambda place: int(scene.step.prefix_lens[place]))
        if len(places) < 2:
            return []
        victim, other = places[0], places[-1]
        length = int(scene.step.prefix_lens[victim]) if whole else int(scene.step.prefix_lens[victim]) // 2
        mine, theirs = scene.cells(victim)[:length], scene.cells(other)[:length]
        if (mine == theirs).any():
            return []
        return [
            _op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, rid=scene.rid(victim), position=position, slot=int(slot))
            for position, slot in enumerate(theirs)
        ]

    return plan


def _shift(*, first: bool) -> Planner:
    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written(first_of_request=first)
        if token is None:
            return []
        by = int(scene.rng.choice([1, 2, 64]))
        return [_op(scene, Hook.WRITE, OpKind.SHIFT_POSITION, rid=token.rid, position=token.position, by=by)]

    return plan


def _draft_position(scene: Scene) -> list[FaultOp]:
    token = scene.written()
    if token is None:
        return []
    return [_op(scene, Hook.WRITE, OpKind.SHIFT_POSITION, group=Group.DRAFT, rid=token.rid, position=token.position, by=1)]


def _draft_chunk_end(*, in_output: bool) -> Planner:
    def plan(scene: Scene) -> list[FaultOp]:
        end = scene.chunk_end(in_output=in_output)
        if end is None:
            return []
        vocab = scene.engine.options.vocab_size
        wrong = (scene.token_of(end.rid, end.position + 1) + 1 + int(scene.rng.integers(vocab - 1))) % vocab
        return [_op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, group=Group.DRAFT, rid=end.rid, position=end.position, token=wrong)]

    return plan


def _wrong_token(scene: Scene) -> list[FaultOp]:
    token = scene.written()
    if token is None:
        return []
    vocab = scene.engine.options.vocab_size
    wrong = (scene.token_of(token.rid, token.position) + 1 + int(scene.rng.integers(vocab - 1))) % vocab
    return [_op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=token.rid, position=token.position, token=wrong)]


def _swap_tokens(scene: Scene) -> list[FaultOp]:
    """Two decoding requests get each other's token, in the input and in the engine's own list."""
    tokens = [
        (rid, p)
        for rid, p, e in zip(scene.step.rids, scene.step.prefix_lens, scene.step.extend_seq_lens, strict=True)
        if e == 1 and rid > 0
    ]
    if len(tokens) < 2:
        return []
    chosen = scene.rng.choice(len(tokens), size=2, replace=False)
    (a, at), (b, bt) = (tuple(map(int, tokens[i])) for i in chosen)
    mine, theirs = scene.token_of(a, at), scene.token_of(b, bt)
    if mine == theirs:
        return []
    pairs = ((a, at, theirs), (b, bt, mine))
    return [
        _op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=pairs[0][0], position=pairs[0][1], token=pairs[0][2], known=True),
        _op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=pairs[1][0], position=pairs[1][1], token=pairs[1][2], known=True),
        *(
            FaultOp(
                hook=Hook.BEFORE_PLAN,
                kind=OpKind.SWAP_TOKEN,
                step=scene.step.index + 1,
                until=_FOREVER,
                rid=rid,
                position=position,
                token=token,
                known=True,
            )
            for rid, position, token in pairs
        ),
    ]


def _window_reused(scene: Scene) -> list[FaultOp]:
    cell = scene.prefix_cell() if scene.step.window else None
    if cell is None:
        return []
    slot = scene.in_window(cell.slot)
    return [_op(scene, Hook.BEFORE_PLAN, OpKind.FOREIGN_WRITE, group=Group.SWA, slot=slot, **_foreign(scene, cell))]


def _window_cleared(scene: Scene) -> list[FaultOp]:
    cell = scene.prefix_cell() if scene.step.window else None
    return [] if cell is None else [_op(scene, Hook.BEFORE_PLAN, OpKind.SET_MAPPING, slot=cell.slot, by=0)]


def _cells(count: int, *kinds: tuple[OpKind, dict[str, Any]], reloaded: bool = False) -> Planner:
    """The same operations on a run of neighbouring slots; reloaded: on such as came back from the host for this forward."""

    def plan(scene: Scene) -> list[FaultOp]:
        cells = scene.reloaded_run(count) if reloaded else scene.run_of_cells(count)
        return [_op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, seed=cell.slot, **fields) for cell in cells for kind, fields in kinds]

    return plan


def _foreign_records(kind: OpKind, *, reloaded: bool = False) -> Planner:
    """A run of slots holds neighbouring records of another request: a right chain of its own, at other positions."""

    def plan(scene: Scene) -> list[FaultOp]:
        ops = []
        before: dict[str, int] = {}
        for cell in scene.reloaded_run(3) if reloaded else scene.run_of_cells(3):
            record = _foreign(scene, cell)
            if before:
                record["prev_hash"] = layout.mix3(before["prev_hash"], before["token"], before["position"])
            ops.append(_op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **record))
            before = record
        return ops

    return plan


def _payload(kind: OpKind, **fields: Any) -> Planner:
    def plan(scene: Scene) -> list[FaultOp]:
        cell = scene.prefix_cell(inside_window=False)
        return [] if cell is None else [_op(scene, Hook.BEFORE_PLAN, kind, slot=cell.slot, **fields)]

    return plan


def _whole_row(pattern: int) -> Planner:
    def plan(scene: Scene) -> list[FaultOp]:
        return _payload(OpKind.FILL_BYTES, count=scene.engine.options.kv_row_bytes, seed=pattern)(scene)

    return plan


def _stuck(scene: Scene) -> list[FaultOp]:
    """Bytes that no write changes any more: as verify finds them before the forward, and after the model wrote."""
    cell = scene.prefix_cell(inside_window=False)
    if cell is None:
        return []
    fields: dict[str, Any] = {"slot": cell.slot, "byte": 4, "count": 2, "seed": int(scene.rng.integers(1 << 16)), "lasting": True}
    return [_op(scene, hook, OpKind.FILL_BYTES, **fields) for hook in (Hook.BEFORE_PLAN, Hook.MODEL_FORWARD)]


def _early_read(scene: Scene) -> list[FaultOp]:
    """The bytes are right again before TAIL looks."""
    cells = scene.reloaded_run(3)
    late = [_op(scene, Hook.BEFORE_PLAN, OpKind.WRITE_BYTES, slot=cell.slot, seed=cell.slot) for cell in cells]
    ended = [
        _op(
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


def _arrived(shift: int, *, from_other: bool) -> Planner:
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
            ops.append(_op(scene, Hook.BEFORE_PLAN, OpKind.FOREIGN_WRITE, slot=cell.slot, **scene.record_of(source, place)))
        return ops

    return plan


def _flip_written(hook: Hook) -> Planner:
    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written()
        return [] if token is None else [_op(scene, hook, OpKind.FLIP_BYTES, slot=token.slot)]

    return plan


def _flip_cached(scene: Scene) -> list[FaultOp]:
    slots = scene.cached_slots()
    return [_op(scene, Hook.BEFORE_PLAN, OpKind.FLIP_BYTES, slot=int(scene.rng.choice(slots)))] if slots.size else []


_TAIL_BUFFERS = ("k_tail", "v_tail")

_PLANNERS: dict[tuple[str, str], Planner] = {
    ("late_write_after_free", "with_records"): _overwrite(OpKind.FOREIGN_WRITE),
    ("late_write_after_free", "bytes_only"): _overwrite(OpKind.WRITE_BYTES),
    ("slot_alias", "two_requests"): _redirect(OpKind.REDIRECT_WRITE, lasting_cell=True),
    ("slot_alias", "wrong_cell"): _set_cell,
    ("slot_alias", "cell_to_slot_0"): _zero_cell,
    ("slot_alias", "seed_at_slot_0"): _zero_seed,
    ("stale_row", "partly_overwritten"): _stale_row(whole=False),
    ("stale_row", "fully_overwritten"): _stale_row(whole=True),
    ("page_table_race", "records_and_bytes"): _redirect(OpKind.REDIRECT_WRITE),
    ("page_table_race", "bytes_only"): _redirect(OpKind.REDIRECT_BYTES),
    ("position_shift", "one_token"): _shift(first=False),
    ("position_shift", "first_token"): _shift(first=True),
    ("padding_slot", "live_slot"): _padding,
    ("padding_slot", "slot_0"): _padding_slot_0,
    ("spec_rollback", "past_the_reservation"): _redirect(OpKind.REDIRECT_WRITE),
    ("spec_rollback", "rejected_token_kept"): _wrong_token,
    ("swa_eviction", "reused_inside_window"): _window_reused,
    ("swa_eviction", "mapping_cleared"): _window_cleared,
    ("pd_transfer", "bytes_late"): _cells(2, (OpKind.WRITE_BYTES, {})),
    ("pd_transfer", "page_missing"): _cells(2, (OpKind.CLEAR_RECORD, {}), (OpKind.WRITE_BYTES, {})),
    ("pd_transfer", "cut_after_k_layers"): _cells(2, (OpKind.CLEAR_RECORD, {"buffers": _TAIL_BUFFERS})),
    ("pd_transfer", "first_token_swapped"): _wrong_token,
    ("tier_reload", "records_left_behind"): _foreign_records(OpKind.PUT_RECORD, reloaded=True),
    ("pd_transfer", "pages_swapped"): _arrived(1, from_other=False),
    ("pd_transfer", "other_request"): _arrived(0, from_other=True),
    ("tier_reload", "wrong_bytes"): _cells(1, (OpKind.WRITE_BYTES, {}), reloaded=True),
    ("tier_reload", "partial_copy"): _cells(3, (OpKind.FLIP_BYTES, {"byte": 32, "count": 32}), reloaded=True),
    ("tier_reload", "early_read"): _early_read,
    ("storage_visible_garbage", "half_loaded"): _cells(3, (OpKind.WRITE_BYTES, {}), reloaded=True),
    ("stale_prefix_hit", "node_kept_after_free"): _foreign_records(OpKind.FOREIGN_WRITE),
    ("layout_mismatch", "head_of_row"): _payload(OpKind.PERMUTE_BYTES, byte=0, count=32),
    ("layout_mismatch", "tail_of_row"): _payload(OpKind.PERMUTE_BYTES, byte=16, count=32),
    ("address_overflow", "store_wraps"): _redirect(OpKind.REDIRECT_BYTES),
    ("payload_bytes", "bit_flip"): _payload(OpKind.FLIP_BYTES, byte=3, mask=0x10),
    ("payload_bytes", "later_bytes"): _payload(OpKind.FLIP_BYTES, byte=24, count=16),
    ("payload_bytes", "nan"): _whole_row(_BF16_NAN),
    ("payload_bytes", "zeroed"): _whole_row(0),
    ("payload_bytes", "stuck"): _stuck,
    ("payload_bytes", "v_row"): _payload(OpKind.FLIP_BYTES, strip=Strip.V0),
    ("payload_bytes", "other_layer"): _payload(OpKind.FLIP_BYTES, strip=Strip.K1),
    ("payload_bytes", "just_written"): _flip_written(Hook.AFTER_TAIL),
    ("payload_bytes", "cached_only"): _flip_cached,
    ("payload_bytes", "bad_before_hash"): _flip_written(Hook.MODEL_FORWARD),
    ("token_swap", "sampler_exit"): _swap_tokens,
    ("draft_pool", "position_ahead"): _draft_position,
    ("draft_pool", "chunk_end_token"): _draft_chunk_end(in_output=False),
    ("draft_pool", "chunk_end_after_retraction"): _draft_chunk_end(in_output=True),
    ("canary_memory", "head_record"): _payload(OpKind.FLIP_RECORD, byte=_PREV_HASH_BYTE, buffers=("k_head",)),
    ("canary_memory", "tail_record"): _payload(OpKind.FLIP_RECORD, byte=_PREV_HASH_BYTE, buffers=("k_tail",)),
}
