"""Slot-map figures: weight, marks, letters."""

from __future__ import annotations

import numpy as np

from kvcanary.analysis import slot_map
from kvcanary.charts import slots
from kvcanary.charts.theme import STATUS_LOOKS
from kvcanary.layout import SlotStatus


def _pool(size: int, **bad: int) -> np.ndarray:
    status = np.full(size, SlotStatus.CLEAN, dtype=np.uint8)
    for name, slot in bad.items():
        status[slot] = SlotStatus[name.upper()]
    return status


def test_four_million_slots_weigh_little_and_the_bad_one_is_marked() -> None:
    status = _pool(4_000_000, corrupted=1_234_567)
    figure = slots.overview(slot_map.reduce_to_tiles(status), slot_map.count_statuses(status), "light")
    assert len(figure.to_json()) < 1_500_000
    marks = [trace for trace in figure.data if trace.type == "scatter" and trace.customdata is not None]
    assert [mark.customdata[0][0] for mark in marks] == [1_234_567]
    grid_x, grid_y = marks[0].x[0], marks[0].y[0]
    assert grid_y + grid_x <= 1_234_567 < grid_y + grid_x + 41


def test_many_bad_tiles_are_thinned_but_keep_both_ends() -> None:
    status = np.full(100_000, SlotStatus.CORRUPTED, dtype=np.uint8)
    figure = slots.overview(slot_map.reduce_to_tiles(status), slot_map.count_statuses(status), "dark")
    marks = next(trace for trace in figure.data if trace.type == "scatter" and trace.customdata is not None)
    assert len(marks.x) == slots.MARKER_LIMIT
    assert marks.customdata[0][0] == 0
    assert marks.customdata[-1][0] >= 99_990


def test_the_legend_names_each_status_with_letter_and_count() -> None:
    status = _pool(100, corrupted=5, injected=6, skipped=7, free=8)
    figure = slots.overview(slot_map.reduce_to_tiles(status), slot_map.count_statuses(status), "light")
    names = {trace.name for trace in figure.data if trace.name}
    assert {"X corrupted 1", "I injected, not reported here 1", "s not verified 1", "o clean 96", "· free 1"} == names


def test_the_window_draws_letters_page_borders_and_the_selection() -> None:
    status = _pool(600, corrupted=100)
    figure = slots.window(slot_map.window_around(status, 100), 100, "light", page_size=16)
    cells = figure.data[1]
    assert cells.text[list(cells.customdata[:, 0]).index(100)] == "X"
    outline, *borders = figure.layout.shapes
    assert (outline.x0, outline.x1) == (100 % 32 - 0.5, 100 % 32 + 0.5)
    assert [border.x0 for border in borders] == [15.5]


def test_pages_of_whole_rows_are_told_apart_between_rows() -> None:
    view = slot_map.window_around(_pool(4096, corrupted=2000), 2000)
    figure = slots.window(view, 2000, "light", page_size=64)
    _, *borders = figure.layout.shapes
    edges = [border.y0 + 16 for border in borders]
    assert edges
    assert all(edge % 64 == 0 for edge in edges)
    assert not slots.window(view, 2000, "light", page_size=48).layout.shapes[1:]


def test_small_maps_carry_slot_and_rank() -> None:
    maps = [(f"TP{rank}", slot_map.reduce_to_tiles(_pool(5000, corrupted=100 * rank), columns=32, rows=16)) for rank in range(1, 6)]
    figure = slots.multiples(maps, "dark")
    marks = [trace for trace in figure.data if trace.type == "scatter"]
    assert [list(trace.customdata[0]) for trace in marks] == [[100 * rank, f"TP{rank}"] for rank in range(1, 6)]
    assert len([trace for trace in figure.data if trace.type == "heatmap"]) == 5


def test_letters_and_colours_tell_all_statuses_apart() -> None:
    assert len({look.letter for look in STATUS_LOOKS.values()}) == len(SlotStatus)
    for theme in ("light", "dark"):
        assert len({look.color(theme) for look in STATUS_LOOKS.values()}) == len(SlotStatus)
