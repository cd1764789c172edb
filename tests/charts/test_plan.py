"""Charts of the plan: what is drawn is what the plan says."""

from __future__ import annotations

import pytest

from kvcanary.charts import plan as charts
from kvcanary.charts.theme import ThemeName
from kvcanary.config.memory import memory_plan
from kvcanary.config.overflow import PrefixGroup, forecast_overflow, most_requests
from kvcanary.config.solve import Frontier, frontier
from kvcanary.units import GIB, MIB, format_bytes
from tests.config.plans import server


def test_the_bar_holds_every_known_byte_once_and_what_is_left() -> None:
    plan = memory_plan(server(verify_token_assert=True))
    figure = charts.memory_bar(plan, "light")
    whole = sum(trace.x[0] for trace in figure.data if trace.y[0] == "whole rank")
    canary = sum(trace.x[0] for trace in figure.data if trace.y[0] == "canary only")
    assert plan.budget_bytes is not None
    assert whole == pytest.approx(plan.budget_bytes / GIB)
    assert canary == pytest.approx(plan.canary_bytes / MIB)
    marks = sorted(shape.x0 * GIB for shape in figure.layout.shapes)
    assert marks == pytest.approx([plan.static_limit_bytes, plan.budget_bytes])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_key_names_each_segment_with_its_colour(theme: ThemeName) -> None:
    plan = memory_plan(server())
    figure = charts.memory_bar(plan, theme)
    key = charts.memory_key(plan, theme)
    assert [(trace.name, trace.marker.color) for trace in figure.data] == [(name, color) for name, _, color in key]
    assert ("canary", format_bytes(plan.canary_bytes)) in [(name, size) for name, size, _ in key]


def test_without_a_canary_there_is_one_bar() -> None:
    figure = charts.memory_bar(memory_plan(server(mode="none")), "light")
    assert {trace.y[0] for trace in figure.data} == {"whole rank"}


def test_the_frontier_marks_the_settings_own_point() -> None:
    found = frontier(memory_plan(server(req_to_token_pool_size=300)))
    assert isinstance(found, Frontier)
    curve, own = charts.frontier_chart(found, "dark").data
    assert list(curve.x) == [point.concurrency for point in found.points if point.context]
    assert (own.x[0], own.y[0], own.marker.symbol) == (300, 20_000, "x")


@pytest.mark.parametrize(("requests", "symbol"), [(4, "circle"), (80, "x")])
def test_the_overflow_chart_keeps_the_crossing_in_sight(requests: int, symbol: str) -> None:
    group = PrefixGroup(requests=requests, shared_tokens=9000, own_tokens=100)
    forecast = forecast_overflow(50_000, [group])
    most = most_requests(50_000, group)
    rows, limit, own = charts.overflow_chart(forecast, group, 1, most, "light").data
    assert forecast.skip_from_requests == 17
    assert rows.x[1] == min(most, 2 * max(17, requests))
    assert rows.y[1] == rows.x[1] * 9100 > forecast.capacity == limit.y[0]
    assert (own.x[0], own.y[0], own.marker.symbol) == (requests, requests * 9100, symbol)
