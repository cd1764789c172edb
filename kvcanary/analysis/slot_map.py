"""Reduce a pool's per-slot status to what a screen can show: an overview of tiles and a window of single slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvcanary.errors import ConfigError
from kvcanary.layout import SlotStatus
from kvcanary.units import format_count, format_fraction

TILE_COLUMNS, TILE_ROWS = 512, 192
OUTSIDE = len(SlotStatus)

Status = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class TileGrid:
    """Worst status per tile: tiles uint8 [rows, columns] in slot order, row by row; OUTSIDE past the end of the pool.

    bad lists the tiles that hold a corrupted or injected slot, one row each: row, column, status, first_slot, corrupted, injected.
    """

    tiles: Status
    slots_per_tile: int
    num_slots: int
    bad: pd.DataFrame

    @property
    def slots_per_row(self) -> int:
        """Slots in one row of tiles."""
        return int(self.tiles.shape[1]) * self.slots_per_tile


@dataclass(frozen=True, slots=True, eq=False)
class SlotWindow:
    """Status of single slots: cells uint8 [rows, columns] from slot `start`; OUTSIDE past the end of the pool."""

    cells: Status
    start: int
    num_slots: int


def reduce_to_tiles(status: Status, *, columns: int = TILE_COLUMNS, rows: int = TILE_ROWS) -> TileGrid:
    """Overview of status uint8 [num_slots]: at most rows x columns tiles of equally many slots, none of them lost.

    A small pool gets one tile per slot on a grid of about the same shape. ConfigError for an empty pool.
    """
    count = len(status)
    if count == 0:
        raise ConfigError("a slot map needs at least one slot, got an empty pool")
    slots_per_tile = -(-count // (columns * rows))
    tile_count = -(-count // slots_per_tile)
    width = min(columns, max(1, round((tile_count * columns / rows) ** 0.5)))
    height = -(-tile_count // width)
    padded = np.full(tile_count * slots_per_tile, SlotStatus.FREE, dtype=np.uint8)
    padded[:count] = status
    tiles = np.full(height * width, OUTSIDE, dtype=np.uint8)
    tiles[:tile_count] = padded.reshape(tile_count, slots_per_tile).max(axis=1)
    return TileGrid(tiles.reshape(height, width), slots_per_tile, count, _bad_tiles(status, slots_per_tile, width))


def _bad_tiles(status: Status, slots_per_tile: int, width: int) -> pd.DataFrame:
    slots = np.flatnonzero(status >= SlotStatus.INJECTED)
    frame = pd.DataFrame({"tile": slots // slots_per_tile, "slot": slots, "corrupted": status[slots] == SlotStatus.CORRUPTED})
    frame["injected"] = ~frame["corrupted"]
    # Opening a tile should land on what is wrong in it, so a reported slot comes before one that was only injected.
    frame = frame.sort_values(["tile", "corrupted", "slot"], ascending=[True, False, True], kind="stable")
    grouped = frame.groupby("tile", sort=True).agg(
        first_slot=("slot", "first"), corrupted=("corrupted", "sum"), injected=("injected", "sum")
    )
    grouped = grouped.reset_index()
    grouped["row"], grouped["column"] = grouped["tile"] // width, grouped["tile"] % width
    grouped["status"] = np.where(grouped["corrupted"] > 0, int(SlotStatus.CORRUPTED), int(SlotStatus.INJECTED))
    return grouped[["row", "column", "status", "first_slot", "corrupted", "injected"]]


def window_around(status: Status, slot: int, *, columns: int = 32, rows: int = 16) -> SlotWindow:
    """The rows of `columns` slots around a slot, one cell per slot; ConfigError when the slot is not in the pool."""
    if not 0 <= slot < len(status):
        raise ConfigError(f"slot must be between 0 and {len(status) - 1}, got {slot}")
    last_row = (len(status) - 1) // columns
    first_row = min(max(0, slot // columns - rows // 2), max(0, last_row - rows + 1))
    start = first_row * columns
    cells = np.full(rows * columns, OUTSIDE, dtype=np.uint8)
    part = status[start : start + rows * columns]
    cells[: len(part)] = part
    return SlotWindow(cells.reshape(rows, columns), start, len(status))


def count_statuses(status: Status) -> dict[SlotStatus, int]:
    """Slots per status, every status named."""
    # One pass per status over bytes; bincount would first make every slot eight bytes.
    return {kind: int(np.count_nonzero(status == kind)) for kind in SlotStatus}


def pool_slots(counts: Mapping[SlotStatus, int]) -> int:
    """Slots of the pool as its operator counts them: the padding page is none of them."""
    return sum(counts.values()) - counts[SlotStatus.RESERVED]


def bad_slots(status: Status, *, limit: int | None = None) -> npt.NDArray[np.int64]:
    """Slots that are corrupted, then those injected and not reported, each in slot order."""
    corrupted = np.flatnonzero(status == SlotStatus.CORRUPTED)
    injected = np.flatnonzero(status == SlotStatus.INJECTED)
    return np.concatenate([corrupted, injected])[:limit]


def summary_line(status: Status) -> str:
    """The map in one sentence: what is wrong, where it begins, and how much of the pool was looked at."""
    counts = count_statuses(status)
    total, corrupted, injected = pool_slots(counts), counts[SlotStatus.CORRUPTED], counts[SlotStatus.INJECTED]
    looked_at = corrupted + counts[SlotStatus.CLEAN] + injected
    if corrupted:
        first = int(np.flatnonzero(status == SlotStatus.CORRUPTED)[0])
        head = f"{format_count(corrupted)} of {format_count(total)} slots corrupted, first at {format_count(first)}"
    else:
        head = f"0 of {format_count(total)} slots corrupted"
    if injected:
        head += f"; {format_count(injected)} damaged on purpose and not reported themselves"
    return f"{head}; {format_fraction(looked_at / max(1, total))} of the pool was checked ({format_count(looked_at)} slots)."
