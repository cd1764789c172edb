"""One slot in one step of a replay: stored, expected by verify, and what belongs there; its chain and its bytes.

"Expected by verify" is worked out from the neighbour's record, as the canary does it. "Belongs" comes from the engine's tables. Where the
two differ, the canary accuses the wrong slot (an echo), or nobody at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.injectors import FaultRecord
from kvcanary.faults.memory import BUFFERS, STRIPS, Group, Strip
from kvcanary.faults.ops import FaultOp, OpKind
from kvcanary.lab.replay import Entries, PoolView, Replay, ReplayFrame
from kvcanary.layout import LaunchTag, SlotStatus
from kvcanary.serving.engine import OWNER_CACHED, OWNER_FREE, OWNER_IN_FLIGHT, OWNER_PADDING
from kvcanary.serving.kv_bytes import kv_rows

_OWNERS = {OWNER_FREE: "free", OWNER_CACHED: "prefix tree only", OWNER_IN_FLIGHT: "in flight", OWNER_PADDING: "padding"}
_BYTES_CHANGED = "The record is as it was written; the KV bytes it vouches for are not."
STRIP_NAMES = {Strip.K0: "layer 0, K", Strip.V0: "layer 0, V", Strip.K1: "layer 1, K"}


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field of a record, as signed 64-bit values; expected and belongs are None where nobody says anything about it."""

    name: str
    stored: int
    expected: int | None
    belongs: int | None

    @property
    def wrong(self) -> bool:
        """Not what the engine put there."""
        return self.belongs is not None and self.stored != self.belongs

    @property
    def flagged(self) -> bool:
        """Not what verify expects, so a launch that looks now reports it."""
        return self.expected is not None and self.stored != self.expected

    @property
    def differing(self) -> int:
        """Bits that differ from what verify expects, else from what belongs, as a mask."""
        other = self.expected if self.flagged else self.belongs
        return 0 if other is None else layout.to_unsigned(self.stored ^ other)


@dataclass(frozen=True, slots=True)
class ChainCell:
    """One position of a chain: the slot that the forward read there, or wrote there in this step."""

    position: int
    slot: int
    status: SlotStatus
    injected: bool
    written: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A record of the strip: its cell, its stored fields as unsigned values, and the hash that its successor must store to agree."""

    cell: ChainCell
    token: int
    position: int
    prev_hash: int
    leads_to: int


@dataclass(frozen=True, slots=True)
class ByteRow:
    """KV bytes of one strip; hashed: the places of the bytes that a hash of this configuration covers."""

    name: str
    stored: bytes
    belongs: bytes
    hashed: frozenset[int]

    @property
    def differing(self) -> tuple[int, ...]:
        """Places of the bytes that are not what the model wrote."""
        return tuple(index for index, pair in enumerate(zip(self.stored, self.belongs, strict=True)) if pair[0] != pair[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCard:
    """Everything about a slot in a step. rid is None for a sweep and where nobody reads it; position None where it holds no token.

    chain, before, here and after are empty where neither a launch nor a token names the slot.
    """

    slot: int
    status: SlotStatus
    owner: str
    rid: int | None
    position: int | None
    buffer: str
    fields: tuple[FieldView, ...]
    chain: tuple[ChainCell, ...]
    before: Neighbour | None
    here: Neighbour | None
    after: Neighbour | None
    byte_rows: tuple[ByteRow, ...]
    sentences: tuple[str, ...]


def owner_name(owner: int) -> str:
    """Who holds a slot, in words."""
    return _OWNERS.get(owner, f"request {owner}")


def buffers_of(config: CanaryConfig) -> tuple[str, ...]:
    """The canary buffers that a configuration stamps."""
    halves = ("k", "v") if config.verify_v_half else ("k",)
    return tuple(f"{half}_{phase}" for half in halves for phase in ("head", "tail"))


def slot_rows(pool: PoolView, slot: int) -> list[list[int]]:
    """This step's ring rows about a slot."""
    rows: list[list[int]] = pool.rows[pool.rows[:, 1] == slot].tolist()
    return rows


def replay_card(played: Replay, frame: ReplayFrame, group: Group, slot: int, buffer: str | None = None) -> ReplayCard:
    """The card of a slot. buffer: which record; by default the one that was reported, else that of TAIL."""
    pool = frame.pools[group]
    rows = slot_rows(pool, slot)
    buffer = buffer or (_buffer_of(rows[0][0]) if rows else "k_tail")
    entries, index = _entry(pool, slot, played.record)
    chain, place = _chain(pool, entries, index, slot)
    owner = int(pool.owners[slot])
    position = int(pool.truth.positions[slot])
    holds = owner not in (OWNER_FREE, OWNER_PADDING) and position >= 0
    fields = _fields(pool, played.config, buffer, slot, entries, index, holds)
    return ReplayCard(
        slot=slot,
        status=SlotStatus(int(pool.status[slot])),
        owner=owner_name(owner),
        rid=None if index is None or entries.rids[index] < 0 else int(entries.rids[index]),
        position=None if index is None and not holds else position if index is None else int(entries.positions[index]),
        buffer=buffer,
        fields=fields,
        chain=chain,
        before=_neighbour(pool, buffer, chain, place - 1),
        here=_neighbour(pool, buffer, chain, place),
        after=_neighbour(pool, buffer, chain, place + 1),
        byte_rows=_byte_rows(pool, played.config, slot) if holds else (),
        sentences=tuple(_sentences(played, frame, group, slot, buffer, fields, entries, index)),
    )


def _buffer_of(tag: int) -> str:
    phase, half, _ = LaunchTag(tag).name.lower().split("_")
    return f"{half}_{'head' if phase == 'head' else 'tail'}"


def _entry(pool: PoolView, slot: int, record: FaultRecord | None) -> tuple[Entries, int | None]:
    """The entry that names a slot: the cell that was broken before those of victims, HEAD and TAIL before what was written and swept."""
    broken = {(op.rid, op.position) for op in record.ops if op.rid >= 0} if record else set()
    rids = record.rids if record else ()
    for entries in (pool.entries, pool.written, pool.swept):
        found = np.flatnonzero(entries.slots == slot).tolist()
        if found:
            cells = {at: (int(entries.rids[at]), int(entries.positions[at])) for at in found}
            return entries, min(found, key=lambda at: (cells[at] not in broken, cells[at][0] not in rids, at))
    return pool.entries, None


def _chain(pool: PoolView, entries: Entries, index: int | None, slot: int) -> tuple[tuple[ChainCell, ...], int]:
    """The chain that an entry belongs to, position by position, and the place of the slot in it."""
    if index is None:
        held = pool.owners[slot] not in (OWNER_FREE, OWNER_PADDING) and pool.truth.positions[slot] >= 0
        return _held_chain(pool, slot) if held else ((), 0)
    if entries is pool.swept:
        places = _path(entries, index)
        cells = [_cell(pool, int(entries.positions[at]), int(entries.slots[at]), written=False) for at in places]
        return tuple(cells), places.index(index)
    rid, position = int(entries.rids[index]), int(entries.positions[index])
    cells = []
    for source in (pool.entries, pool.written):
        mine = np.flatnonzero(source.rids == rid)
        cells += [_cell(pool, int(source.positions[at]), int(source.slots[at]), written=source is pool.written) for at in mine.tolist()]
    return tuple(cells), next(at for at, cell in enumerate(cells) if cell.position == position)


def _held_chain(pool: PoolView, slot: int) -> tuple[tuple[ChainCell, ...], int]:
    """The chain down to a slot that nothing looks at now, from what the engine last knew of it."""
    path = [slot]
    while (before := int(pool.truth.prev_slots[path[0]])) >= 0 and before not in path:
        path.insert(0, before)
    return tuple(_cell(pool, int(pool.truth.positions[at]), at, written=False) for at in path), len(path) - 1


def _path(entries: Entries, index: int) -> list[int]:
    """Entries of a sweep from the chain head through one entry, and on to the first child of each."""
    place_of = {int(slot): at for at, slot in enumerate(entries.slots.tolist())}
    path = [index]
    while (before := place_of.get(int(entries.prev_slots[path[0]]))) is not None:
        path.insert(0, before)
    child_of = {int(before): at for at, before in reversed(list(enumerate(entries.prev_slots.tolist())))}
    while (after := child_of.get(int(entries.slots[path[-1]]))) is not None:
        path.append(after)
    return path


def _cell(pool: PoolView, position: int, slot: int, *, written: bool) -> ChainCell:
    return ChainCell(position, slot, SlotStatus(int(pool.status[slot])), bool((pool.injected == slot).any()), written)


def _neighbour(pool: PoolView, buffer: str, chain: tuple[ChainCell, ...], place: int) -> Neighbour | None:
    if not 0 <= place < len(chain):
        return None
    cell = chain[place]
    token, position, prev_hash, _ = pool.records[buffer][cell.slot].tolist()
    return Neighbour(cell, token, position, layout.to_unsigned(prev_hash), layout.mix3(layout.to_unsigned(prev_hash), token, position))


def _fields(
    pool: PoolView, config: CanaryConfig, buffer: str, slot: int, entries: Entries, index: int | None, holds: bool
) -> tuple[FieldView, ...]:
    stored = pool.records[buffer][slot].tolist()
    expected: list[int | None] = [None] * 4
    looked_at = index is not None and slot != layout.PADDING_SLOT and entries is not pool.written
    if index is not None and looked_at:
        token, before = int(entries.expected_tokens[index]), int(entries.prev_slots[index])
        expected = [
            token if config.verify_token_assert and token != layout.NO_EXPECTED_TOKEN else None,
            int(entries.positions[index]),
            None if before == layout.PADDING_SLOT else layout.to_signed(_hash_after(pool, buffer, before)),
            _real_hash(pool, buffer, {strip: rows[slot].tobytes() for strip, rows in pool.kv.items()}),
        ]
    belongs: list[int | None] = [None] * 4
    if holds:
        token, position, prev_hash = _belonging(pool, slot)
        right = {strip: kv_rows(np.array([token]), np.array([position]), at, len(pool.kv[strip][0]))[0] for at, strip in enumerate(STRIPS)}
        real = _real_hash(pool, buffer, {strip: row.tobytes() for strip, row in right.items()})
        belongs = [token, position, prev_hash, real]
    return tuple(FieldView(*row) for row in zip(layout.SLOT_FIELDS, stored, expected, belongs, strict=True))


def _hash_after(pool: PoolView, buffer: str, slot: int) -> int:
    if slot < 0:
        return layout.CHAIN_START
    token, position, prev_hash, _ = pool.records[buffer][slot].tolist()
    return layout.mix3(layout.to_unsigned(prev_hash), token, position)


def _real_hash(pool: PoolView, buffer: str, rows: dict[Strip, bytes]) -> int | None:
    parts = pool.hashed.get(buffer, ())
    if not pool.read_bytes or not parts:
        return None
    folded = (layout.fold_bytes(rows[strip][start : start + pool.read_bytes]) for strip, start in parts)
    return layout.to_signed(layout.combine_sources(folded))


def _byte_rows(pool: PoolView, config: CanaryConfig, slot: int) -> tuple[ByteRow, ...]:
    covered: dict[Strip, set[int]] = {strip: set() for strip in STRIPS}
    for buffer in buffers_of(config):
        for strip, start in pool.hashed.get(buffer, ()):
            covered[strip].update(range(start, min(start + pool.read_bytes, len(pool.kv[strip][slot]))))
    token, position = pool.truth.tokens[[slot]], pool.truth.positions[[slot]]
    rows = []
    for at, strip in enumerate(STRIPS):
        stored = pool.kv[strip][slot].tobytes()
        belongs = kv_rows(token, position, at, len(stored))[0].tobytes()
        rows.append(ByteRow(STRIP_NAMES[strip], stored, belongs, frozenset(covered[strip])))
    return tuple(rows)


def _sentences(
    played: Replay,
    frame: ReplayFrame,
    group: Group,
    slot: int,
    buffer: str,
    fields: tuple[FieldView, ...],
    entries: Entries,
    index: int | None,
) -> list[str]:
    """What happened here, the damage before its report."""
    pool = frame.pools[group]
    rows = slot_rows(pool, slot)
    injected = bool((pool.injected == slot).any())
    said = []
    if injected:
        said.append(_damage(played, slot, entries, index))
    elif slot == layout.PADDING_SLOT:
        said.append("Slot 0 is padding: verify skips it, and the chain check of whatever follows it.")
    elif pool.owners[slot] == OWNER_FREE:
        said.append("Free: no request and no prefix uses it.")
    for tag, labels in _by_tag(rows):
        said.append(f"{tag} reports {' + '.join(labels)}.")
    if rows and not injected:
        said.append(_echo(pool, fields, buffer, entries, index))
    elif rows and any(view.flagged for view in fields) and not any(view.wrong for view in fields):
        bytes_alone = [view.name for view in fields if view.flagged] == ["real_kv_hash"]
        said.append(_BYTES_CHANGED if bytes_alone else "The record is right for its owner; whoever reads it here expects another one.")
    elif not rows and not injected and pool.status[slot] == SlotStatus.SKIPPED:
        fresh = entries is pool.written
        said.append("Written in this step; the next one verifies it." if fresh else "Holds a token that this step did not verify.")
    elif not rows and pool.status[slot] == SlotStatus.CLEAN:
        said.append("Verified in this step: what is stored is what the canary expects.")
    elif not rows and injected:
        said.append("Nothing in this step reports it." if index is not None else "Nobody read it in this step.")
    return [sentence for sentence in said if sentence]


def _damage(played: Replay, slot: int, entries: Entries, index: int | None) -> str:
    """What the injector did to this slot, or to the cell that leads here."""
    record = played.record
    if record is None:
        return ""
    rid, position = (-1, -1) if index is None else (int(entries.rids[index]), int(entries.positions[index]))
    mine = [op for op in record.ops if op.slot == slot or (op.rid >= 0 and (op.rid, op.position) == (rid, position))] or record.ops[:1]
    words = list(dict.fromkeys(_OP_WORDS[op.kind](op) for op in mine))
    return f"Damaged on purpose in step {record.step}: {'; '.join(words[:3])}."


def _bytes_words(op: FaultOp) -> str:
    return f"{op.count} byte{'s' if op.count > 1 else ''} of {STRIP_NAMES[op.strip]} from byte {op.byte} on"


def _buffer_words(op: FaultOp) -> str:
    return "every buffer" if op.buffers == BUFFERS else ", ".join(name.replace("_", " ").upper() for name in op.buffers)


_OP_WORDS: Mapping[OpKind, Callable[[FaultOp], str]] = {
    OpKind.SET_TABLE: lambda op: f"the table cell of request {op.rid}, position {op.position}, names slot {op.slot}",
    OpKind.SET_MAPPING: lambda op: f"the window translation of full slot {op.slot} became {op.by}",
    OpKind.FLIP_BYTES: lambda op: f"bits flipped in {_bytes_words(op)}",
    OpKind.WRITE_BYTES: lambda op: f"foreign KV bytes were written over slot {op.slot}",
    OpKind.FILL_BYTES: lambda op: f"{_bytes_words(op)} became {'zero' if not op.seed else f'the pattern 0x{op.seed:04x}'}",
    OpKind.PERMUTE_BYTES: lambda op: f"two halves of {_bytes_words(op)} changed places",
    OpKind.SET_BYTES_OF: lambda op: f"slot {op.slot} got the KV bytes of token {op.token} at position {op.position}",
    OpKind.PUT_RECORD: lambda op: f"slot {op.slot} holds the record of token {op.token} at position {op.position}; its KV bytes are right",
    OpKind.FOREIGN_WRITE: lambda op: f"record and KV bytes of token {op.token} at position {op.position} were written over slot {op.slot}",
    OpKind.CLEAR_RECORD: lambda op: f"the record of slot {op.slot} was cleared in {_buffer_words(op)}",
    OpKind.FLIP_RECORD: lambda op: f"bits flipped in the record of slot {op.slot} in {_buffer_words(op)}; its KV bytes are right",
    OpKind.REDIRECT_WRITE: lambda op: f"the token of request {op.rid}, position {op.position}, was stored in slot {op.slot}",
    OpKind.REDIRECT_BYTES: lambda op: (
        f"the KV bytes of request {op.rid}, position {op.position}, went to slot {op.slot}, the record did not"
    ),
    OpKind.SKIP_BYTES: lambda op: f"the KV bytes of request {op.rid}, position {op.position}, were never stored",
    OpKind.SWAP_TOKEN: lambda op: f"token {op.token} was fed to request {op.rid} at position {op.position}",
    OpKind.SHIFT_POSITION: lambda op: f"position {op.position} of request {op.rid} was stored as {op.position + op.by}",
}


def _by_tag(rows: list[list[int]]) -> list[tuple[str, list[str]]]:
    bits: dict[str, int] = {}
    for row in rows:
        name = LaunchTag(row[0]).name
        bits[name] = bits.get(name, 0) | row[7]
    return [(name, layout.reason_labels(value)) for name, value in bits.items()]


def _echo(pool: PoolView, fields: tuple[FieldView, ...], buffer: str, entries: Entries, index: int | None) -> str:
    """Why a slot that nobody damaged is reported."""
    chain = fields[layout.FIELD_PREV_HASH]
    if index is None:
        return ""
    if chain.wrong:
        return "Written behind a wrong record, or through a wrong cell: its prev_hash goes on from there, and stays wrong."
    if not chain.flagged:
        return ""
    before = int(entries.prev_slots[index])
    changed = pool.records[buffer][before, : layout.FIELD_REAL_KV_HASH].tolist() != _belonging(pool, before)
    why = "because that record changed" if changed else "because the cell before it names another slot than its own"
    return (
        f"An echo: the record here is as it was written. The chain hash that verify computes from slot {before} does not lead here, {why}."
    )


def _belonging(pool: PoolView, slot: int) -> list[int]:
    """token, position and prev_hash that the engine put into a slot, as a buffer stores them."""
    truth = pool.truth
    return [int(truth.tokens[slot]), int(truth.positions[slot]), layout.to_signed(int(truth.prev_hashes[slot]))]
