"""Which limit holds an operation, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcanary.analysis.roofline import growth, held_by, knob, roofline_frame, roofline_variant, roofline_variants, sentence, table_rows
from kvcanary.charts.roofline import roofline
from kvcanary.lab.bounds import STAMP_BYTES, VERIFY_BYTES
from kvcanary.lab.records import Point, Timing

LIMITS = {"verify_launch_s": 1e-5, "stamp_launch_s": 2e-5, "chain_step_s": 1e-8, "hashes_per_s": 1e9}


def timing(items: int, seconds: float, bytes_per_item: int) -> Timing:
    return Timing(p20_s=seconds, p50_s=seconds, p80_s=seconds, repeats=3, items=items, bytes_moved=items * bytes_per_item)


def sweep(items: int, chains: int, stamp_s: float, verify_s: float, memory_s: float, hashed: int = 0) -> Point:
    return Point(
        workload="sweep", layout="contiguous", hash_mode="all" if hashed else "none", batch=chains, prefix=items // chains,
        stamp=timing(items, stamp_s, STAMP_BYTES + hashed), stamp_bound=timing(items, memory_s, STAMP_BYTES + hashed),
        verify=timing(items, verify_s, VERIFY_BYTES + hashed), verify_bound=timing(items, memory_s, VERIFY_BYTES + hashed),
    )  # fmt: skip


def test_one_long_chain_is_held_by_its_latency() -> None:
    held = held_by(sweep(100_000, 1, stamp_s=1.25e-3, verify_s=1e-3, memory_s=2e-4), "stamp", LIMITS)
    assert held is not None
    assert (held.limit, held.share) == ("chain latency", pytest.approx(0.8))
    # The same tokens in a hundred chains wait for each other a hundredth as long.
    many = held_by(sweep(100_000, 100, stamp_s=1.25e-3, verify_s=1e-3, memory_s=2e-4), "stamp", LIMITS)
    assert many is not None
    assert many.alone_s["chain latency"] == pytest.approx(1e-5)
    assert many.limit == "memory"


def test_words_of_real_kv_count_as_a_third_of_a_chain_hash() -> None:
    held = held_by(sweep(1000, 10, stamp_s=1.0, verify_s=1.0, memory_s=1e-9, hashed=240), "verify", LIMITS)
    assert held is not None
    assert held.alone_s["compute"] == pytest.approx(1000 * (1 + 30 / 3) / 1e9)
    assert "chain latency" not in held.alone_s


def test_a_tiny_launch_is_held_by_its_start() -> None:
    held = held_by(sweep(8, 8, stamp_s=2e-5, verify_s=2e-5, memory_s=1e-7), "verify", LIMITS)
    assert held is not None
    assert (held.limit, held.share) == ("launch", pytest.approx(0.5))


def test_nothing_is_said_of_what_was_not_measured() -> None:
    point = sweep(8, 8, stamp_s=2e-5, verify_s=2e-5, memory_s=1e-7)
    assert held_by(point, "verify", {}) is None
    assert held_by(point, "verify", {"launch_s": 1e-5, "chain_step_s": 1e-8}) is None, "limits of an earlier version"
    assert held_by(replace(point, verify=None), "verify", LIMITS) is None
    assert held_by(replace(point, stamp_bound=None), "stamp", LIMITS) is None
    empty = roofline_frame([replace(point, stamp=None, verify=None)], LIMITS)
    assert sentence(empty, LIMITS) == "What limits stamp and verify was not measured in this run."


def test_the_sentence_names_the_limit_of_the_largest_size_and_the_knob() -> None:
    points = [sweep(n, n // 512, stamp_s=n * 2e-8, verify_s=n * 1e-8, memory_s=n * 9.5e-9) for n in (4096, 65536)]
    frame = roofline_frame(points, LIMITS)
    assert roofline_variants(frame) == [("sweep", "none", "contiguous")]
    rows = roofline_variant(frame, "sweep", "none", "contiguous")
    text = sentence(rows, LIMITS).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "Stamp of 65 536 tokens takes 1.31 ms, and no single limit explains it; memory alone would take 48 % of the time" in text
    assert "Verify of 65 536 slots takes 655 µs, which is the limit that memory sets" in text
    assert "One chain alone stamps at most 100 M tokens/s" in text
    assert [row[0] for row in table_rows(rows)] == ["stamp", "stamp", "verify", "verify"]
    assert table_rows(rows)[2][-2] == "does not apply"
    assert table_rows(rows)[2][5] == "not measured"


def test_a_limit_that_was_beaten_limits_nothing() -> None:
    rows = roofline_frame([sweep(n, n // 512, stamp_s=n * 2e-8, verify_s=n * 1e-8, memory_s=n * 1.3e-8) for n in (4096, 65536)], LIMITS)
    text = sentence(rows, LIMITS).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "Stamp of 65 536 tokens takes 1.31 ms, 65 % of it memory. What would help" in text
    assert "Verify of 65 536 slots takes 655 µs, less than memory alone was measured to take, so what limits it is not known." in text
    assert text.count("What would help") == 1
    assert [row[4] for row in table_rows(rows)][1] == "above it, so no limit"
    assert "above it, so no limit" in roofline(rows, LIMITS, "verify", "light").data[-1].customdata[0]


def test_bytes_are_told_as_a_share_of_a_plain_copy() -> None:
    frame = roofline_frame([sweep(1000, 10, stamp_s=1e-3, verify_s=1e-3, memory_s=1e-4)], LIMITS | {"copy_bytes_per_s": 1e8})
    assert frame["copy_share"].tolist() == pytest.approx([STAMP_BYTES * 1e6 / 1e8, VERIFY_BYTES * 1e6 / 1e8])


def test_growth_is_the_worst_size_over_the_best() -> None:
    points = [sweep(n, 8, stamp_s=n * per_item, verify_s=1e-3, memory_s=1e-9) for n, per_item in ((4096, 2e-8), (65536, 3e-8))]
    rows = roofline_frame(points, LIMITS)
    assert growth(rows, "stamp") == pytest.approx(1.5)
    assert growth(rows[rows["items"] == 4096], "stamp") is None


def test_a_knob_is_one_that_is_left_to_turn() -> None:
    assert "partial rows instead of all" in knob("memory", "all", "contiguous")
    assert "partial" not in knob("compute", "none", "contiguous")
    assert "larger pages" in knob("memory", "none", "shuffled")
    assert "sweep interval" in knob("memory", "none", "contiguous")


def test_the_chart_has_a_line_per_limit_and_the_roof_of_one_chain() -> None:
    rows = roofline_frame([sweep(n, 8, n * 2e-8, n * 1e-8, n * 9e-9) for n in (4096, 65536)], LIMITS)
    stamp = {trace.name: trace for trace in roofline(rows, LIMITS, "stamp", "light").data}
    alone = {"memory alone", "compute alone", "chain latency alone", "launch alone"}
    assert set(stamp) == {*alone, "one chain: 100 M tokens/s", "stamp, measured"}
    assert list(stamp["one chain: 100 M tokens/s"].y) == pytest.approx([1e8, 1e8])
    verify = roofline(rows, LIMITS, "verify", "dark")
    assert {trace.name for trace in verify.data} == {*alone, "verify, measured"} - {"chain latency alone"}
    assert list(verify.data[-1].y) == pytest.approx([1e8, 1e8])
