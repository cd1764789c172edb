"""Violations over time and by kind: nothing is lost by aggregation, and figures stay small."""

from __future__ import annotations

import pandas as pd
import pytest

from kvcanary.analysis.log_stream import read_text
from kvcanary.charts import violations
from kvcanary.layout import SlotStatus
from tests.analysis.rendering import Row, prefix


def _frame(rows: list[tuple[Row, str, int]]) -> pd.DataFrame:
    text = "".join(f"{time}{row.message(step=step)}\n" for row, time, step in rows)
    return read_text(text).violations.frame()


def _many(count: int, reasons: int = 9) -> pd.DataFrame:
    labels = [f"reason_{number}" for number in range(reasons)]
    return pd.DataFrame(
        {
            "time": pd.to_datetime(pd.Series(range(count)), unit="s"),
            "step": pd.array(range(count), dtype="Int64"),
            "reasons": pd.Categorical([labels[min(number % 12, reasons - 1)] for number in range(count)]),
        }
    )


def test_counts_go_by_time_and_lose_no_row() -> None:
    rows = [(Row(slot=slot), prefix(time=f"2027-02-03 04:05:{second:02d}"), 5) for slot, second in ((11, 1), (12, 1), (13, 58))]
    name, counts = violations.timeline_counts(_frame(rows))
    assert name == "time"
    assert int(counts.to_numpy().sum()) == 3
    assert int(counts.iloc[0].sum()) == 2
    assert str(counts.index[0]).startswith("2027-02-03 04:05:01")


@pytest.mark.parametrize(("step", "name"), [(300, "step"), (None, "order in the log")])
def test_without_times_the_step_and_then_the_order_are_the_axis(step: int | None, name: str) -> None:
    text = "".join((Row(slot=slot).message(step=step + slot) if step else Row(slot=slot).line()) + "\n" for slot in (3, 4))
    axis, counts = violations.timeline_counts(read_text(text).violations.frame())
    assert axis == name
    assert list(counts.index) == ([303, 304] if step else [0, 1])


def test_many_rows_make_few_bins_and_few_kinds() -> None:
    frame = _many(200_000)
    _, counts = violations.timeline_counts(frame)
    assert len(counts) <= violations.BINS
    assert int(counts.to_numpy().sum()) == 200_000
    assert counts.shape[1] == 7
    assert violations.OTHER in counts.columns
    assert len(violations.timeline(frame, "light").to_json()) < 200_000


def test_an_empty_frame_draws_and_says_so() -> None:
    empty = read_text("nothing here\n").violations.frame()
    assert violations.timeline_summary(empty) == "No violation is listed."
    assert len(violations.timeline(empty, "dark").data) == 0
    assert violations.by_tag(empty) == []


def test_groups_count_rows_and_distinct_slots_most_first() -> None:
    rows = [(Row(slot=slot), prefix(), 5) for slot in (11, 11, 12)] + [(Row(tag="HEAD_K_FULL", reasons=("verify_position",)), prefix(), 6)]
    assert violations.by_tag(_frame(rows)) == [("TAIL_K_FULL", "verify_real_kv_hash", 3, 2), ("HEAD_K_FULL", "verify_position", 1, 1)]


def test_slots_count_rows_ranks_and_first_line() -> None:
    frame = _frame([(Row(slot=9), prefix("TP0"), 5), (Row(slot=4), prefix("TP0"), 5), (Row(slot=9), prefix("TP1"), 5)])
    table = violations.slot_counts(frame)
    assert table[["slot", "rows", "ranks", "line"]].to_numpy().tolist() == [[4, 1, 1, 8], [9, 2, 2, 1]]


def test_the_map_holds_reported_slots_and_leaves_out_those_beyond_it() -> None:
    table = pd.DataFrame({"slot": [0, 3, 10, 2**40, -1]})
    status = violations.pool_status(table["slot"].to_numpy(), 10)
    assert status.tolist() == [SlotStatus.CORRUPTED, 0, 0, SlotStatus.CORRUPTED, 0, 0, 0, 0, 0, 0]
