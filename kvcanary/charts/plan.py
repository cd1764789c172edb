"""Charts of a plan: where the memory of one rank goes, how context trades against concurrency, and when verification overflows."""

from __future__ import annotations

import plotly.graph_objects as go

from kvcanary.charts.theme import OTHER_PART, PART_COLORS, SERIES, STATUS_LOOKS, ThemeName, faint, ink, pick, style
from kvcanary.config.memory import CANARY_PARTS, MemoryPlan
from kvcanary.config.overflow import OverflowForecast, PrefixGroup, verify_rows
from kvcanary.config.solve import Frontier
from kvcanary.layout import VERIFY_CAPACITY_FACTOR, SlotStatus
from kvcanary.units import GIB, MIB, format_bytes, format_count

_WHOLE, _CANARY = "whole rank", "canary only"


def memory_bar(plan: MemoryPlan, theme: ThemeName) -> go.Figure:
    """Two stacked bars: the whole rank against its memory in GiB, and below it the canary's parts alone in MiB.

    The second bar is there because the canary is rarely more than a few percent and would be a hairline in the first. Names and sizes
    stand in `memory_key`, which a narrow screen can wrap.
    """
    figure = go.Figure()
    for name, size in _whole_parts(plan):
        figure.add_trace(_segment(name, size, _WHOLE, size / GIB, "x", theme))
    canary = _by_part(plan, canary=True)
    for name, size in canary:
        figure.add_trace(_segment(name, size, _CANARY, size / MIB, "x2", theme))
    style(figure, theme, height=168 if canary else 96)
    for value, dash in ((plan.static_limit_bytes, "dot"), (plan.budget_bytes, "solid")):
        if value is not None:
            figure.add_shape(
                type="line", x0=value / GIB, x1=value / GIB, y0=-0.6, y1=0.6, xref="x", yref="y",
                line={"color": ink(theme), "width": 2, "dash": dash},
            )  # fmt: skip
    axis = {"domain": [0, 1], "rangemode": "tozero", "gridcolor": faint(theme), "zeroline": False, "nticks": 7}
    figure.update_layout(
        barmode="stack",
        bargap=0.25,
        showlegend=False,
        margin={"t": 6, "b": 4, "l": 4, "r": 14},
        xaxis={**axis, "anchor": "y", "ticksuffix": " GiB", "showticksuffix": "last"},
        yaxis={"domain": [0.68, 1] if canary else [0.2, 1], "anchor": "x"},
    )
    if canary:
        figure.update_layout(
            xaxis2={**axis, "anchor": "y2", "ticksuffix": " MiB", "showticksuffix": "last"},
            yaxis2={"domain": [0.12, 0.44], "anchor": "x2", "automargin": True},
        )
    return figure


def memory_key(plan: MemoryPlan, theme: ThemeName) -> list[tuple[str, str, str]]:
    """(name, size, colour) of each segment of `memory_bar`, in its order; the canary's parts follow the whole."""
    parts = [*_whole_parts(plan), *_by_part(plan, canary=True)]
    return [(name, format_bytes(size), _color(name, theme)) for name, size in parts]


def memory_summary(plan: MemoryPlan) -> str:
    """The bars in words."""
    largest = sorted(_by_part(plan, canary=False) + _by_part(plan, canary=True), key=lambda pair: -pair[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    return f"{plan.summary}. Largest parts: {parts}." if parts else plan.summary


def _whole_parts(plan: MemoryPlan) -> list[tuple[str, int]]:
    parts = _by_part(plan, canary=False)
    if plan.canary_bytes:
        parts.append(("canary", plan.canary_bytes))
    if plan.headroom_bytes is not None and plan.headroom_bytes > 0:
        parts.append(("left", plan.headroom_bytes))
    return parts


def _by_part(plan: MemoryPlan, *, canary: bool) -> list[tuple[str, int]]:
    sizes: dict[str, int] = {}
    for line in plan.lines:
        if (line.part in CANARY_PARTS) == canary and line.bytes:
            sizes[line.part] = sizes.get(line.part, 0) + line.bytes
    return list(sizes.items())


def _color(name: str, theme: ThemeName) -> str:
    return pick(PART_COLORS.get("canary buffers" if name == "canary" else name, OTHER_PART), theme)


def _segment(name: str, size: int, row: str, length: float, axis: str, theme: ThemeName) -> go.Bar:
    return go.Bar(
        name=name,
        x=[length],
        y=[row],
        xaxis=axis,
        yaxis=axis.replace("x", "y"),
        orientation="h",
        marker={"color": _color(name, theme), "line": {"color": faint(theme), "width": 1}},
        hovertemplate=f"{name}: {format_bytes(size)}<extra></extra>",
    )


def frontier_chart(frontier: Frontier, theme: ThemeName) -> go.Figure:
    """Longest context against concurrency at fixed memory, log-log, with the settings' own point."""
    points = [point for point in frontier.points if point.context > 0]
    line = pick(SERIES["verify"], theme)
    figure = go.Figure(
        go.Scatter(
            x=[point.concurrency for point in points],
            y=[point.context for point in points],
            customdata=[(point.pool_slots, point.limit) for point in points],
            mode="lines+markers",
            name="longest context",
            line={"color": line, "width": 2},
            hovertemplate="%{x} requests x %{y} tokens<br>%{customdata[0]} slots, limited by %{customdata[1]}<extra></extra>",
        )
    )
    mark = STATUS_LOOKS[SlotStatus.CLEAN if frontier.current_fits else SlotStatus.CORRUPTED].color(theme)
    name = "your settings, all rows full (fit)" if frontier.current_fits else "your settings, all rows full (do not fit)"
    symbol = "circle" if frontier.current_fits else "x"
    figure.add_trace(
        go.Scatter(
            x=[frontier.current.concurrency],
            y=[frontier.current.context],
            mode="markers",
            name=name,
            marker={"size": 14, "symbol": symbol, "color": mark, "line": {"color": ink(theme), "width": 2}},
            hovertemplate="%{x} requests x %{y} tokens<extra></extra>",
        )
    )
    style(figure, theme, height=300)
    figure.update_xaxes(type="log", title="requests at once", dtick=1)
    figure.update_yaxes(type="log", title="context, tokens", dtick=1)
    return figure


def frontier_summary(frontier: Frontier) -> str:
    """The frontier in words: its two ends and where the settings lie."""
    first, last = frontier.points[0], frontier.points[-1]
    own = frontier.current
    fit = "fits" if frontier.current_fits else "does not fit"
    return (
        f"At this memory {format_count(first.concurrency)} request(s) can reach {format_count(first.context)} tokens each and "
        f"{format_count(last.concurrency)} can reach {format_count(last.context)}; your {format_count(own.concurrency)} requests of "
        f"{format_count(own.context)} tokens at once: {fit}."
    )


def overflow_chart(forecast: OverflowForecast, group: PrefixGroup, groups: int, most: int, theme: ThemeName) -> go.Figure:
    """Verify rows of one forward against requests per group, with the capacity of the verify plan.

    most: requests per group that pool and request table hold; the line ends there, or where the crossing is well in sight.
    """
    per_request = groups * verify_rows([PrefixGroup(requests=1, shared_tokens=group.shared_tokens, own_tokens=group.own_tokens)])
    crossing = forecast.capacity // per_request + 1 if per_request else most
    end = min(most, 2 * max(crossing, group.requests))
    last = max(end, group.requests, 1)
    line, limit = pick(SERIES["verify"], theme), STATUS_LOOKS[SlotStatus.CORRUPTED].color(theme)
    figure = go.Figure(
        go.Scatter(
            x=[0, end], y=[0, end * per_request], mode="lines", name="rows to verify", line={"color": line, "width": 2},
            hovertemplate="%{x} requests: %{y} rows<extra></extra>",
        )
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=[0, last], y=[forecast.capacity, forecast.capacity], mode="lines", name=f"{VERIFY_CAPACITY_FACTOR} x pool slots",
            line={"color": limit, "width": 2, "dash": "dash"}, hovertemplate="capacity %{y} rows<extra></extra>",
        )
    )  # fmt: skip
    mark = STATUS_LOOKS[SlotStatus.CORRUPTED if forecast.skipped or not forecast.fits else SlotStatus.CLEAN].color(theme)
    figure.add_trace(
        go.Scatter(
            x=[group.requests], y=[forecast.rows], mode="markers", name="this pattern",
            marker={"size": 13, "symbol": "x" if forecast.skipped or not forecast.fits else "circle", "color": mark,
                    "line": {"color": ink(theme), "width": 2}},
            hovertemplate="%{x} requests: %{y} rows<extra></extra>",
        )
    )  # fmt: skip
    style(figure, theme, height=260)
    figure.update_xaxes(title="requests per group" + ("; the line ends where no more fit" if end == most else ""), rangemode="tozero")
    figure.update_yaxes(title="rows of one forward", rangemode="tozero")
    return figure
