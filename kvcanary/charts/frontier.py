"""How soon each configuration finds what it finds, and what finding more costs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvcanary.charts.theme import CONFIGS, Pair, ThemeName, faint, ink, pick, style
from kvcanary.escape import chart_text
from kvcanary.lab.frontier import ConfigCost, LatencyCurve
from kvcanary.units import format_count, format_fraction, format_seconds

# Colour and dash together, so that the lines tell apart without colour.
_SHAPES = (
    ("dot", "circle"),
    ("solid", "square"),
    ("dash", "diamond"),
    ("dashdot", "triangle-up"),
    ("longdash", "pentagon"),
    ("solid", "star"),
)


def _look(index: int) -> tuple[Pair, str, str]:
    return CONFIGS[index % len(CONFIGS)], *_SHAPES[index % len(_SHAPES)]


def latency(curves: Sequence[LatencyCurve], theme: ThemeName, *, by_tokens: bool = False) -> go.Figure:
    """Share of injected faults that were reported within so many steps, or tokens; one line per configuration.

    An open mark stands where half of what a configuration reports was reported, a filled one where nine in ten were.
    """
    figure = go.Figure()
    unit = "tokens" if by_tokens else "steps"
    for index, curve in enumerate(curves):
        pair, dash, symbol = _look(index)
        color = pick(pair, theme)
        figure.add_trace(
            go.Scatter(
                x=list(curve.within), y=list(curve.shares), name=chart_text(curve.config), mode="lines",
                line={"color": color, "width": 2.5, "dash": dash, "shape": "hv"}, legendgroup=curve.config,
                customdata=[[format_fraction(share)] for share in curve.shares],
                hovertemplate=f"{chart_text(curve.config)}<br>within %{{x}} {unit}: %{{customdata[0]}}<extra></extra>",
            )
        )  # fmt: skip
        marks = [
            (value, name, look)
            for value, name, look in ((curve.p50, "p50", f"{symbol}-open"), (curve.p90, "p90", symbol))
            if value is not None
        ]
        figure.add_trace(
            go.Scatter(
                x=[value for value, _, _ in marks], y=[curve.share_at(value) for value, _, _ in marks], mode="markers", showlegend=False,
                legendgroup=curve.config, cliponaxis=False,
                marker={"symbol": [look for _, _, look in marks], "size": 10, "color": color, "line": {"width": 2, "color": color}},
                customdata=[[name] for _, name, _ in marks],
                hovertemplate=f"{chart_text(curve.config)}<br>%{{customdata[0]}} of what it reports: %{{x:.4~g}} {unit}<extra></extra>",
            )
        )  # fmt: skip
    last = max((curve.within[-1] for curve in curves), default=1)
    title = "tokens computed from the fault on" if by_tokens else "steps after the fault"
    return style(
        figure, theme, height=330, legend={"y": 1.0, "font": {"size": 11}}, margin={"t": 66},
        xaxis={"title": title, "range": [0, max(1, last)], "dtick": 2 if last <= 24 and not by_tokens else None},
        yaxis={"title": "reported", "range": [0, 1.02], "tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1]},
    )  # fmt: skip


def latency_summary(curves: Sequence[LatencyCurve], *, by_tokens: bool = False) -> str:
    """The chart in words: what is found in the step of the fault and in the end; by_tokens: how many tokens half and nine in ten took."""
    tried = [curve for curve in curves if curve.injected]
    if not tried:
        return "Nothing was injected, so there is no latency."
    if by_tokens:
        named = [f"{curve.config}: {_tokens(curve.p50)}, {_tokens(curve.p90)}" for curve in tried]
        return f"Tokens computed from the fault to the report, for half and for nine in ten of what each reports: {'; '.join(named)}."
    # A colon, because the name of a configuration may end in a number: 'all, sweep 10'.
    parts = [f"{curve.config}: {format_fraction(curve.shares[0])}, {format_fraction(curve.shares[-1])}" for curve in tried]
    return f"Reported in the step of the fault, and in the end ({tried[0].within[-1]} steps later): {'; '.join(parts)}."


def _tokens(count: float | None) -> str:
    return "none" if count is None else format_count(round(count))


def frontier(costs: Sequence[ConfigCost], theme: ThemeName, *, by_entries: bool = False) -> go.Figure:
    """Cost against detection; the line joins the configurations that nothing beats. by_entries: entries instead of seconds per step."""
    figure = go.Figure()
    tried = [cost for cost in costs if cost.injected]
    best = sorted((cost for cost in tried if cost.on_frontier), key=lambda cost: _price(cost, by_entries))
    figure.add_trace(
        go.Scatter(
            x=[_price(cost, by_entries) for cost in best], y=[cost.rate for cost in best], mode="lines",
            line={"color": faint(theme), "width": 3, "shape": "hv"}, hoverinfo="skip", showlegend=False,
        )
    )  # fmt: skip
    positions = _label_positions(tried, by_entries)
    for index, cost in enumerate(costs):
        if cost.injected:
            pair, _, symbol = _look(index)
            color = pick(pair, theme)
            figure.add_trace(
                go.Scatter(
                    x=[_price(cost, by_entries)], y=[cost.rate], mode="markers+text", text=[chart_text(cost.config)], showlegend=False,
                    textposition=positions[cost.config], cliponaxis=False,
                    textfont={"size": 12, "color": ink(theme)},
                    marker={"symbol": symbol if cost.on_frontier else f"{symbol}-open", "size": 13, "color": color, "line": {"width": 2}},
                    customdata=[[format_fraction(cost.rate), cost.injected, format_seconds(cost.canary_s_per_step),
                                 format_count(round(cost.verified_per_step)), "yes" if cost.on_frontier else "no"]],
                    hovertemplate=f"<b>{chart_text(cost.config)}</b><br>finds %{{customdata[0]}} of %{{customdata[1]}}"
                    "<br>%{customdata[2]} of canary per step<br>%{customdata[3]} entries per step<br>on the frontier: %{customdata[4]}"
                    "<extra></extra>",
                )
            )  # fmt: skip
    prices = [_price(cost, by_entries) for cost in tried] or [1.0]
    room = 0.12 * max(prices)
    cheapest = 0 if min(prices) < 0.5 * max(prices) else min(prices) - 2 * room
    return style(
        figure, theme, height=330, margin={"t": 18},
        xaxis={
            "title": "entries checked per step" if by_entries else "canary per step", "range": [cheapest, max(prices) + 2 * room],
            "tickformat": "~s", "ticksuffix": "" if by_entries else "s",
        },
        yaxis={"title": "found", "range": [0, 1.12], "tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1]},
    )  # fmt: skip


def _price(cost: ConfigCost, by_entries: bool) -> float:
    return cost.verified_per_step if by_entries else cost.canary_s_per_step


# Label anchors with the place of the label's middle beside its mark: shares of the plot's width, times the label's own, and of its height.
_ANCHORS = (("top center", 0.0, 0.065), ("bottom center", 0.0, -0.065), ("middle right", 0.5, 0.0), ("middle left", -0.5, 0.0))
_CHARACTER, _LINE, _MARK = 0.0165, 0.055, 0.03


def _label_positions(tried: Sequence[ConfigCost], by_entries: bool) -> dict[str, str]:
    """Where each name goes so that it covers no other name and no mark: the first anchor that is free, else the one that covers least."""
    widest = max((_price(cost, by_entries) for cost in tried), default=1.0) or 1.0
    marks = {cost.config: (_price(cost, by_entries) / widest, cost.rate) for cost in tried}
    taken: list[tuple[float, float, float]] = [(x, y, _MARK) for x, y in marks.values()]
    found = {}
    for name, (x, y) in marks.items():
        width = _CHARACTER * len(name)
        places = [(anchor, x + side * (width + 2 * _MARK), y + up) for anchor, side, up in _ANCHORS]
        anchor, at_x, at_y = min(places, key=lambda at: sum(_overlap(at[1], at[2], width, *other) for other in taken))
        taken.append((at_x, at_y, width))
        found[name] = anchor
    return found


def _overlap(x: float, y: float, width: float, other_x: float, other_y: float, other_width: float) -> float:
    """How much two lines of text cover each other, 0 to 1."""
    beside = abs(x - other_x) >= (width + other_width) / 2
    return 0.0 if beside else max(0.0, 1 - abs(y - other_y) / _LINE)


def frontier_summary(costs: Sequence[ConfigCost]) -> str:
    """The chart in words: the configurations worth choosing from, cheapest first."""
    best = sorted((cost for cost in costs if cost.injected and cost.on_frontier), key=lambda cost: cost.canary_s_per_step)
    if not best:
        return "Nothing was injected, so there is no frontier."
    named = "; ".join(
        f"{cost.config} finds {format_fraction(cost.rate)} for {format_seconds(cost.canary_s_per_step)} a step" for cost in best
    )
    return f"Worth choosing from: {named}. Nothing else finds as many for less."
