"""Causes and echoes, what belongs together, and the shapes of slot sets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.analysis.incidents import MAX_ROWS, find_incidents, pattern_of, replica_of
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.violations import Stream
from tests.analysis.pools import Pool
from tests.analysis.rendering import Row, prefix


def incidents(*reports: tuple[int, list[Row]], ranks: tuple[str, ...] = ("TP0",), time: str = "2027-02-03 04:05:06"):
    text = "".join(f"{prefix(rank, time)}{row.message(total=99, step=step)}\n" for rank in ranks for step, rows in reports for row in rows)
    return find_incidents(read_text(text).violations.first(MAX_ROWS))


def replaced_cell() -> list[Row]:
    pool = Pool()
    pool.stamp([11, 12, 13, 14], [501, 502, 503, 504])
    pool.stamp([31, 32, 33], [701, 702, 703])
    return pool.verify([11, 33, 13, 14])


def test_successor_of_a_foreign_record_is_an_echo() -> None:
    [incident] = incidents((40, replaced_cell()))
    assert [finding.slot for finding in incident.causes] == [33]
    assert [(finding.slot, finding.echo_of) for finding in incident.echoes] == [(13, 33)]
    assert incident.causes[0].places == {"HEAD", "TAIL"}
    assert (incident.first_step, incident.rows) == (40, 4)


def test_chain_mismatch_that_no_reported_record_explains_is_a_cause() -> None:
    rows = [row for row in replaced_cell() if row.slot == 13]
    [incident] = incidents((40, rows))
    assert [finding.slot for finding in incident.causes] == [13]


def test_same_slot_again_is_the_same_incident() -> None:
    row = Row(tag="SWEEP_K_FULL", slot=9)
    [incident] = incidents((10, [row]), (900, [row]))
    assert (incident.first_step, incident.last_step, incident.rows) == (10, 900, 2)


def test_steps_far_apart_are_two_incidents() -> None:
    assert len(incidents((10, [Row(slot=1)]), (12, [Row(slot=2)]), (700, [Row(slot=3)]))) == 2


def test_ranks_of_one_replica_share_slots_and_those_of_another_do_not() -> None:
    [incident] = incidents((5, [Row(slot=8)]), ranks=("TP0", "TP1"))
    assert incident.ranks == ("TP0", "TP1")
    assert len(incidents((5, [Row(slot=8)]), ranks=("DP0 TP0", "DP1 TP1"))) == 2


def test_write_position_after_a_wrong_seed_is_an_echo() -> None:
    first = Row(tag="HEAD_K_FULL", reasons=("verify_position",), slot=3, position=1)
    follower = Row(tag="HEAD_K_FULL", reasons=("write_position",), slot=4, position=1, token=5, expected_token=5, aux=2)
    [incident] = incidents((5, [first, follower]))
    assert [(finding.slot, finding.echo_of) for finding in incident.echoes] == [(4, 3)]


def test_groups_of_a_pool_number_their_slots_apart() -> None:
    pool = Pool()
    pool.stamp([1, 2, 3], [5, 6, 7])
    pool.stamp([9], [8])
    full = pool.verify([1, 9, 3], places=("TAIL",))
    window = [replace(row, tag="TAIL_K_SWA") for row in full]
    found = incidents((5, full), (5, window))
    assert sorted((finding.group, finding.slot) for incident in found for finding in incident.causes) == [("FULL", 9), ("SWA", 9)]


@pytest.mark.parametrize(
    ("slots", "run", "stride"),
    [([5], (5, 5), None), ([8, 9, 10, 30], (8, 10), None), ([0, 64, 128], (0, 0), 64), ([3, 4, 5], (3, 5), 1), ([2, 9], (2, 2), None)],
)
def test_pattern(slots: list[int], run: tuple[int, int], stride: int | None) -> None:
    pattern = pattern_of(slots)
    assert (pattern.longest_run, pattern.stride) == (run, stride)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_longest_run_is_a_run_and_none_is_longer(slots: set[int]) -> None:
    pattern = pattern_of(slots)
    start, end = pattern.longest_run
    assert set(range(start, end + 1)) <= slots
    assert all(not set(range(first, first + pattern.run_length + 1)) <= slots for first in slots)


def test_replica_is_server_source_and_dp_rank() -> None:
    assert replica_of(Stream("a/b.log", "pod/x", "PP0 DP2 TP5")) == ("a/b.log", "pod/x", "DP2")
    assert replica_of(Stream("s", "", "TP5")).dp == ""
