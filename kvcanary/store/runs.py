"""What is read from the folder of one run: its map, and its points and document as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary.errors import StoreError
from kvcanary.lab.records import RunFolder
from kvcanary.lab.tables import count_slots, read_slots
from kvcanary.layout import SLOT_FIELDS


@dataclass(frozen=True, slots=True, eq=False)
class SlotArrays:
    """The map of a run: status and flags uint8 [num_slots], chain_index int64 [num_slots] (-1: no token), tokens per chain, records.

    fields is int64 [num_slots, 4] or None where the pool was too large to keep its records.
    """

    status: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    chain_index: npt.NDArray[np.int64]
    length: int
    fields: npt.NDArray[np.int64] | None


def read_slot_arrays(folder: RunFolder) -> SlotArrays | None:
    """The map in a run's folder, None where the run did not get that far."""
    if not folder.slots_file.is_file():
        return None
    columns, length = read_slots(folder.slots_file, ("status", "flags", "chain_index"), SLOT_FIELDS)
    kept = all(name in columns for name in SLOT_FIELDS)
    fields = np.stack([columns[name] for name in SLOT_FIELDS], axis=1) if kept else None
    return SlotArrays(columns["status"], columns["flags"], columns["chain_index"], length, fields)


def read_cards(folder: RunFolder) -> list[dict[str, Any]]:
    """Cards of bad slots, each of a slot that the map has; StoreError for damage in either."""
    cards = folder.read_cards()
    if cards and folder.slots_file.is_file():
        count, last = count_slots(folder.slots_file), max(range(len(cards)), key=lambda number: cards[number]["slot"])
        if cards[last]["slot"] >= count:
            raise StoreError(
                f"cards.json of run {folder.path.name} does not belong to its map: cards[{last}].slot is {cards[last]['slot']}, the map has "
                f"{count} slots"
            )
    return cards


def document_json(document: dict[str, Any]) -> str:
    """Text of a document, for a file or standard output."""
    return json.dumps(document, indent=2, allow_nan=False)
