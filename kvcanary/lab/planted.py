"""Faults planted into a scene on purpose, with the rows that a correct verify must report for them: all of these and no others.

The expectation is worked out from the chain structure alone and never from a verify run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.lab.scene import Scene
from kvcanary.layout import FailReason, RealKvHashMode

CHAIN, POSITION, REAL = FailReason.VERIFY_CHAIN_HASH, FailReason.VERIFY_POSITION, FailReason.VERIFY_REAL_KV_HASH


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """One change: what, at which slot, the 8 bytes before and after, and the reason bits expected per slot (empty: out of reach)."""

    kind: str
    slot: int
    field: str
    before: int
    after: int
    expected: dict[int, int]
    why: str


RECORD_KINDS = ("token bit", "position off by one", "prev_hash bit", "zeroed record")
KV_KINDS = ("KV byte in the first 16", "KV byte after the first 16")


def kinds_for(scene: Scene) -> tuple[str, ...]:
    """Kinds that change something in this scene; KV bytes exist only when they are hashed."""
    if scene.kv is None:
        return RECORD_KINDS
    return RECORD_KINDS + (KV_KINDS if scene.shape.row_bytes > layout.PARTIAL_BYTES else KV_KINDS[:1])


def plant(scene: Scene, kinds: Sequence[str], seed: int) -> list[PlantedFault]:
    """Plant one fault of each kind in the middle of different chains or far apart in one; needs chains of at least 4 tokens a fault.

    Changes scene.buffer or scene.kv; raises ConfigError when the scene is too small to keep the faults' echoes apart.
    """
    spacing = 4
    places = scene.shape.used // spacing
    if scene.shape.length < spacing or places < len(kinds):
        raise ConfigError(f"planting {len(kinds)} faults needs {len(kinds)} pieces of {spacing} tokens, the scene has {places}")
    random = np.random.default_rng(seed)
    per_chain = scene.shape.length // spacing
    chosen = random.choice(scene.shape.requests * per_chain, size=len(kinds), replace=False)
    slots = scene.slots.cpu().numpy()
    faults = []
    for kind, piece in zip(kinds, chosen, strict=True):
        index = int(piece // per_chain * scene.shape.length + piece % per_chain * spacing + 1)
        faults.append(_plant_one(scene, kind, int(slots[index]), int(slots[index + 1]), random))
    return faults


def _plant_one(scene: Scene, kind: str, slot: int, successor: int, random: np.random.Generator) -> PlantedFault:
    if kind in KV_KINDS:
        return _plant_kv(scene, kind, slot, random)
    row = scene.fields[slot]
    before = [int(value) for value in row.tolist()]
    after = list(before)
    if kind == "token bit":
        field, after[0] = "token", before[0] ^ (1 << int(random.integers(0, 17)))
        expected, why = {successor: CHAIN}, "the record itself is not compared with a token, its successor's chain hash is"
    elif kind == "position off by one":
        field, after[1] = "position", before[1] + 1
        expected, why = {slot: POSITION, successor: CHAIN}, "the position is compared, and it is part of the successor's chain hash"
    elif kind == "prev_hash bit":
        field, after[2] = "prev_hash", layout.to_signed(before[2] ^ (1 << int(random.integers(0, 64))))
        expected, why = {slot: CHAIN, successor: CHAIN}, "the chain hash is compared here and carried into the successor"
    else:
        field, after = "record", [0, 0, 0, 0]
        real = REAL if before[3] else 0
        expected, why = {slot: CHAIN | POSITION | real, successor: CHAIN}, "every field of the record is gone"
    row.copy_(row.new_tensor(after))
    at = layout.SLOT_FIELDS.index(field) if field in layout.SLOT_FIELDS else 0
    return PlantedFault(kind=kind, slot=slot, field=field, before=before[at], after=after[at], expected=_ints(expected), why=why)


def _plant_kv(scene: Scene, kind: str, slot: int, random: np.random.Generator) -> PlantedFault:
    assert scene.kv is not None, "KV faults are planted only where KV bytes exist"
    inside = kind == KV_KINDS[0]
    column = int(random.integers(0, layout.PARTIAL_BYTES) if inside else random.integers(layout.PARTIAL_BYTES, scene.shape.row_bytes))
    before = int(scene.kv[slot, column])
    after = before ^ (1 << int(random.integers(0, 8)))
    scene.kv[slot, column] = after
    seen = inside or scene.shape.hash_mode is RealKvHashMode.ALL
    why = "the hashed bytes changed" if seen else "partial hashes the first 16 bytes of a row only"
    return PlantedFault(
        kind=kind, slot=slot, field=f"KV byte {column}", before=before, after=after, expected={slot: int(REAL)} if seen else {}, why=why
    )


def _ints(expected: Mapping[int, int]) -> dict[int, int]:
    return {slot: int(bits) for slot, bits in expected.items()}


def expected_flags(faults: Sequence[PlantedFault]) -> dict[int, int]:
    """Reason bits that a sweep must show per slot."""
    flags: dict[int, int] = {}
    for fault in faults:
        for slot, bits in fault.expected.items():
            flags[slot] = flags.get(slot, 0) | bits
    return flags
