"""Reducing a pool to tiles loses no bad slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.analysis import slot_map
from kvcanary.analysis.slot_map import OUTSIDE
from kvcanary.errors import ConfigError
from kvcanary.layout import SlotStatus

STATUSES = st.lists(st.integers(0, len(SlotStatus) - 1), min_size=1, max_size=3000).map(lambda values: np.array(values, dtype=np.uint8))


@given(STATUSES, st.integers(1, 40), st.integers(1, 20))
def test_each_tile_shows_the_worst_of_its_slots(status: np.ndarray, columns: int, rows: int) -> None:
    grid = slot_map.reduce_to_tiles(status, columns=columns, rows=rows)
    flat = grid.tiles.ravel()
    tile_count = -(-len(status) // grid.slots_per_tile)
    assert grid.tiles.size <= max(columns * rows, tile_count + grid.tiles.shape[1])
    for tile in range(len(flat)):
        inside = status[tile * grid.slots_per_tile : (tile + 1) * grid.slots_per_tile]
        assert flat[tile] == (max(inside) if len(inside) else OUTSIDE)


@given(STATUSES)
def test_every_bad_slot_is_counted_in_exactly_one_tile(status: np.ndarray) -> None:
    bad = slot_map.reduce_to_tiles(status, columns=16, rows=8).bad
    assert bad["corrupted"].sum() == (status == SlotStatus.CORRUPTED).sum()
    assert bad["injected"].sum() == (status == SlotStatus.INJECTED).sum()
    for row in bad.itertuples():
        assert status[row.first_slot] == row.status


def test_one_bad_slot_in_four_million_has_its_tile() -> None:
    status = np.full(4_000_000, SlotStatus.CLEAN, dtype=np.uint8)
    status[3_999_999] = SlotStatus.CORRUPTED
    grid = slot_map.reduce_to_tiles(status)
    assert grid.tiles.size <= slot_map.TILE_COLUMNS * slot_map.TILE_ROWS
    assert (grid.tiles == SlotStatus.CORRUPTED).sum() == 1
    assert grid.bad["first_slot"].tolist() == [3_999_999]


@given(STATUSES, st.data())
def test_the_window_holds_the_slot_and_shows_true_cells(status: np.ndarray, data: st.DataObject) -> None:
    slot = data.draw(st.integers(0, len(status) - 1))
    view = slot_map.window_around(status, slot, columns=8, rows=4)
    flat = view.cells.ravel()
    assert view.start <= slot < view.start + flat.size
    for offset, cell in enumerate(flat):
        inside = view.start + offset < len(status)
        assert cell == (status[view.start + offset] if inside else OUTSIDE)


@pytest.mark.parametrize("slot", [-1, 10])
def test_a_slot_outside_the_pool_is_refused(slot: int) -> None:
    with pytest.raises(ConfigError, match=rf"slot must be between 0 and 9, got {slot}"):
        slot_map.window_around(np.zeros(10, dtype=np.uint8), slot)


def test_an_empty_pool_has_no_map() -> None:
    with pytest.raises(ConfigError, match="at least one slot"):
        slot_map.reduce_to_tiles(np.zeros(0, dtype=np.uint8))


def test_the_summary_states_count_place_and_coverage() -> None:
    status = np.full(1000, SlotStatus.CLEAN, dtype=np.uint8)
    status[:300], status[0], status[610], status[700] = SlotStatus.FREE, SlotStatus.RESERVED, SlotStatus.CORRUPTED, SlotStatus.INJECTED
    line = slot_map.summary_line(status).replace("\u202f", " ")
    assert line == (
        "1 of 999 slots corrupted, first at 610; 1 damaged on purpose and not reported themselves; "
        "70 % of the pool was checked (700 slots)."
    )


def test_the_padding_page_is_no_slot_of_the_pool() -> None:
    status = np.full(4 * 17, SlotStatus.CLEAN, dtype=np.uint8)
    status[:4] = SlotStatus.RESERVED
    assert slot_map.summary_line(status).replace("\u202f", " ") == "0 of 64 slots corrupted; 100 % of the pool was checked (64 slots)."


def test_bad_slots_put_reported_ones_first() -> None:
    status = np.array([2, 4, 5, 2, 5, 4], dtype=np.uint8)
    assert slot_map.bad_slots(status).tolist() == [2, 4, 1, 5]
    assert slot_map.bad_slots(status, limit=3).tolist() == [2, 4, 1]


def test_a_pool_of_nothing_but_its_padding_has_a_sentence() -> None:
    line = slot_map.summary_line(np.full(1, SlotStatus.RESERVED, dtype=np.uint8))
    assert line.startswith("0 of 0 slots corrupted")
