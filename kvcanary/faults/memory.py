"""The memory that faults damage: KV bytes and canary records of each group, and the inputs of the running forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvcanary import layout
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.kv_bytes import UInt8Array, kv_rows, kv_strips
from kvcanary.serving.pool import Int32Array, Int64Array
from kvcanary.serving.step import Step


class Group(StrEnum):
    """Buffer groups: the whole pool, the window pool of a sliding-window model, and the draft model's pool, which shares the slot numbers."""

    FULL = "full"
    SWA = "swa"
    DRAFT = "draft"


class Strip(StrEnum):
    """Rows of KV bytes that exist per slot. Only layer 0 is ever hashed, V only with the V half on."""

    K0 = "layer0_k"
    V0 = "layer0_v"
    K1 = "layer1_k"


STRIPS = tuple(Strip)
BUFFERS = ("k_head", "k_tail", "v_head", "v_tail")
# What SGLang hashes: layer 0 only, and nothing at HEAD, which runs before the layer wrote anything.
LAYER0: Mapping[str, tuple[Strip, ...]] = {"k_tail": (Strip.K0,), "v_tail": (Strip.V0,)}
TWO_LAYERS: Mapping[str, tuple[Strip, ...]] = {"k_tail": (Strip.K0, Strip.K1), "v_tail": (Strip.V0,)}


class GroupMemory:
    """KV bytes, uint8 [num_slots, row_bytes] per strip, and canary buffers, uint8 [num_slots, 32] per name. Faults write in place.

    hashed: the strips that each buffer's real-KV hash covers, in order; range_starts: the bytes of a row where a hashed range begins.
    """

    def __init__(
        self,
        num_slots: int,
        row_bytes: int,
        hash_mode: RealKvHashMode,
        hashed: Mapping[str, tuple[Strip, ...]] = LAYER0,
        range_starts: tuple[int, ...] = (0,),
    ) -> None:
        self.num_slots, self.row_bytes, self.hash_mode, self.hashed = num_slots, row_bytes, hash_mode, hashed
        self.range_starts = range_starts
        # The engine zeroes both at start; zero bytes hash to zero, so a slot that nobody wrote looks consistent.
        self.kv: dict[Strip, UInt8Array] = {strip: np.zeros((num_slots, row_bytes), dtype=np.uint8) for strip in STRIPS}
        self.stamps: dict[str, UInt8Array] = {name: np.zeros((num_slots, layout.SLOT_BYTES), dtype=np.uint8) for name in BUFFERS}

    @property
    def read_bytes(self) -> int:
        """Bytes of each hashed range."""
        return layout.PARTIAL_BYTES if self.hash_mode is RealKvHashMode.PARTIAL else self.row_bytes

    def parts(self, buffer: str) -> tuple[tuple[Strip, int], ...]:
        """The hashed ranges of a buffer in the order of its sources: strip and first byte."""
        return tuple((strip, start) for strip in self.hashed.get(buffer, ()) for start in self.range_starts)

    def write_tokens(self, slots: Int64Array, tokens: Int64Array, positions: Int64Array) -> None:
        """What the model does: store the KV of tokens in slots, int64 [n] each; negative slots are skipped."""
        kept = slots >= 0
        rows = kv_strips(tokens[kept], positions[kept], range(len(STRIPS)), self.row_bytes)
        for strip, mine in zip(STRIPS, rows, strict=True):
            self.kv[strip][slots[kept]] = mine

    def write_record(self, slot: int, token: int, position: int, prev_hash: int, buffers: tuple[str, ...]) -> None:
        """Store the record that the owner of (token, position, prev_hash) would have stored."""
        for name in buffers:
            real_hash = self._owner_hash(name, token, position)
            record = [token, position, layout.to_signed(prev_hash), layout.to_signed(real_hash)]
            self.stamps[name][slot] = np.array(record, dtype="<i8").view(np.uint8)

    def _owner_hash(self, buffer: str, token: int, position: int) -> int:
        if self.hash_mode is RealKvHashMode.NONE:
            return 0
        here = np.array([token]), np.array([position])
        ranges = [
            kv_rows(*here, STRIPS.index(strip), self.row_bytes)[0, start : start + self.read_bytes] for strip, start in self.parts(buffer)
        ]
        return layout.combine_sources(layout.fold_bytes(part.tobytes()) for part in ranges)


@dataclass(slots=True, eq=False)
class Forward:
    """Inputs of one forward. Where damage is meant, everything is a copy, so that the engine's own bookkeeping stays right.

    byte_slots is where the model stores KV, int64 [n]; it follows out_slots unless a fault tears them apart. -1 = nowhere.
    """

    step: Step
    req_to_token: Int32Array
    expected_tokens: Int32Array
    full_to_swa: Int64Array | None
    tokens: Int64Array
    positions: Int64Array
    out_slots: Int64Array
    byte_slots: Int64Array

    @classmethod
    def of(cls, step: Step, *, copy_tables: bool = True) -> Forward:
        """A forward as the engine meant it; without copied tables it must not be damaged."""
        req_to_token, expected_tokens, full_to_swa = step.req_to_token, step.expected_tokens, step.full_to_swa
        if copy_tables:
            req_to_token, expected_tokens = req_to_token.copy(), expected_tokens.copy()
            full_to_swa = None if full_to_swa is None else full_to_swa.copy()
        return cls(
            step=step,
            req_to_token=req_to_token,
            expected_tokens=expected_tokens,
            full_to_swa=full_to_swa,
            tokens=step.tokens.copy(),
            positions=step.positions.copy(),
            out_slots=step.out_slots.copy(),
            byte_slots=step.out_slots.copy(),
        )

    def row_of(self, rid: int) -> int | None:
        """The table row of a request of this batch, or None."""
        places = np.flatnonzero(self.step.rids == rid)
        return int(self.step.req_pool_indices[places[0]]) if places.size else None

    def token_index(self, rid: int, position: int) -> int | None:
        """Place of a request's token in the flat arrays, or None when this forward does not write it."""
        places = np.flatnonzero(self.step.rids == rid)
        if not places.size:
            return None
        place = int(places[0])
        offset = position - int(self.step.prefix_lens[place])
        if not 0 <= offset < int(self.step.extend_seq_lens[place]):
            return None
        return int(self.step.extend_seq_lens[:place].sum()) + offset
