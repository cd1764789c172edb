"""What is read from the folder of one run: its map, and its points and document as text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary.errors import StoreError
from kvcanary.escape import csv_text
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunFolder
from kvcanary.lab.tables import POINT_COLUMNS as POINT_COLUMNS
from kvcanary.lab.tables import RECORD_COLUMNS, count_slots, read_slots
from kvcanary.lab.tables import point_rows as point_rows


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
    columns, length = read_slots(folder.slots_file, ("status", "flags", "chain_index"), RECORD_COLUMNS)
    kept = all(name in columns for name in RECORD_COLUMNS)
    fields = np.stack([columns[name] for name in RECORD_COLUMNS], axis=1) if kept else None
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


def points_csv(points: list[Point]) -> str:
    """The rows of `point_rows` as CSV with a header; text that a spreadsheet would calculate gets a leading quote."""
    text = io.StringIO()
    writer = csv.DictWriter(text, POINT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in point_rows(points):
        writer.writerow({name: csv_text(value) if isinstance(value, str) else value for name, value in row.items()})
    return text.getvalue()
