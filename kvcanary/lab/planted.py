"""Faults planted into a scene on purpose, with the slots that a correct verify must report for them: all of these and no others.

The expectation is worked out from the chain structure alone and never from a verify run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.lab.scene import Scene
from kvcanary.layout import FailReason, RealKvHashMode

CHAIN, POSITION, REAL = (int(bit) for bit in (FailReason.VERIFY_CHAIN_HASH, FailReason.VERIFY_POSITION, FailReason.VERIFY_REAL_KV_HASH))
# A piece of a chain for each fault, in pages: one before it, the fault, one for its echo, one to keep the next fault apart.
_PIECE_PAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """One change: what, at which slot, the value before and after, and the reason bits expected per slot (empty: out of reach).

    `also` are further slots that the same change concerns: where a wrong table cell points to, the ends of swapped pages.
    """

    kind: str
    slot: int
    field: str
    before: int
    after: int
    expected: dict[int, int]
    why: str
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Site:
    """A place in a chain: `index` into the scene's flat tokens, always with neighbours on both sides in the same piece."""

    scene: Scene
    index: int

    def slot(self, step: int = 0) -> int:
        return int(self.scene.slots[self.index + step])

    @property
    def position(self) -> int:
        return self.index % self.scene.shape.length


_Planter = Callable[[Sequence[_Site], np.random.Generator], PlantedFault]


def kinds_for(scene: Scene) -> tuple[str, ...]:
    """Kinds that change something in this scene; KV bytes exist only when they are hashed."""
    outside = scene.shape.row_bytes > layout.PARTIAL_BYTES
    return tuple(kind for kind in _PLANTERS if kind not in _KV_KINDS or (scene.kv is not None and (kind != _KV_OUTSIDE or outside)))


def plant(scene: Scene, kinds: Sequence[str], seed: int) -> list[PlantedFault]:
    """Plant one fault of each kind, each in a piece of a chain of its own (two for kinds with two ends).

    Changes scene.buffer, scene.kv or scene.req_to_token. Raises ConfigError when the scene is too small to keep the faults' echoes apart.
    """
    per_chain = scene.shape.length // _piece(scene)
    needed = pieces_for(kinds)
    if needed > scene.shape.requests * per_chain:
        raise ConfigError(
            f"planting {len(kinds)} faults needs {needed} pieces of {_piece(scene)} tokens, the scene has {scene.shape.requests * per_chain}"
        )
    random = np.random.default_rng(seed)
    chosen = iter(random.choice(scene.shape.requests * per_chain, size=needed, replace=False).tolist())
    faults = []
    for kind in kinds:
        sites = [_site(scene, per_chain, next(chosen)) for _ in range(_sites(kind))]
        faults.append(_PLANTERS[kind](sites, random))
    return faults


def kinds_that_fit(scene: Scene) -> tuple[str, ...]:
    """The kinds that `plant` has room for, in their order."""
    room = scene.shape.requests * (scene.shape.length // _piece(scene))
    kinds = kinds_for(scene)
    return next(kinds[:count] for count in range(len(kinds), -1, -1) if pieces_for(kinds[:count]) <= room)


def pieces_for(kinds: Sequence[str]) -> int:
    """Pieces of chains that planting these kinds takes."""
    return sum(_sites(kind) for kind in kinds)


def expected_flags(faults: Sequence[PlantedFault]) -> dict[int, int]:
    """Reason bits that a sweep must show per slot."""
    flags: dict[int, int] = {}
    for fault in faults:
        for slot, bits in fault.expected.items():
            flags[slot] = flags.get(slot, 0) | bits
    return flags


def _piece(scene: Scene) -> int:
    return _PIECE_PAGES * scene.shape.page_size


def _site(scene: Scene, per_chain: int, piece: int) -> _Site:
    chain, place = divmod(piece, per_chain)
    return _Site(scene, chain * scene.shape.length + place * _piece(scene) + scene.shape.page_size)


def _record(sites: Sequence[_Site], kind: str, field: str, after: list[int], expected: dict[int, int], why: str) -> PlantedFault:
    """Write `after` over the record at the site."""
    row = sites[0].scene.fields[sites[0].slot()]
    before = [int(value) for value in row.tolist()]
    row.copy_(row.new_tensor(after))
    at = layout.SLOT_FIELDS.index(field) if field in layout.SLOT_FIELDS else 0
    return PlantedFault(kind=kind, slot=sites[0].slot(), field=field, before=before[at], after=after[at], expected=expected, why=why)


def _stored(site: _Site) -> list[int]:
    return [int(value) for value in site.scene.fields[site.slot()].tolist()]


def _token_bit(sites: Sequence[_Site], random: np.random.Generator) -> PlantedFault:
    token, *rest = _stored(sites[0])
    why = "the record itself is not compared with a token, its successor's chain hash is"
    return _record(sites, "token bit", "token", [token ^ (1 << int(random.integers(0, 17))), *rest], {sites[0].slot(1): CHAIN}, why)


def _position(sites: Sequence[_Site], _random: np.random.Generator) -> PlantedFault:
    token, position, *rest = _stored(sites[0])
    expected = {sites[0].slot(): POSITION, sites[0].slot(1): CHAIN}
    why = "the position is compared, and it is part of the successor's chain hash"
    return _record(sites, "position off by one", "position", [token, position + 1, *rest], expected, why)


def _prev_hash_bit(sites: Sequence[_Site], random: np.random.Generator) -> PlantedFault:
    token, position, prev_hash, real = _stored(sites[0])
    changed = layout.to_signed(prev_hash ^ (1 << int(random.integers(0, 64))))
    expected = {sites[0].slot(): CHAIN, sites[0].slot(1): CHAIN}
    why = "the chain hash is compared here and carried into the successor"
    return _record(sites, "prev_hash bit", "prev_hash", [token, position, changed, real], expected, why)


def _zeroed(sites: Sequence[_Site], _random: np.random.Generator) -> PlantedFault:
    real = REAL if _stored(sites[0])[3] else 0
    expected = {sites[0].slot(): CHAIN | POSITION | real, sites[0].slot(1): CHAIN}
    return _record(sites, "zeroed record", "record", [0, 0, 0, 0], expected, "every field of the record is gone")


def _table_cell(sites: Sequence[_Site], _random: np.random.Generator) -> PlantedFault:
    here, there = sites
    _point(here, 0, there.slot())
    moved = POSITION if here.position != there.position else 0
    return PlantedFault(
        kind="table cell to another slot", slot=here.slot(), field="request table", before=here.slot(), after=there.slot(),
        expected={there.slot(): CHAIN | moved, here.slot(1): CHAIN}, also=(there.slot(),),
        why="the request reads another request's token: the chain does not follow into it nor out of it",
    )  # fmt: skip


def _swapped_pages(sites: Sequence[_Site], _random: np.random.Generator) -> PlantedFault:
    first, second = sites
    page = first.scene.shape.page_size
    moved = POSITION if first.position != second.position else 0
    expected: dict[int, int] = {}
    for mine, other in ((first, second), (second, first)):
        for step in range(page):
            _point(mine, step, other.slot(step))
            if step == 0 or moved:
                expected[other.slot(step)] = moved | (CHAIN if step == 0 else 0)
        expected[mine.slot(page)] = CHAIN
    ends = {site.slot(step) for site in sites for step in (0, page - 1)}
    return PlantedFault(
        kind="swapped pages", slot=first.slot(), field="request table", before=first.slot(), after=second.slot(), expected=expected,
        also=tuple(sorted(ends - {first.slot()})),
        why="inside a page the chain still follows, at both its edges it does not",
    )  # fmt: skip


def _point(site: _Site, step: int, slot: int) -> None:
    row, column = divmod(site.index + step, site.scene.shape.length)
    site.scene.req_to_token[row + 1, column] = slot


def _kv_byte(kind: str, sites: Sequence[_Site], random: np.random.Generator) -> PlantedFault:
    scene, slot = sites[0].scene, sites[0].slot()
    assert scene.kv is not None, "KV faults are planted only where KV bytes exist"
    bounds = (0, layout.PARTIAL_BYTES) if kind == _KV_INSIDE else (layout.PARTIAL_BYTES, scene.shape.row_bytes)
    column = int(random.integers(*bounds))
    before = int(scene.kv[slot, column])
    after = before ^ (1 << int(random.integers(0, 8)))
    scene.kv[slot, column] = after
    seen = kind == _KV_INSIDE or scene.shape.hash_mode is RealKvHashMode.ALL
    why = "the hashed bytes changed" if seen else "partial hashes the first 16 bytes of a row only"
    expected = {slot: REAL} if seen else {}
    return PlantedFault(kind=kind, slot=slot, field=f"KV byte {column}", before=before, after=after, expected=expected, why=why)


_KV_INSIDE, _KV_OUTSIDE = _KV_KINDS = ("KV byte in the first 16", "KV byte after the first 16")
_TWO_SITES = ("table cell to another slot", "swapped pages")
_PLANTERS: dict[str, _Planter] = {
    "token bit": _token_bit,
    "position off by one": _position,
    "prev_hash bit": _prev_hash_bit,
    "zeroed record": _zeroed,
    "table cell to another slot": _table_cell,
    "swapped pages": _swapped_pages,
    _KV_INSIDE: lambda sites, random: _kv_byte(_KV_INSIDE, sites, random),
    _KV_OUTSIDE: lambda sites, random: _kv_byte(_KV_OUTSIDE, sites, random),
}


def _sites(kind: str) -> int:
    return 2 if kind in _TWO_SITES else 1
