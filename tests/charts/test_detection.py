"""The detection matrix: outcome in words, hatching and colour per cell, groups and order."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.charts.detection import matrix, matrix_rows, matrix_summary
from kvcanary.faults.targets import Target
from kvcanary.lab.campaign import ALL_FAULTS, CellSummary
from kvcanary.lab.frontier import ConfigCost

SEEN = CellSummary(
    kind="payload_bytes", variant="bit_flip", config="partial", visible=True, certain=True, reason="", injected=4, detected=3, rate=0.75,
    rate_low=0.3, rate_high=0.95, latency_p50=0.0, latency_p90=1.0, corrupt_tokens_p50=2.0, reports={}, false_reports=0, unexpected=0,
)  # fmt: skip
MISSED = replace(SEEN, variant="nan", detected=0, rate=0.0)
BLIND = replace(MISSED, variant="v_row", visible=False, reason="V is not hashed")
IDLE = replace(SEEN, variant="zeroed", injected=0, detected=0, rate=None, runs=4)
WAITING = replace(IDLE, variant="stuck", runs=0)
COST = ConfigCost(
    config="partial", injected=12, detected=3, verified_per_step=200.0, canary_s_per_step=2e-4, latency_p90=1.0, on_frontier=True
)


def test_missed_and_out_of_reach_look_different() -> None:
    bars = matrix([SEEN, MISSED, BLIND, IDLE, WAITING], [COST], "light").data[0]
    assert list(bars.text) == ["75 %", "missed", "out of reach", "no victim", "not run"]
    assert list(bars.marker.pattern.shape) == ["", "", "/", "", ""]
    assert [data[4] for data in bars.customdata[2:]] == ["V is not hashed", "no run found a victim for it", "no run of it has ended yet"]
    assert len(set(bars.marker.color)) == 4


def test_a_report_of_a_cell_out_of_reach_is_shown_and_not_hatched() -> None:
    bars = matrix([replace(BLIND, detected=1, rate=0.25, unexpected=1)], [COST], "dark").data[0]
    assert (bars.text[0], bars.marker.pattern.shape[0]) == ("25 %", "")


def test_columns_come_in_the_order_of_costs_and_show_their_price() -> None:
    dear = replace(COST, config="all", canary_s_per_step=4e-3)
    figure = matrix([replace(SEEN, config="all"), SEEN], [COST, dear], "light")
    assert [figure.data[0].customdata[0][2], figure.data[1].customdata[0][2]] == ["partial", "all"]
    assert figure.data[0].base < figure.data[1].base
    heads = figure.layout.xaxis.ticktext
    assert ("partial" in heads[0], "200 µs a step" in heads[0], "4 ms a step" in heads[1]) == (True, True, True)


def test_rows_are_grouped_by_what_is_hit_and_none_is_lost() -> None:
    rows = matrix_rows(ALL_FAULTS)
    assert {fault for fault, _ in rows.faults} == set(ALL_FAULTS)
    places = [place for _, place in rows.faults]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    assert [heading for heading, _ in rows.headings] == [str(group) for group in Target]
    assert max(places) < rows.height


def test_only_looks_that_occur_are_explained() -> None:
    names = {trace.name for trace in matrix([SEEN, BLIND], [COST], "light").data if trace.showlegend is not False}
    assert names == {"found mostly", "out of reach: no check here can see it"}


def test_the_summary_counts_every_cell_once() -> None:
    assert matrix_summary([SEEN, MISSED, BLIND, IDLE, WAITING]) == (
        "5 cells: 1 detected at least once, 1 missed, 1 out of reach, 2 not injected."
    )
