"""Columns of violations and the frame made from them."""

from __future__ import annotations

import pandas as pd
import pytest

from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.violations import ViolationTable, normal_reasons
from tests.analysis.rendering import Row, prefix


def frame_of(*lines: str) -> pd.DataFrame:
    return read_text("\n".join(lines) + "\n").violations.frame()


def test_frame_keeps_every_digit_and_leaves_unknowns_empty() -> None:
    big = Row(slot=2**53 + 1, position=-(2**63), stored_hash=2**64 - 1, aux=2**63 + 5)
    cut = (prefix("TP1") + Row(slot=3).line()).partition(" stored_token")[0] + " "
    frame = frame_of(prefix("TP0") + big.message(total=9, step=4), cut)
    first, second = frame.iloc[0], frame.iloc[1]
    assert (first["slot_idx"], first["position"], first["stored_chain_hash"], first["expected_aux"]) == (
        2**53 + 1,
        -(2**63),
        2**64 - 1,
        2**63 + 5,
    )
    assert (first["step"], first["total"], first["ring_overflow"]) == (4, 9, False)
    assert (second["slot_idx"], second["position"], second["truncated"], second["rank"]) == (3, 40, True, "TP1")
    for name in ("stored_token", "stored_chain_hash", "expected_aux", "step", "total", "ring_overflow"):
        assert second[name] is pd.NA


def test_frame_splits_the_tag_and_reads_write_positions() -> None:
    frame = frame_of(
        prefix() + Row(tag="SWEEP_V_SWA", reasons=("chain_hash", "verify_position")).line(),
        prefix() + Row(tag="HEAD_K_FULL", reasons=("write_position",), aux=-7).line(),
        prefix() + Row(tag="unknown(5)", reasons=()).line(),
    )
    assert frame["place"].tolist() == ["SWEEP", "HEAD", ""]
    assert frame["half"].tolist() == ["V", "K", ""]
    assert frame["group"].tolist() == ["SWA", "FULL", ""]
    assert frame["bits"].tolist() == [3, 16, 0]
    assert frame["reasons"].tolist() == ["verify_chain_hash+verify_position", "write_position", "none"]
    assert frame["expected_position"].tolist() == [pd.NA, -7, pd.NA]
    assert frame["line"].tolist() == [1, 2, 3]
    assert str(frame["time"].iloc[0]) == "2027-02-03 04:05:06"


def test_frame_of_nothing_has_the_same_columns() -> None:
    empty = ViolationTable().frame()
    full = frame_of(prefix() + Row().line())
    assert list(empty.columns) == list(full.columns)
    assert len(empty) == 0


def test_frame_rows_equal_the_records() -> None:
    rows = [Row(slot=slot, reasons=("verify_chain_hash",), aux=slot) for slot in range(1, 40)]
    table = read_text("".join(f"{prefix()}{row.message(total=3)}\n" for row in rows)).violations
    frame = table.frame()
    assert [violation.slot_idx for violation in table] == frame["slot_idx"].tolist()
    assert table[-1] == table[38]
    assert frame["line"].tolist() == list(range(1, 39 * 7, 7))
    with pytest.raises(IndexError):
        table[39]


@pytest.mark.parametrize(
    ("printed", "labels"),
    [
        ("none", ()),
        ("position+chain_hash", ("verify_chain_hash", "verify_position")),
        ("verify_token", ("verify_token",)),
        ("write_position+later_label", ("write_position", "later_label")),
    ],
)
def test_normal_reasons(printed: str, labels: tuple[str, ...]) -> None:
    assert normal_reasons(printed) == labels


def test_groups_count_rows_and_distinct_slots_and_join_old_labels() -> None:
    rows = [Row(slot=slot) for slot in (11, 11, 12)] + [Row(tag="HEAD_K_FULL", reasons=("chain_hash",), slot=5)]
    lines = [f"{prefix()}{row.line()}\n" for row in rows] + [f"{prefix()}{Row(tag='HEAD_K_FULL', reasons=('verify_chain_hash',)).line()}\n"]
    lines.append(f"{prefix('TP1')}{Row().line()[:60]}")
    groups = {
        (stream.rank, tag, reasons): (count, slots)
        for stream, tag, reasons, count, slots in read_text("".join(lines)).violations.group_counts()
    }
    assert groups[("TP0", "TAIL_K_FULL", "verify_real_kv_hash")] == (3, 2)
    assert groups[("TP0", "HEAD_K_FULL", "verify_chain_hash")] == (2, 2)
    assert read_text("nothing\n").violations.group_counts() == []


def test_groups_follow_a_table_that_grows() -> None:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    reader.feed(f"{prefix()}{Row(slot=3).line()}\n".encode())
    assert [group[3:] for group in builder.violations.group_counts()] == [(1, 1)]
    reader.feed(f"{prefix()}{Row(slot=4).line()}\n".encode())
    assert [group[3:] for group in builder.violations.group_counts()] == [(2, 2)]
