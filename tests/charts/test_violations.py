"""Violations over time and by kind: nothing is lost by aggregation, figures stay small, and every mark carries what a click means."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.charts import violations


def test_the_seventh_reason_and_all_behind_it_share_a_column() -> None:
    counts = np.array([[9, 8, 7, 6, 5, 4, 3, 2, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0]])
    names, columns = violations.main_reasons([f"r{number}" for number in range(9)], counts)
    assert names == ["r0", "r1", "r2", "r3", "r4", "r5", violations.OTHER]
    assert columns.sum() == counts.sum()
    assert columns[:, -1].tolist() == [5, 2]


@pytest.mark.parametrize("axis", ["time", "step"])
def test_timeline_bars_carry_their_bin_and_fade_when_others_are_chosen(axis: str) -> None:
    bins = ["2027-02-03 04:05:01", "2027-02-03 04:05:02"] if axis == "time" else ["300", "304"]
    counts = np.array([[2, 0], [1, 5]])
    figure = violations.timeline(axis, bins, ["a", "b"], counts, np.array([False, True]), "light")
    assert [trace.name for trace in figure.data] == ["b", "a"]
    assert [list(data) for data in figure.data[0].customdata] == [[bins[0]], [bins[1]]]
    assert list(figure.data[0].marker.opacity) == [0.35, 1.0]
    assert figure.layout.xaxis.type == ("date" if axis == "time" else "linear")
    whole = violations.timeline(axis, bins, ["a", "b"], counts, np.array([False, False]), "light")
    assert list(whole.data[0].marker.opacity) == [1.0, 1.0]


def test_neither_a_lone_second_nor_a_violation_is_cut_into_parts() -> None:
    seconds = ["2027-02-03 04:05:01", "2027-02-03 04:05:02"]
    lone = violations.timeline("time", seconds[:1], ["a"], np.array([[1]]), np.array([False]), "light").layout
    assert (list(lone.xaxis.tickvals), lone.yaxis.dtick) == (seconds[:1], 1)
    many = violations.timeline("time", seconds, ["a"], np.array([[3], [6]]), np.array([False, False]), "light").layout
    assert (many.xaxis.tickvals, many.yaxis.dtick) == (None, None)


def test_timeline_in_words() -> None:
    text = violations.timeline_summary("step", ["300", "304"], ["a", "b"], np.array([[2, 0], [1, 5]]))
    assert text == "8 violations by step, from 300 on; most (6) at 304; most often b (5)."
    one = violations.timeline_summary("step", ["300"], ["a", "b"], np.array([[0, 1]]))
    assert one == "One violation, at step 300: b."
    assert violations.timeline_summary("step", [], [], np.zeros((0, 0), dtype=np.int64)) == "No violation is listed."


def test_matrix_marks_cells_with_rows_alone() -> None:
    counts = np.array([[3, 0], [0, 12000]])
    figure = violations.tag_matrix(["HEAD", "TAIL"], ["x", "y+z"], counts, counts > 5, "dark")
    marks = figure.data[1]
    assert [list(data) for data in marks.customdata] == [["HEAD", "x"], ["TAIL", "y+z"]]
    assert list(marks.text) == ["<b>3</b>", "<b>12\u202f000</b>"]
    assert list(marks.marker.opacity) == [0.01, 1.0]


def test_bars_carry_their_key_and_names_are_text() -> None:
    figure = violations.bars(["<b>x</b>", "%{y}"], ["k1", "k2"], np.array([5, 1]), np.array([False, False]), "light")
    assert [list(data) for data in figure.data[0].customdata] == [["k1"], ["k2"]]
    assert figure.data[0].y[0] == "&lt;b&gt;x&lt;/b&gt;"
    assert "%{" not in figure.data[0].y[1]


def test_the_largest_counts_in_words() -> None:
    counts = np.array([3, 0, 1200, 1, 1, 1, 1])
    said = violations.ranked(["a", "b", "c", "d", "e", "f", "g"], counts)
    assert said.replace("\u202f", " ") == "c 1 200, a 3, d 1, e 1, f 1 and 1 more"
    assert violations.ranked(["a"], np.array([0])) == "no row"
