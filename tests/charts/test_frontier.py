"""Latency curves and the frontier: shares in order, names beside their marks, and sentences that agree with the numbers."""

from __future__ import annotations

from kvcanary.charts.frontier import frontier, frontier_summary, latency, latency_summary
from kvcanary.lab.frontier import ConfigCost, LatencyCurve


def cost(config: str, rate: float, canary_s: float, *, on_frontier: bool = True) -> ConfigCost:
    return ConfigCost(
        config=config, injected=100, detected=round(rate * 100), verified_per_step=canary_s * 1e6, canary_s_per_step=canary_s,
        latency_p90=0.0, on_frontier=on_frontier,
    )  # fmt: skip


COSTS = [
    cost("chain only", 0.4, 1e-3),
    cost("partial", 0.7, 1.05e-3),
    cost("worse", 0.6, 1.4e-3, on_frontier=False),
    cost("all", 0.9, 2e-3),
]


def test_only_what_nothing_beats_is_on_the_line_and_filled() -> None:
    figure = frontier(COSTS, "light")
    assert list(figure.data[0].y) == [0.4, 0.7, 0.9]
    symbols = {trace.text[0]: trace.marker.symbol for trace in figure.data[1:]}
    assert [name for name, symbol in symbols.items() if symbol.endswith("-open")] == ["worse"]


def test_the_price_is_seconds_or_entries() -> None:
    seconds, entries = (frontier(COSTS, "dark", by_entries=flag) for flag in (False, True))
    assert list(seconds.data[1].x) == [1e-3]
    assert list(entries.data[1].x) == [1000.0]
    assert entries.layout.xaxis.title.text == "entries checked per step"


def test_names_of_close_marks_go_to_different_sides() -> None:
    figure = frontier([cost("one name", 0.70, 1e-3), cost("other name", 0.72, 1.02e-3)], "light")
    first, second = (trace.textposition for trace in figure.data[1:])
    assert first != second


def test_what_was_not_injected_is_not_drawn() -> None:
    idle = ConfigCost(config="idle", injected=0, detected=0, verified_per_step=1, canary_s_per_step=1, latency_p90=None, on_frontier=True)
    assert [trace.text for trace in frontier([idle], "light").data[1:]] == []
    assert frontier_summary([idle]) == "Nothing was injected, so there is no frontier."


def test_the_sentences_say_what_is_drawn() -> None:
    curves = [LatencyCurve("partial", 4, (0, 1, 2), (0.5, 0.5, 0.75), 0.0, 2.0), LatencyCurve("idle", 0, (0, 1, 2), (0.0, 0.0, 0.0))]
    assert list(latency(curves, "light").data[0].y) == [0.5, 0.5, 0.75]
    assert latency_summary(curves) == "Reported in the step of the fault, and in the end (2 steps later): partial: 50\u202f%, 75\u202f%."
    assert frontier_summary(COSTS).startswith("Worth choosing from: chain only finds 40\u202f% for 1 ms a step; partial")
    assert "worse" not in frontier_summary(COSTS)


def test_latency_in_tokens_has_its_own_axis_words_and_marks() -> None:
    curve = LatencyCurve("partial", 4, (0, 40, 1500), (0.0, 0.5, 0.75), 40.0, 1240.5)
    idle = LatencyCurve("chain", 4, (0, 1500), (0.0, 0.0))
    line, marks, *rest = latency([curve, idle], "light", by_tokens=True).data
    assert (list(line.x), list(line.y), line.line.shape) == ([0, 40, 1500], [0.0, 0.5, 0.75], "hv")
    # A mark lies on its line: between two reports that is the height of the earlier one.
    assert (list(marks.x), list(marks.y)) == ([40.0, 1240.5], [0.5, 0.5])
    assert [symbol.endswith("-open") for symbol in marks.marker.symbol] == [True, False]
    assert list(rest[-1].x) == []
    assert latency([curve], "light", by_tokens=True).layout.xaxis.title.text == "tokens computed from the fault on"
    assert latency_summary([curve, idle], by_tokens=True) == (
        "Tokens computed from the fault to the report, for half and for nine in ten of what each reports: "
        "partial: 40, 1\u202f240; chain: none, none."
    )
