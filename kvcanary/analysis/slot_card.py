"""All there is to say about one slot of a swept pool: stored against expected, whose it is, who is beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcanary import layout
from kvcanary.analysis.slot_map import Status
from kvcanary.layout import SlotStatus
from kvcanary.store.runs import SlotArrays
from kvcanary.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One field: stored and expected as 64-bit values (None: not kept), and which bits differ, highest first."""

    name: str
    stored: int | None
    expected: int | None

    @property
    def differing(self) -> int:
        """Bits that differ, as a mask; 0 when equal or not known."""
        return 0 if self.stored is None or self.expected is None else layout.to_unsigned(self.stored ^ self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCard:
    """One slot. predecessor and successor are slots of the same chain, -1 at its ends, None where the slot holds no token."""

    slot: int
    status: SlotStatus
    request: int | None
    position: int | None
    predecessor: int | None
    successor: int | None
    fields: tuple[FieldRow, ...]
    reasons: tuple[str, ...]
    explanation: str
    neighbours: tuple[tuple[int, SlotStatus], ...]


def slot_card(arrays: SlotArrays, cards: Sequence[Mapping[str, Any]], slot: int) -> SlotCard:
    """The card of a slot of a finished sweep; `cards` are the stored ones of bad slots."""
    status = SlotStatus(int(arrays.status[slot]))
    known = next((card for card in cards if card["slot"] == slot), None)
    index = int(arrays.chain_index[slot])
    stored: Sequence[int | None] = (None,) * 4
    if known is not None:
        stored = known["stored"]
    elif arrays.fields is not None:
        stored = [int(value) for value in arrays.fields[slot]]
    expected: Sequence[int | None] = known["expected"] if known is not None else (stored if status is SlotStatus.CLEAN else (None,) * 4)
    return SlotCard(
        slot=slot,
        status=status,
        request=None if index < 0 else index // arrays.length + 1,
        position=None if index < 0 else index % arrays.length,
        predecessor=known["predecessor"] if known is not None else _beside(arrays, index, -1),
        successor=known["successor"] if known is not None else _beside(arrays, index, +1),
        fields=tuple(
            FieldRow(name=name, stored=left, expected=right) for name, left, right in zip(layout.SLOT_FIELDS, stored, expected, strict=True)
        ),
        reasons=tuple(layout.reason_labels(int(arrays.flags[slot]))),
        explanation=_explain(status, known, cards),
        neighbours=tuple(
            (near, SlotStatus(int(arrays.status[near]))) for near in range(slot - 4, slot + 5) if 0 <= near < len(arrays.status)
        ),
    )


def _beside(arrays: SlotArrays, index: int, step: int) -> int | None:
    """The slot before or after in the same chain, found through the chain index."""
    if index < 0:
        return None
    if not 0 <= index % arrays.length + step < arrays.length:
        return -1
    found = np.flatnonzero(arrays.chain_index == index + step)
    return int(found[0]) if len(found) else -1


def _explain(status: SlotStatus, known: Mapping[str, Any] | None, cards: Sequence[Mapping[str, Any]]) -> str:
    if known is None:
        return {
            SlotStatus.FREE: "Holds no token, so there is nothing to verify.",
            SlotStatus.RESERVED: "Padding: the engine never verifies this slot.",
            SlotStatus.SKIPPED: "Holds a token that nothing verified.",
        }.get(status, "Verified; what is stored is what belongs there.")
    fault = known["fault"]
    if fault is not None:
        head = f"Planted: {fault['kind']} ({fault['field']} {fault['before']} -> {fault['after']}); {fault['why']}."
        if status is SlotStatus.CORRUPTED:
            return head
        elsewhere = [int(slot) for slot in fault["expected"]]
        return (
            f"{head} It is reported at slot {format_count(elsewhere[0])} instead."
            if elsewhere
            else f"{head} Out of reach: nothing reports it."
        )
    cause = next((card for card in cards if card["slot"] == known["predecessor"] and card["fault"] is not None), None)
    if cause is not None:
        return f"An echo: slot {format_count(cause['slot'])} before it in the chain was damaged, so the chain hash stored here no longer follows."
    return "Reported without a planted cause."


def diff_bits(mask: int) -> str:
    """The positions of set bits, highest first, shortened: '63, 41, 2' or '31 bits'."""
    bits = [bit for bit in range(63, -1, -1) if mask >> bit & 1]
    return ", ".join(map(str, bits)) if len(bits) <= 6 else f"{len(bits)} bits"


def bad_table(status: Status, cards: Sequence[Mapping[str, Any]], limit: int) -> list[tuple[int, str, int, int, str, str]]:
    """Rows of the table twin: slot, status, request, position, reasons, planted kind; reported slots first."""
    rows = [
        (
            card["slot"],
            SlotStatus(int(status[card["slot"]])).name.lower(),
            card["request"],
            card["position"],
            " + ".join(card["reasons"]) or "none",
            card["fault"]["kind"] if card["fault"] else "",
        )
        for card in cards
    ]
    return sorted(rows, key=lambda row: (row[1] != "corrupted", row[0]))[:limit]
