"""Runs beside each other: ratios with their intervals, and throughput laid over one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from kvcanary.analysis.compare import Row
from kvcanary.analysis.compare_campaigns import CostRow, RateRow
from kvcanary.charts.theme import BAD, GOOD, RUNS, SERIES, ThemeName, ink, pick, style
from kvcanary.escape import chart_text
from kvcanary.units import format_points, format_seconds

ROW_LIMIT = 60
_OUTCOMES = {
    "faster": (GOOD, "triangle-right"),
    "slower": (BAD, "triangle-left"),
    "finds more": (GOOD, "triangle-right"),
    "finds less": (BAD, "triangle-left"),
    "no difference shown": (SERIES["bound"], "circle"),
    "too few repeats": (SERIES["bound"], "circle-open"),
    "no repeats stored": (SERIES["bound"], "x-thin-open"),
}
# Told apart by dash and mark as well, so that greyscale works.
_LINES = (("solid", "circle"), ("dash", "square"), ("dot", "diamond"), ("dashdot", "triangle-up"), ("longdash", "cross"))
RUN_LIMIT = len(_LINES)


def row_name(row: Row) -> str:
    """'prefill 1 after 2048 · head stamp · partial, contiguous': one operation in an axis label or a table."""
    after = f" after {row.prefix}" if row.workload == "prefill" and row.prefix else ""
    return f"{row.workload} {row.batch}{after} · {row.op.replace('_', ' ')} · {row.hash_mode}, {row.layout}"


def most_telling_rates(rows: Sequence[RateRow]) -> list[RateRow]:
    """At most ROW_LIMIT rows with something injected: the largest differences either way, in the order they were given."""
    tried = [row for row in rows if row.outcome != "nothing injected"]
    ranked = sorted(tried, key=lambda row: (row.outcome == "no difference shown", -abs(row.difference)))
    kept = {id(row) for row in ranked[:ROW_LIMIT]}
    return [row for row in tried if id(row) in kept]


def most_telling(rows: Sequence[Row]) -> list[Row]:
    """At most ROW_LIMIT rows: shown differences first, then the largest ratios either way; in the order they were given."""
    ranked = sorted(rows, key=lambda row: (row.outcome not in ("slower", "faster"), -max(row.ratio, 1 / row.ratio)))
    kept = {id(row) for row in ranked[:ROW_LIMIT]}
    return [row for row in rows if id(row) in kept]


def ratios(rows: Sequence[Row], theme: ThemeName, limit: float | None = None) -> go.Figure:
    """One line per operation: ratio of the rates with its interval, a line at 1, and one at the limit of a check."""
    spans = [_Span(row_name(row), row.ratio, *_ends(row), row.outcome, f"{row.ratio:.3f} of the rate", _seconds(row)) for row in rows]
    return _intervals(spans, theme, "ratio of rates<br>(1 = the same)", 1.0, limit)


def cost_ratios(rows: Sequence[CostRow], theme: ThemeName, limit: float | None = None) -> go.Figure:
    """One line per configuration of two campaigns: ratio of the canary's speeds with its interval, drawn as `ratios`."""
    spans = [
        _Span(row.config, row.ratio, row.interval.low, row.interval.high, row.outcome, f"{row.ratio:.3f} of the speed", _seconds(row))
        for row in rows
    ]
    return _intervals(spans, theme, "ratio of speeds<br>(1 = the same)", 1.0, limit)


def rate_differences(rows: Sequence[RateRow], theme: ThemeName) -> go.Figure:
    """One line per kind of fault and configuration: how much larger the second detection rate is, with its interval, and a line at 0."""
    spans = [
        _Span(
            row.name, row.difference, row.low, row.high, row.outcome, format_points(row.difference), f"{row.before} to {row.after}",
        )
        for row in rows
    ]  # fmt: skip
    figure = _intervals(spans, theme, "detection rate,<br>after - before", 0.0, None)
    return figure.update_xaxes(tickformat="+.0%", range=[-1.05, 1.05])


@dataclass(frozen=True, slots=True)
class _Span:
    """A figure with its interval, its outcome, and what the pointer shows of it."""

    name: str
    value: float
    low: float
    high: float
    outcome: str
    said: str
    detail: str


def _ends(row: Row) -> tuple[float, float]:
    return (row.interval.low, row.interval.high) if row.interval else (row.ratio, row.ratio)


def _seconds(row: Row | CostRow) -> str:
    return f"{format_seconds(row.before_s)} to {format_seconds(row.after_s)}"


def _intervals(spans: Sequence[_Span], theme: ThemeName, title: str, same: float, limit: float | None) -> go.Figure:
    figure = go.Figure()
    for outcome, (colors, symbol) in _OUTCOMES.items():
        shown = [span for span in spans if span.outcome == outcome]
        if not shown:
            continue
        figure.add_trace(
            go.Scatter(
                x=[span.value for span in shown], y=[chart_text(span.name) for span in shown], mode="markers", name=outcome,
                marker={"symbol": symbol, "size": 10, "color": pick(colors, theme), "line": {"width": 2, "color": pick(colors, theme)}},
                error_x={
                    "type": "data", "symmetric": False, "thickness": 2, "color": pick(colors, theme),
                    "array": [max(0.0, span.high - span.value) for span in shown],
                    "arrayminus": [max(0.0, span.value - span.low) for span in shown],
                },
                customdata=[[span.said, span.detail] for span in shown],
                hovertemplate="%{y}<br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            )
        )  # fmt: skip
    figure.add_vline(same, line={"color": ink(theme), "width": 1})
    if limit is not None:
        figure.add_vline(limit, line={"color": pick(_OUTCOMES["slower"][0], theme), "width": 1, "dash": "dash"})
    # A lone outcome has its legend too: colour and mark alone say nothing. Two short lines of title fit below the plot of a phone.
    return style(
        figure, theme, height=126 + 22 * len(spans), showlegend=True, xaxis={"title": title},
        yaxis={"categoryorder": "array", "categoryarray": [chart_text(span.name) for span in spans][::-1]},
    )  # fmt: skip


def overlay(frames: Sequence[tuple[str, pd.DataFrame]], op: str, what: str, theme: ThemeName) -> go.Figure:
    """Items per second by batch of one operation, a line per run, log-log; frames hold decode points as `decode_variant` gives them."""
    figure = go.Figure()
    for (name, frame), colors, (dash, symbol) in zip(frames, RUNS, _LINES, strict=False):
        rows = frame[frame["op"] == op]
        color = pick(colors, theme)
        rate = rows["items"] / rows["p50_s"]
        figure.add_trace(
            go.Scatter(
                x=rows["batch"], y=rate, name=chart_text(name), mode="lines+markers",
                line={"color": color, "width": 2, "dash": dash}, marker={"symbol": symbol, "size": 9},
                error_y={
                    "type": "data", "symmetric": False, "thickness": 1, "color": color,
                    "array": rows["items"] / rows["p20_s"] - rate, "arrayminus": rate - rows["items"] / rows["p80_s"],
                },
                hovertemplate=f"batch %{{x}}: %{{y:.3s}} {what}/s<extra>{chart_text(name)}</extra>",
            )
        )  # fmt: skip
    style(figure, theme, height=340)
    figure.update_xaxes(type="log", title="batch, requests", dtick=1, minor={"showgrid": False})
    figure.update_yaxes(type="log", title=f"{op}, {what} per second", dtick=1, exponentformat="SI")
    return figure
