"""The detection matrix: outcome in words, hatching and colour per cell."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.charts.detection import matrix, matrix_summary
from kvcanary.lab.campaign import CellSummary

SEEN = CellSummary(
    kind="payload_bytes", variant="bit_flip", config="partial", visible=True, certain=True, reason="", injected=4, detected=3, rate=0.75,
    rate_low=0.3, rate_high=0.95, latency_p50=0.0, latency_p90=1.0, corrupt_tokens_p50=2.0, reports={}, false_reports=0, unexpected=0,
)  # fmt: skip
MISSED = replace(SEEN, variant="nan", detected=0, rate=0.0)
BLIND = replace(MISSED, variant="v_row", visible=False, reason="V is not hashed")
IDLE = replace(SEEN, variant="zeroed", injected=0, detected=0, rate=None)


def test_missed_and_out_of_reach_look_different() -> None:
    bars = matrix([SEEN, MISSED, BLIND, IDLE], "light").data[0]
    assert list(bars.text) == ["75 %", "missed", "out of reach", "no victim"]
    assert list(bars.marker.pattern.shape) == ["", "", "/", ""]
    assert len(set(bars.marker.color)) == 4


def test_a_report_of_a_cell_out_of_reach_is_shown_and_not_hatched() -> None:
    bars = matrix([replace(BLIND, detected=1, rate=0.25, unexpected=1)], "dark").data[0]
    assert (bars.text[0], bars.marker.pattern.shape[0]) == ("25 %", "")


def test_the_summary_counts_every_cell_once() -> None:
    assert matrix_summary([SEEN, MISSED, BLIND, IDLE]) == (
        "4 cells: 1 detected at least once, 1 missed, 1 out of reach, 1 without a victim."
    )
