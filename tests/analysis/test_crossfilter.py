"""Breakdowns that filter each other: each is counted under the choices in all others, and no row is lost."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.analysis.crossfilter import FACETS, OTHER, TIME_BINS, Crossfilter, label_words
from kvcanary.analysis.incidents import MAX_ROWS, find_incidents
from kvcanary.analysis.log_stream import read_text
from tests.analysis.rendering import Row, prefix


def crossed(rows: list[tuple[Row, str, int]], *, page_size: int | None = None) -> Crossfilter:
    table = read_text("".join(f"{before}{row.message(step=step)}\n" for row, before, step in rows)).violations
    return Crossfilter(table.frame(), find_incidents(table.first(MAX_ROWS)), page_size=page_size)


MIXED = [
    (Row(slot=64, tag="HEAD_K_FULL", reasons=("verify_position",), position=0), prefix("TP0"), 5),
    (Row(slot=128, tag="TAIL_K_FULL", position=3), prefix("TP0"), 5),
    (Row(slot=192, tag="TAIL_K_FULL", position=9), prefix("TP1", "2027-02-03 04:06:06"), 80),
    (Row(slot=192, tag="TAIL_K_SWA", position=9), prefix("TP1", "2027-02-03 04:06:06"), 81),
]


def by_label(cross: Crossfilter, name: str, filters: dict[str, tuple[str, ...]]) -> dict[str, int]:
    counts = cross.counts(name, filters).tolist()
    return {label: count for label, count in zip(cross.facets[name].labels, counts, strict=True) if count}


def test_every_facet_counts_every_row_that_has_it() -> None:
    cross = crossed(MIXED)
    assert set(cross.facets) == set(FACETS)
    for name in FACETS:
        if name != "stride":
            assert int(cross.counts(name, {}).sum()) == 4, name


def test_a_facet_is_counted_under_all_filters_but_its_own() -> None:
    cross = crossed(MIXED)
    chosen = {"rank": ("TP0",)}
    assert by_label(cross, "tag", chosen) == {"HEAD_K_FULL": 1, "TAIL_K_FULL": 1}
    assert by_label(cross, "rank", chosen) == {"TP0": 2, "TP1": 2}
    both = {"rank": ("TP0",), "tag": ("TAIL_K_FULL",)}
    assert by_label(cross, "rank", both) == {"TP0": 1, "TP1": 1}
    assert cross.mask(both).tolist() == [False, True, False, False]


def test_labels_of_positions_pages_and_strides() -> None:
    cross = crossed(MIXED, page_size=64)
    assert by_label(cross, "position", {}) == {"0": 1, "2-3": 1, "8-15": 2}
    assert by_label(cross, "page", {"pool": ("FULL",)}) == {"64-127": 1, "128-191": 1, "192-255": 1}
    # Slots of the two pools are numbered apart, so a stride never leads from one to the other.
    assert by_label(cross, "stride", {}) == {"64": 3}
    assert label_words("stride", "64") == "64 = 2^6"
    assert label_words("page", "65536-65599") == "65\u202f536–65\u202f599"
    assert label_words("rank", "TP0-1") == "TP0-1"


def test_a_range_of_time_keeps_both_ends_and_an_unknown_label_keeps_nothing() -> None:
    cross = crossed(MIXED)
    labels = cross.facets["time"].labels
    assert cross.mask({"time": (f"{labels[0]}..{labels[-1]}",)}).all()
    assert cross.mask({"time": (labels[0],)}).tolist() == [True, True, False, False]
    assert not cross.mask({"rank": ("TP9",)}).any()
    assert cross.facets["rank"].unknown(("TP9", "TP0")) == ["TP9"]


@pytest.mark.parametrize(("step", "axis"), [(7, "step"), (None, "order in the log")])
def test_without_times_the_step_and_then_the_order_are_the_axis(step: int | None, axis: str) -> None:
    text = "".join((Row(slot=slot).message(step=step + slot) if step else Row(slot=slot).line()) + "\n" for slot in (3, 4))
    cross = Crossfilter(read_text(text).violations.frame())
    assert cross.time_axis == axis
    assert cross.facets["time"].labels == (("10", "11") if step else ("0", "1"))


def test_many_values_keep_the_frequent_ones_and_lose_no_row() -> None:
    rows = [(Row(slot=slot * 7, token=slot % 40), prefix(time=f"2027-02-{1 + slot // 30:02d} 04:05:06"), slot) for slot in range(600)]
    cross = crossed(rows)
    for name in ("token", "page"):
        assert cross.facets[name].labels[-1] == OTHER
        assert int(cross.counts(name, {}).sum()) == 600
    assert len(cross.facets["time"].labels) <= TIME_BINS
    assert cross.timeline({}).sum() == 600


def test_slots_and_their_rows() -> None:
    cross = crossed(MIXED)
    slots, counts = cross.slot_rows(cross.mask({"rank": ("TP1",)}))
    assert (slots.tolist(), counts.tolist()) == ([192], [2])
    far = crossed([*MIXED, (Row(slot=1 << 60), prefix("TP1"), 9)])
    slots, counts = far.slot_rows(far.mask({"rank": ("TP1",)}))
    assert (slots.tolist(), counts.tolist()) == ([192, 1 << 60], [2, 1])


def test_ranks_of_several_logs_are_told_apart() -> None:
    lines = [f'{{"log": "{prefix("TP0")}{Row(slot=slot).line()}\\n", "pod": "pod-{slot}"}}\n' for slot in (1, 2)]
    cross = Crossfilter(read_text("".join(lines)).violations.frame())
    assert sorted(cross.facets["rank"].labels) == ["pod-1 TP0", "pod-2 TP0"]


def test_ranks_stand_as_people_count() -> None:
    cross = crossed([(Row(slot=slot), prefix(f"TP{slot}"), 5) for slot in (10, 2, 2, 0)])
    assert cross.facets["rank"].labels == ("TP0", "TP2", "TP10")


def test_cut_records_and_an_empty_log() -> None:
    line = Row(slot=8).line()
    cut = Crossfilter(read_text(prefix() + line[: line.index("slot_idx=")]).violations.frame())
    assert cut.count == 1
    assert cut.slots.tolist() == [-1]
    empty = Crossfilter(read_text("nothing\n").violations.frame())
    assert empty.count == 0
    assert empty.counts("rank", {"tag": ("x",)}).tolist() == []
    assert empty.timeline({}).shape == (0, 0)
    assert np.asarray(empty.mask({})).shape == (0,)
