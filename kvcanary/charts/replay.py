"""A replay in pictures: the pool after one step, slot by slot, and all steps on one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from kvcanary.analysis import slot_map
from kvcanary.analysis.replay_card import owner_name
from kvcanary.charts.theme import (
    CALM_LETTER,
    INJECTED_MARK,
    NO_OWNER,
    OWNERS,
    REPORTED_MARK,
    STATUS_LOOKS,
    TREE_OWNER,
    ThemeName,
    faint,
    ink,
    pick,
    style,
)
from kvcanary.lab.replay import PoolView, ReplayFrame
from kvcanary.layout import SlotStatus
from kvcanary.serving.engine import OWNER_CACHED, OWNER_FREE, OWNER_IN_FLIGHT, OWNER_PADDING
from kvcanary.units import format_count

STATUS, OWNER = "status", "owner"
_SPECIAL_COLORS = {
    OWNER_FREE: NO_OWNER,
    OWNER_CACHED: TREE_OWNER,
    OWNER_IN_FLIGHT: STATUS_LOOKS[SlotStatus.SKIPPED].pair,
    OWNER_PADDING: STATUS_LOOKS[SlotStatus.RESERVED].pair,
}
_OWNER_LETTERS = {OWNER_FREE: "", OWNER_CACHED: "t", OWNER_IN_FLIGHT: "f", OWNER_PADDING: "P"}
_NARROW, _WIDE, _SMALL_POOL = 32, 64, 640
# Height of a row, and size of a mark, where the cells are large enough for letters and where they are not.
_ROW_PX, _LOW_ROW_PX = 20, 13
_MARK_PX, _SMALL_MARK_PX = 16, 11


def columns_of(num_slots: int) -> int:
    """Slots in a row of the map."""
    return _NARROW if num_slots <= _SMALL_POOL else _WIDE


def pool_map(pool: PoolView, selected: int, theme: ThemeName, *, by: str = STATUS) -> go.Figure:
    """One cell per slot, coloured by status or by owner; diamonds are damage on purpose, squares are reports. Cells can be selected."""
    num_slots, columns = len(pool.status), columns_of(len(pool.status))
    rows, large = -(-num_slots // columns), columns == _NARROW
    codes, palette, letters = _by_owner(pool, theme) if by == OWNER else _by_status(pool, theme)
    # What is well stays in the background, so that the rest is seen first.
    quiet = [by == STATUS and code == SlotStatus.CLEAN for code in pool.status.tolist()]
    calm = [letter if is_quiet and large else "" for letter, is_quiet in zip(letters, quiet, strict=True)]
    grid = np.full(rows * columns, np.nan)
    grid[:num_slots] = codes
    x, y = np.arange(columns), np.arange(rows) * columns
    slots = np.arange(num_slots)
    figure = go.Figure(
        go.Heatmap(
            z=grid.reshape(rows, columns), x=x, y=y, zmin=-0.5, zmax=len(palette) - 0.5, colorscale=_bands(palette), showscale=False,
            xgap=1, ygap=1, hoverinfo="skip",
        )
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=slots % columns, y=slots // columns * columns, text=calm,
            customdata=[[int(slot)] for slot in slots],
            hovertext=[_hover(pool, slot) for slot in slots.tolist()], hovertemplate="%{hovertext}<extra></extra>",
            mode="markers+text", marker={"symbol": "square", "size": _MARK_PX if large else _LOW_ROW_PX - 3, "opacity": 0.01, "color": ink(theme)},
            textfont={"size": 10, "color": pick(CALM_LETTER, theme)}, showlegend=False,
        )
    )  # fmt: skip
    loud = [slot for slot, is_quiet in enumerate(quiet) if large and not is_quiet and letters[slot]]
    figure.add_trace(
        go.Scatter(
            x=[slot % columns for slot in loud], y=[slot // columns * columns for slot in loud], text=[letters[slot] for slot in loud],
            mode="text", textfont={"size": 10, "color": ink(theme)}, hoverinfo="skip", showlegend=False,
        )
    )  # fmt: skip
    size = _MARK_PX if large else _SMALL_MARK_PX
    _mark(figure, pool.injected, columns, ("diamond-open", size + 2, pick(INJECTED_MARK, theme)), "damaged on purpose")
    _mark(figure, pool.reported, columns, ("square-open", size, pick(REPORTED_MARK, theme)), "reported in this step")
    column, row = selected % columns, selected // columns
    half = columns / 2
    figure.add_shape(
        type="rect", x0=column - 0.5, x1=column + 0.5, y0=row * columns - half, y1=row * columns + half,
        line={"color": ink(theme), "width": 3},
    )  # fmt: skip
    style(figure, theme, height=(_ROW_PX if large else _LOW_ROW_PX) * rows + 72)
    figure.update_xaxes(range=[-0.55, columns - 0.45], dtick=4, showgrid=False, title=None, tickfont={"size": 10})
    figure.update_yaxes(
        range=[(rows - 0.45) * columns, -0.55 * columns],
        showgrid=False,
        tickvals=y[:: 2 if large else 4],
        tickformat=",d",
        tickfont={"size": 10},
    )
    figure.update_layout(
        separators=".\u202f",
        clickmode="event+select",
        margin={"t": 34, "b": 4},
        legend={"y": 1.0, "font": {"size": 11}, "itemclick": False, "itemdoubleclick": False},
    )
    _legend(figure, pool, theme, by)
    return figure


def _by_status(pool: PoolView, theme: ThemeName) -> tuple[npt.NDArray[np.float64], list[str], list[str]]:
    palette = [STATUS_LOOKS[status].color(theme) for status in SlotStatus]
    letters = ["" if SlotStatus(code) is SlotStatus.FREE else STATUS_LOOKS[SlotStatus(code)].letter for code in pool.status.tolist()]
    return pool.status.astype(float), palette, letters


def _by_owner(pool: PoolView, theme: ThemeName) -> tuple[npt.NDArray[np.float64], list[str], list[str]]:
    special = list(_SPECIAL_COLORS)
    # Neighbouring request numbers get colours that are far apart; the number in the cell tells equal colours from each other.
    palette = [pick(pair, theme) for pair in (*_SPECIAL_COLORS.values(), *OWNERS)]
    codes = [special.index(owner) if owner in _SPECIAL_COLORS else len(special) + owner % len(OWNERS) for owner in pool.owners.tolist()]
    letters = [_OWNER_LETTERS.get(owner, str(owner)) for owner in pool.owners.tolist()]
    return np.array(codes, dtype=float), palette, letters


def _bands(palette: Sequence[str]) -> list[list[float | str]]:
    step = 1 / len(palette)
    return [[edge, color] for index, color in enumerate(palette) for edge in (index * step, (index + 1) * step)]


def _hover(pool: PoolView, slot: int) -> str:
    look = STATUS_LOOKS[SlotStatus(int(pool.status[slot]))]
    position = int(pool.truth.positions[slot])
    where = f", position {position}" if pool.owners[slot] not in (OWNER_FREE, OWNER_PADDING) and position >= 0 else ""
    return f"<b>slot {slot}</b><br>{owner_name(int(pool.owners[slot]))}{where}<br>{look.label}"


def _mark(figure: go.Figure, slots: npt.NDArray[np.int64], columns: int, look: tuple[str, int, str], name: str) -> None:
    symbol, size, color = look
    if slots.size:
        figure.add_trace(
            go.Scatter(
                x=slots % columns, y=slots // columns * columns, mode="markers", name=f"{name} {format_count(len(slots))}", hoverinfo="skip",
                marker={"symbol": symbol, "size": size, "color": color, "line": {"width": 3}},
                selected={"marker": {"opacity": 1}}, unselected={"marker": {"opacity": 1}},
            )
        )  # fmt: skip


def _legend(figure: go.Figure, pool: PoolView, theme: ThemeName, by: str) -> None:
    if by == OWNER:
        named = ((OWNER_CACHED, "t prefix tree only"), (OWNER_FREE, "free"), (OWNER_IN_FLIGHT, "f in flight"))
        looks: list[tuple[str, str]] = [
            (pick(_SPECIAL_COLORS[owner], theme), name) for owner, name in named if (pool.owners == owner).any()
        ]
    else:
        shown = [status for status in reversed(SlotStatus) if (pool.status == status).any() and status is not SlotStatus.RESERVED]
        looks = [
            (STATUS_LOOKS[status].color(theme), f"{STATUS_LOOKS[status].letter} {_SHORT.get(status, STATUS_LOOKS[status].label)}")
            for status in shown
        ]
    for color, name in looks:
        marker = {"symbol": "square", "size": 11, "color": color, "line": {"color": faint(theme), "width": 1}}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip"))


_SHORT = {SlotStatus.INJECTED: "not reported", SlotStatus.CORRUPTED: "reported"}


def map_summary(pool: PoolView) -> str:
    """The map in a sentence."""
    counts = slot_map.count_statuses(pool.status)
    checked = counts[SlotStatus.CLEAN] + len(pool.reported) + int(np.isin(pool.injected, pool.entries.slots).sum())
    checked -= int(np.isin(pool.injected, pool.reported).sum())
    parts = [
        f"{_named(pool.reported, 'reported')}, {_named(pool.injected, 'damaged on purpose')}",
        f"{format_count(checked)} of {format_count(slot_map.pool_slots(counts))} slots verified, "
        f"{format_count(counts[SlotStatus.SKIPPED])} in use and not verified, "
        f"{format_count(counts[SlotStatus.FREE])} free",
    ]
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def _named(slots: npt.NDArray[np.int64], what: str) -> str:
    if not slots.size:
        return f"no slot {what}"
    listed = ", ".join(format_count(slot) for slot in slots[:4].tolist())
    return f"{'slot' if slots.size == 1 else 'slots'} {listed}{f' and {slots.size - 4} more' if slots.size > 4 else ''} {what}"


def timeline(frames: Sequence[ReplayFrame], current: int, theme: ThemeName) -> go.Figure:
    """Every step: tokens written above the line, slots freed below it, damage and reports as marks over them. Steps can be selected."""
    steps = [frame.index for frame in frames]
    figure = go.Figure()
    blue, grey = STATUS_LOOKS[SlotStatus.CLEAN].color(theme), STATUS_LOOKS[SlotStatus.RESERVED].color(theme)
    hover = [_step_hover(frame) for frame in frames]
    shared: dict[str, Any] = {"x": steps, "customdata": [[step] for step in steps], "hovertext": hover}
    plain = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}
    for name, values, color in (("tokens written", [f.tokens for f in frames], blue), ("slots freed", [-f.freed for f in frames], grey)):
        figure.add_trace(
            go.Bar(
                y=values, name=name, marker={"color": color}, hovertemplate="%{hovertext}<extra></extra>",
                textposition="none", **shared, **plain,
            )
        )  # fmt: skip
    lanes = (
        ("damage", [f.changed for f in frames], "diamond", INJECTED_MARK, 1.0),
        ("reports", [f.report_count for f in frames], "square", REPORTED_MARK, 0.0),
    )
    for name, counts, symbol, pair, lane in lanes:
        there = [index for index, count in enumerate(counts) if count]
        figure.add_trace(
            go.Scatter(
                x=[steps[index] for index in there], y=[lane] * len(there), yaxis="y2", name=name, mode="markers",
                marker={"symbol": symbol, "size": [min(13, 8 + counts[index]) for index in there], "color": pick(pair, theme)},
                customdata=[[steps[index]] for index in there], hovertext=[hover[index] for index in there],
                hovertemplate="%{hovertext}<extra></extra>", **plain,
            )
        )  # fmt: skip
    figure.add_shape(
        type="rect", x0=current - 0.5, x1=current + 0.5, y0=0, y1=1, yref="paper", line={"color": ink(theme), "width": 2}, layer="above"
    )
    style(figure, theme, height=182)
    figure.update_xaxes(range=[steps[0] - 0.6, steps[-1] + 0.6], showgrid=False, dtick=4, tickfont={"size": 10}, title=None)
    figure.update_layout(
        barmode="relative",
        bargap=0.25,
        clickmode="event+select",
        margin={"t": 28, "b": 4},
        yaxis={"domain": [0, 0.6], "tickfont": {"size": 10}, "nticks": 4, "zeroline": True, "zerolinecolor": faint(theme)},
        yaxis2={
            "domain": [0.66, 1],
            "range": [-0.6, 1.6],
            "tickvals": [0, 1],
            "ticktext": ["reports", "damage"],
            "showgrid": False,
            "zeroline": False,
            "tickfont": {"size": 10, "color": ink(theme)},
            "anchor": "x",
        },
        legend={"y": 1.0, "font": {"size": 11}, "itemclick": False, "itemdoubleclick": False},
    )
    return figure


def _step_hover(frame: ReplayFrame) -> str:
    lines = [f"<b>step {frame.index}</b>, {frame.mode}", f"{frame.tokens} tokens written, {frame.freed} slots freed"]
    if frame.changed:
        lines.append(f"damage: {frame.changed} units changed")
    if frame.report_count:
        lines.append(f"{frame.report_count} reports")
    if frame.events:
        lines.append(", ".join(f"{count} × {kind}" for kind, count in frame.events.items()))
    return "<br>".join(lines)


def timeline_summary(frames: Sequence[ReplayFrame]) -> str:
    """The timeline in a sentence."""
    damaged = [frame.index for frame in frames if frame.changed]
    reported = [frame.index for frame in frames if frame.report_count]
    count = sum(frame.report_count for frame in frames)
    damage = f"damage in {_steps(damaged)}" if damaged else "no damage"
    told = f"{format_count(count)} reports in {_steps(reported)}" if reported else "no report"
    return f"{len(frames)} steps, {format_count(sum(frame.tokens for frame in frames))} tokens written; {damage}; {told}."


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
