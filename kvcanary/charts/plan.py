"""Charts of a plan: where the memory of one rank goes, how context trades against concurrency, and when verification overflows."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from kvcanary.charts.theme import OTHER_PART, PART_COLORS, SERIES, STATUS_LOOKS, ThemeName, faint, ink, layout, pick
from kvcanary.config.memory import CANARY_PARTS, MemoryPlan, Share
from kvcanary.config.overflow import OverflowForecast, PrefixGroup, verify_rows
from kvcanary.config.solve import Frontier
from kvcanary.config.stored_plan import StoredMemory
from kvcanary.escape import chart_text
from kvcanary.layout import VERIFY_CAPACITY_FACTOR, SlotStatus
from kvcanary.units import GIB, MIB, format_bytes, format_count

Memory = MemoryPlan | StoredMemory
_WHOLE, _CANARY = "whole rank", "canary only"
PAYS: dict[str, str] = {
    Share.STATIC: "static share",
    Share.SLACK: "outside the static share",
    Share.RESERVED: "taken off the pool",
}


def memory_bar(plan: Memory, theme: ThemeName) -> go.Figure:
    """Two stacked bars: the whole rank against its memory, and below it the canary's parts alone in MiB.

    The second bar is there because the canary is rarely more than a few percent and would be a hairline in the first. Names and sizes
    stand in `memory_key`, which a narrow screen can wrap.
    """
    canary = _by_part(plan, canary=True)
    # Of a plan without weights and pool only some MiB are known.
    unit, unit_name = (GIB, "GiB") if (plan.budget_bytes or plan.known_bytes) >= GIB else (MIB, "MiB")
    bars = [_segment(name, size, _WHOLE, size / unit, "x", theme) for name, size in _whole_parts(plan)]
    bars += [_segment(name, size, _CANARY, size / MIB, "x2", theme) for name, size in canary]
    marks = [
        {
            "type": "line", "x0": value / unit, "x1": value / unit, "y0": -0.6, "y1": 0.6, "xref": "x", "yref": "y",
            "line": {"color": ink(theme), "width": 2, "dash": dash},
        }
        for value, dash in ((plan.static_limit_bytes, "dot"), (plan.budget_bytes, "solid"))
        if value is not None
    ]  # fmt: skip
    look = layout(theme, height=168 if canary else 96)
    axis = {"domain": [0, 1], "rangemode": "tozero", "gridcolor": faint(theme), "zeroline": False, "nticks": 7, "showticksuffix": "last"}
    look |= {
        "barmode": "stack",
        "bargap": 0.25,
        "showlegend": False,
        "margin": {"t": 6, "b": 4, "l": 4, "r": 14},
        "shapes": marks,
        "xaxis": {**look["xaxis"], **axis, "anchor": "y", "ticksuffix": f" {unit_name}"},
        "yaxis": {**look["yaxis"], "domain": [0.68, 1] if canary else [0.2, 1], "anchor": "x"},
    }
    if canary:
        look |= {
            "xaxis2": {**axis, "anchor": "y2", "ticksuffix": " MiB"},
            "yaxis2": {"domain": [0.12, 0.44], "anchor": "x2", "automargin": True},
        }
    return go.Figure(bars, look)


def memory_key(plan: Memory, theme: ThemeName) -> list[tuple[str, str, str]]:
    """(name, size, colour) of each segment of `memory_bar`, in its order; the canary's parts follow the whole."""
    parts = [*_whole_parts(plan), *_by_part(plan, canary=True)]
    return [(name, format_bytes(size), _color(name, theme)) for name, size in parts]


def memory_summary(plan: Memory) -> str:
    """The bars in words."""
    largest = sorted(_by_part(plan, canary=False) + _by_part(plan, canary=True), key=lambda pair: -pair[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    whole = f"{plan.summary[:1].upper()}{plan.summary[1:]}"
    return f"{whole}. Largest parts: {parts}." if parts else whole


def memory_sums(plan: Memory) -> list[tuple[str, int, str]]:
    """(name, bytes, what it is) of the sums below the lines, as far as they are known."""
    more = "; lines that are unknown come on top" if plan.unknown_lines else ""
    rows = [("known lines", plan.known_bytes, f"sum of the lines above{more}")]
    if plan.static_limit_bytes is not None and plan.static_left_bytes is not None:
        rows.append(("static share", plan.static_limit_bytes, "mem_fraction_static of the memory of the device"))
        rows.append(("left in the static share", plan.static_left_bytes, "negative: SGLang makes the pool smaller than asked for"))
    if plan.budget_bytes is not None and plan.headroom_bytes is not None:
        rows.append(("memory of the device", plan.budget_bytes, plan.budget_note))
        rows.append(("headroom", plan.headroom_bytes, "what is left for activations and for lines that are unknown"))
    return rows


def _whole_parts(plan: Memory) -> list[tuple[str, int]]:
    parts = _by_part(plan, canary=False)
    if plan.canary_bytes:
        parts.append(("canary", plan.canary_bytes))
    if plan.headroom_bytes is not None and plan.headroom_bytes > 0:
        parts.append(("left", plan.headroom_bytes))
    return parts


def _by_part(plan: Memory, *, canary: bool) -> list[tuple[str, int]]:
    sizes: dict[str, int] = {}
    for line in plan.lines:
        if (line.part in CANARY_PARTS) == canary and line.bytes:
            sizes[line.part] = sizes.get(line.part, 0) + line.bytes
    return list(sizes.items())


def _color(name: str, theme: ThemeName) -> str:
    return pick(PART_COLORS.get("canary buffers" if name == "canary" else name, OTHER_PART), theme)


def _segment(name: str, size: int, row: str, length: float, axis: str, theme: ThemeName) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": chart_text(name),
        "x": [length],
        "y": [row],
        "xaxis": axis,
        "yaxis": axis.replace("x", "y"),
        "orientation": "h",
        "marker": {"color": _color(name, theme), "line": {"color": faint(theme), "width": 1}},
        "hovertemplate": f"{chart_text(name)}: {format_bytes(size)}<extra></extra>",
    }


def frontier_chart(frontier: Frontier, theme: ThemeName) -> go.Figure:
    """Longest context against concurrency at fixed memory, log-log, with the settings' own point."""
    points = [point for point in frontier.points if point.context > 0]
    curve = {
        "type": "scatter",
        "x": [point.concurrency for point in points],
        "y": [point.context for point in points],
        "customdata": [(point.pool_slots, point.limit) for point in points],
        "mode": "lines+markers",
        "name": "longest context",
        "line": {"color": pick(SERIES["verify"], theme), "width": 2},
        "hovertemplate": "%{x} requests x %{y} tokens<br>%{customdata[0]} slots, limited by %{customdata[1]}<extra></extra>",
    }
    fits = frontier.current_fits
    own = {
        "type": "scatter",
        "x": [frontier.current.concurrency],
        "y": [frontier.current.context],
        "mode": "markers",
        "name": "your settings, all rows full (fit)" if fits else "your settings, all rows full (do not fit)",
        "marker": _mark(fits, theme, size=14),
        "hovertemplate": "%{x} requests x %{y} tokens<extra></extra>",
    }
    look = layout(theme, height=300)
    look["xaxis"] |= {"type": "log", "title": {"text": "requests at once"}, "dtick": 1}
    look["yaxis"] |= {"type": "log", "title": {"text": "context, tokens"}, "dtick": 1}
    return go.Figure([curve, own], look)


def _mark(good: bool, theme: ThemeName, *, size: int) -> dict[str, Any]:
    """The point of the settings themselves: a circle where they fit, a cross where they do not."""
    color = STATUS_LOOKS[SlotStatus.CLEAN if good else SlotStatus.CORRUPTED].color(theme)
    return {"size": size, "symbol": "circle" if good else "x", "color": color, "line": {"color": ink(theme), "width": 2}}


def frontier_summary(frontier: Frontier) -> str:
    """The frontier in words: its two ends and where the settings lie."""
    first, last = frontier.points[0], frontier.points[-1]
    own = frontier.current
    fit = "can run at once" if frontier.current_fits else "cannot run at once"
    return (
        f"At this memory {_requests(first.concurrency)} can reach {format_count(first.context)} tokens, {_requests(last.concurrency)} "
        f"{format_count(last.context)} each; {_requests(own.concurrency)} of {format_count(own.context)} tokens, as set, {fit}."
    )


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{format_count(count)} requests"


def overflow_chart(forecast: OverflowForecast, group: PrefixGroup, groups: int, most: int, theme: ThemeName) -> go.Figure:
    """Verify rows of one forward against requests per group, with the capacity of the verify plan.

    most: requests per group that pool and request table hold; the line ends there, or where the crossing is well in sight.
    """
    per_request = groups * verify_rows([PrefixGroup(requests=1, shared_tokens=group.shared_tokens, own_tokens=group.own_tokens)])
    crossing = forecast.capacity // per_request + 1 if per_request else most
    end = min(most, 2 * max(crossing, group.requests))
    last = max(end, group.requests, 1)
    rows = {
        "type": "scatter", "x": [0, end], "y": [0, end * per_request], "mode": "lines", "name": "rows to verify",
        "line": {"color": pick(SERIES["verify"], theme), "width": 2}, "hovertemplate": "%{x} requests: %{y} rows<extra></extra>",
    }  # fmt: skip
    limit = {
        "type": "scatter", "x": [0, last], "y": [forecast.capacity, forecast.capacity], "mode": "lines",
        "name": f"{VERIFY_CAPACITY_FACTOR} x pool slots", "hovertemplate": "capacity %{y} rows<extra></extra>",
        "line": {"color": STATUS_LOOKS[SlotStatus.CORRUPTED].color(theme), "width": 2, "dash": "dash"},
    }  # fmt: skip
    own = {
        "type": "scatter", "x": [group.requests], "y": [forecast.rows], "mode": "markers", "name": "this pattern",
        "marker": _mark(forecast.fits and not forecast.skipped, theme, size=13),
        "hovertemplate": "%{x} requests: %{y} rows<extra></extra>",
    }  # fmt: skip
    look = layout(theme, height=260)
    title = "requests per group" + ("; the line ends where no more fit" if end == most else "")
    look["xaxis"] |= {"title": {"text": title}, "rangemode": "tozero"}
    look["yaxis"] |= {"title": {"text": "rows of one forward"}, "rangemode": "tozero"}
    return go.Figure([rows, limit, own], look)
