"""The atoms of damage: one small change at one hook of one forward.

Every fault is a list of these, so its record is its replay. Applying an operation returns how many units (cells, bytes, tokens) it
changed: 0 means that nothing happened, and a fault that changed nothing is no experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np

from kvcanary.errors import ConfigError
from kvcanary.faults.memory import BUFFERS, STRIPS, Forward, Group, GroupMemory, Strip
from kvcanary.serving.kv_bytes import kv_rows, noise_row


class Hook(StrEnum):
    """Places in a forward, in order."""

    BEFORE_PLAN = "before_plan"
    AFTER_PLAN = "after_plan"
    WRITE = "write"
    MODEL_FORWARD = "model_forward"
    AFTER_TAIL = "after_tail"
    AFTER_STEP = "after_step"


class OpKind(StrEnum):
    """What is changed; which fields of FaultOp each kind reads stands at its function."""

    SET_TABLE = "set_table"
    SET_MAPPING = "set_mapping"
    FLIP_BYTES = "flip_bytes"
    WRITE_BYTES = "write_bytes"
    FILL_BYTES = "fill_bytes"
    PERMUTE_BYTES = "permute_bytes"
    SET_BYTES_OF = "set_bytes_of"
    PUT_RECORD = "put_record"
    FOREIGN_WRITE = "foreign_write"
    CLEAR_RECORD = "clear_record"
    FLIP_RECORD = "flip_record"
    REDIRECT_WRITE = "redirect_write"
    REDIRECT_BYTES = "redirect_bytes"
    SKIP_BYTES = "skip_bytes"
    SWAP_TOKEN = "swap_token"
    SHIFT_POSITION = "shift_position"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOp:
    """One change, applied at `hook` of every step in [step, until). Unused fields keep their defaults.

    slot is in the index space of `group`, except for tables and output slots, which are always of the full pool. rid and position name
    a request's cell or token; token, position and prev_hash name the record of some owner. known: the engine believes the swapped
    token, so its own list of tokens changes too.
    """

    hook: Hook
    kind: OpKind
    step: int
    until: int
    group: Group = Group.FULL
    slot: int = -1
    rid: int = -1
    position: int = 0
    token: int = 0
    prev_hash: int = 0
    strip: Strip = Strip.K0
    byte: int = 0
    count: int = 1
    mask: int = 0xFF
    by: int = 0
    seed: int = 0
    buffers: tuple[str, ...] = BUFFERS
    known: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; hashes are unsigned."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The operation of a record; ConfigError for an unknown field or value."""
        try:
            enums = {"hook": Hook(values["hook"]), "kind": OpKind(values["kind"])}
            enums |= {name: kind(values[name]) for name, kind in (("group", Group), ("strip", Strip)) if name in values}
            lists = {"buffers": tuple(values["buffers"])} if "buffers" in values else {}
            return cls(**{**values, **enums, **lists})
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(f"a fault operation cannot be read: {error}") from None


Memories = Mapping[Group, GroupMemory]


def apply(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """Make the change; returns the number of units that are different now."""
    return _ACTIONS[op.kind](op, forward, memories)


def _set_table(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position, slot: one cell of the request table that this forward reads."""
    row = forward.row_of(op.rid)
    if row is None or forward.req_to_token[row, op.position] == op.slot:
        return 0
    forward.req_to_token[row, op.position] = op.slot
    return 1


def _set_mapping(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, by: the window slot `by` for a full slot."""
    if forward.full_to_swa is None or forward.full_to_swa[op.slot] == op.by:
        return 0
    forward.full_to_swa[op.slot] = op.by
    return 1


def _flip_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, strip, byte, count, mask: xor some bytes."""
    row = memories[op.group].kv[op.strip][op.slot, op.byte : op.byte + op.count]
    row ^= np.uint8(op.mask)
    return len(row) if op.mask else 0


def _write_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, seed: foreign bytes on the whole row of every strip; no record."""
    memory = memories[op.group]
    return sum(_assign(memory.kv[strip][op.slot], noise_row(op.seed * len(STRIPS) + i, memory.row_bytes)) for i, strip in enumerate(STRIPS))


def _fill_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, strip, byte, count, seed: bytes byte..byte+count become the two-byte pattern `seed`, low byte first (0x7FC0 is a bf16 NaN)."""
    row = memories[op.group].kv[op.strip][op.slot, op.byte : op.byte + op.count]
    pattern = np.array([op.seed & 0xFF, op.seed >> 8], dtype=np.uint8)
    return _assign(row, np.resize(pattern, len(row)))


def _permute_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, strip, byte, count: the two halves of a part of the row change places."""
    row = memories[op.group].kv[op.strip][op.slot, op.byte : op.byte + op.count]
    return _assign(row, np.roll(row, op.count // 2))


def _set_bytes_of(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, token, position: the bytes that (token, position) has, on the whole row of every strip."""
    memory, token, position = memories[op.group], np.array([op.token]), np.array([op.position])
    return sum(_assign(memory.kv[strip][op.slot], kv_rows(token, position, i, memory.row_bytes)[0]) for i, strip in enumerate(STRIPS))


def _put_record(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, token, position, prev_hash, buffers: the record as its owner wrote it; bytes untouched."""
    memory = memories[op.group]
    before = {name: memory.stamps[name][op.slot].copy() for name in op.buffers}
    memory.write_record(op.slot, op.token, op.position, op.prev_hash, op.buffers)
    return sum(int((memory.stamps[name][op.slot] != before[name]).sum()) for name in op.buffers)


def _foreign_write(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, token, position, prev_hash: records and bytes of somebody else."""
    return _put_record(op, forward, memories) + _set_bytes_of(op, forward, memories)


def _clear_record(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, buffers: the record becomes zero."""
    zero = np.zeros(1, dtype=np.uint8)
    return sum(_assign(memories[op.group].stamps[name][op.slot], zero) for name in op.buffers)


def _flip_record(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """slot, buffers, byte, count, mask: a stray write into the canary's own memory."""
    for name in op.buffers:
        memories[op.group].stamps[name][op.slot, op.byte : op.byte + op.count] ^= np.uint8(op.mask)
    return len(op.buffers) * op.count if op.mask else 0


def _redirect_write(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position, slot: this step's token goes to another slot, records and bytes."""
    index = forward.token_index(op.rid, op.position)
    if index is None or forward.out_slots[index] == op.slot:
        return 0
    forward.out_slots[index] = forward.byte_slots[index] = op.slot
    return 1


def _redirect_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position, slot: only the bytes of this step's token go to another slot."""
    index = forward.token_index(op.rid, op.position)
    if index is None or forward.byte_slots[index] == op.slot:
        return 0
    forward.byte_slots[index] = op.slot
    return 1


def _skip_bytes(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position: the model does not store the bytes of this step's token."""
    index = forward.token_index(op.rid, op.position)
    if index is None:
        return 0
    forward.byte_slots[index] = -1
    return 1


def _swap_token(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position, token, known: another token id is fed and written; with known the engine's own list says so too."""
    index, row = forward.token_index(op.rid, op.position), forward.row_of(op.rid)
    if op.known and row is not None:
        forward.expected_tokens[row, op.position] = op.token
    if index is None or forward.tokens[index] == op.token:
        return 0
    forward.tokens[index] = op.token
    return 1


def _shift_position(op: FaultOp, forward: Forward, memories: Memories) -> int:
    """rid, position, by: the position input of this step's token is shifted."""
    index = forward.token_index(op.rid, op.position)
    if index is None or not op.by:
        return 0
    forward.positions[index] += op.by
    return 1


def _assign(target: np.ndarray[Any, np.dtype[np.uint8]], values: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    changed = int((target != values).sum())
    target[:] = values
    return changed


_ACTIONS: dict[OpKind, Callable[[FaultOp, Forward, Memories], int]] = {
    OpKind.SET_TABLE: _set_table,
    OpKind.SET_MAPPING: _set_mapping,
    OpKind.FLIP_BYTES: _flip_bytes,
    OpKind.WRITE_BYTES: _write_bytes,
    OpKind.FILL_BYTES: _fill_bytes,
    OpKind.PERMUTE_BYTES: _permute_bytes,
    OpKind.SET_BYTES_OF: _set_bytes_of,
    OpKind.PUT_RECORD: _put_record,
    OpKind.FOREIGN_WRITE: _foreign_write,
    OpKind.CLEAR_RECORD: _clear_record,
    OpKind.FLIP_RECORD: _flip_record,
    OpKind.REDIRECT_WRITE: _redirect_write,
    OpKind.REDIRECT_BYTES: _redirect_bytes,
    OpKind.SKIP_BYTES: _skip_bytes,
    OpKind.SWAP_TOKEN: _swap_token,
    OpKind.SHIFT_POSITION: _shift_position,
}
