"""Charts of a plan: where the memory of one rank goes, and how large the canary's share of it is."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvcanary.charts.theme import OTHER_PART, PART_COLORS, SERIES, STATUS_LOOKS, ThemeName, faint, ink, pick, style
from kvcanary.config.memory import CANARY_PARTS, MemoryPlan
from kvcanary.config.solve import Frontier
from kvcanary.layout import SlotStatus
from kvcanary.units import GIB, MIB, format_bytes, format_count

_ROWS = ("whole rank", "canary only")


def memory_bar(plan: MemoryPlan, theme: ThemeName) -> go.Figure:
    """Two stacked bars: the whole rank against its memory in GiB, and below it the canary's parts alone in MiB.

    The second bar is there because the canary is rarely more than a few percent and would be a hairline in the first.
    """
    whole = _by_part(plan, canary=False)
    canary = _by_part(plan, canary=True)
    figure = go.Figure()
    total_canary = sum(size for _, size in canary)
    parts = [*whole, ("canary", total_canary)] if total_canary else whole
    if plan.headroom_bytes is not None and plan.headroom_bytes > 0:
        parts = [*parts, ("left", plan.headroom_bytes)]
    for name, size in parts:
        figure.add_trace(_segment(name, size, _ROWS[0], size / GIB, "x", theme))
    for name, size in canary:
        figure.add_trace(_segment(name.removeprefix("canary "), size, _ROWS[1], size / MIB, "x2", theme, key=name))
    style(figure, theme, height=250)
    if plan.budget_bytes is not None:
        figure.add_vline(
            plan.budget_bytes / GIB,
            line={"color": ink(theme), "width": 2},
            row=None,
            annotation_text="device memory",
            annotation_position="top",
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend={"y": -0.32, "yanchor": "top", "traceorder": "normal"},
        margin={"t": 26, "b": 8},
        xaxis={"domain": [0, 1], "anchor": "y", "title": {"text": "GiB", "standoff": 2}, "rangemode": "tozero"},
        xaxis2={
            "domain": [0, 1],
            "anchor": "y2",
            "title": {"text": "MiB", "standoff": 2},
            "rangemode": "tozero",
            "gridcolor": faint(theme),
        },
        yaxis={"domain": [0.66, 1], "anchor": "x"},
        yaxis2={"domain": [0.06, 0.36], "anchor": "x2", "automargin": True},
    )
    if not canary:
        figure.update_layout(yaxis={"domain": [0.3, 1]}, yaxis2={"visible": False}, xaxis2={"visible": False})
    return figure


def memory_summary(plan: MemoryPlan) -> str:
    """The bars in words."""
    largest = sorted(_by_part(plan, canary=False) + _by_part(plan, canary=True), key=lambda pair: -pair[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    return f"{plan.summary}. Largest parts: {parts}." if parts else plan.summary


def _by_part(plan: MemoryPlan, *, canary: bool) -> list[tuple[str, int]]:
    sizes: dict[str, int] = {}
    for line in plan.lines:
        if (line.part in CANARY_PARTS) == canary and line.bytes:
            sizes[line.part] = sizes.get(line.part, 0) + line.bytes
    return list(sizes.items())


def _segment(name: str, size: int, row: str, length: float, axis: str, theme: ThemeName, key: str = "") -> go.Bar:
    color = pick(PART_COLORS.get(key or ("canary buffers" if name == "canary" else name), OTHER_PART), theme)
    return go.Bar(
        name=f"{name} {format_bytes(size)}",
        x=[length],
        y=[row],
        xaxis=axis,
        yaxis=axis.replace("x", "y"),
        orientation="h",
        marker={"color": color, "line": {"color": faint(theme), "width": 1}},
        hovertemplate=f"{name}: {format_bytes(size)}<extra></extra>",
    )


def part_rows(plan: MemoryPlan) -> Sequence[tuple[str, str, str, str]]:
    """The table twin: line, size, formula with numbers, who pays it or what is not known."""
    rows = []
    for line in plan.lines:
        if line.item is not None:
            rows.append((line.label, format_bytes(line.item.bytes), line.item.text, line.item.note or line.item.source))
        elif line.unknown is not None:
            rows.append((line.label, "unknown", line.unknown.text, f"would be settled by {line.unknown.settle}"))
    return rows


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
    name = "your settings (fit)" if frontier.current_fits else "your settings (do not fit)"
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
    style(figure, theme, height=320)
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
