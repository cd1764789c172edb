"""Slot maps: the overview of a whole pool and the window of single slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvcanary.analysis.slot_map import OUTSIDE, SlotWindow, TileGrid
from kvcanary.charts.theme import CLEAR, STATUS_LOOKS, ThemeName, ink, pick, style
from kvcanary.escape import chart_text
from kvcanary.layout import SlotStatus
from kvcanary.units import format_count

MARKER_LIMIT, SMALL_MARKER_LIMIT = 2000, 300
_MARKS = {SlotStatus.CORRUPTED: "square-open", SlotStatus.INJECTED: "diamond-open"}


def _colorscale(theme: ThemeName) -> list[list[float | str]]:
    """One flat band per status, so that a value never blends into its neighbour; OUTSIDE shows the page."""
    colors = [STATUS_LOOKS[status].color(theme) for status in SlotStatus] + [pick(CLEAR, theme)]
    step = 1 / len(colors)
    return [[edge, color] for index, color in enumerate(colors) for edge in (index * step, (index + 1) * step)]


def _heatmap(theme: ThemeName, z: np.ndarray, x: np.ndarray, y: np.ndarray, hover: str, gap: float = 0) -> go.Heatmap:
    return go.Heatmap(
        z=z,
        x=x,
        y=y,
        zmin=-0.5,
        zmax=OUTSIDE + 0.5,
        colorscale=_colorscale(theme),
        showscale=False,
        xgap=gap,
        ygap=gap,
        hovertemplate=hover,
    )


def _legend(figure: go.Figure, counts: dict[SlotStatus, int], theme: ThemeName) -> None:
    for status in reversed(SlotStatus):
        if counts[status]:
            look = STATUS_LOOKS[status]
            mark = {"symbol": "square", "size": 11, "color": look.color(theme)}
            name = f"{look.letter} {look.label} {format_count(counts[status])}"
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=mark, name=name, hoverinfo="skip"))


def overview(grid: TileGrid, counts: dict[SlotStatus, int], theme: ThemeName) -> go.Figure:
    """The whole pool, worst status per tile; bad tiles carry a mark with their first bad slot as customdata.

    The marks are a trace of their own because heatmap cells cannot be selected; at most MARKER_LIMIT of them are drawn.
    """
    rows, columns = grid.tiles.shape
    x = np.arange(columns) * grid.slots_per_tile
    y = np.arange(rows) * grid.slots_per_row
    per_tile = f"{grid.slots_per_tile} slots per tile" if grid.slots_per_tile > 1 else "one slot per tile"
    figure = go.Figure(_heatmap(theme, grid.tiles, x, y, "slot %{y} + %{x}<extra></extra>"))
    for status in (SlotStatus.INJECTED, SlotStatus.CORRUPTED):
        tiles = grid.bad[grid.bad["status"] == status]
        if len(tiles):
            shown = tiles.iloc[np.unique(np.linspace(0, len(tiles) - 1, min(len(tiles), MARKER_LIMIT)).astype(int))]
            figure.add_trace(
                go.Scatter(
                    x=x[shown["column"]],
                    y=y[shown["row"]],
                    customdata=shown[["first_slot", "corrupted", "injected"]].to_numpy(),
                    mode="markers",
                    marker={"symbol": _MARKS[status], "size": 13, "color": ink(theme), "line": {"width": 2}},
                    unselected={"marker": {"opacity": 1}},
                    showlegend=False,
                    hovertemplate="first bad slot %{customdata[0]}<br>%{customdata[1]} corrupted, %{customdata[2]} injected<extra></extra>",
                )
            )
    _legend(figure, counts, theme)
    style(figure, theme, height=360)
    figure.update_xaxes(title=f"slot within the row ({per_tile})", tickformat=",d", showgrid=False)
    figure.update_yaxes(title="first slot of the row", autorange="reversed", tickformat=",d", showgrid=False)
    figure.update_layout(separators=".\u202f", clickmode="event+select")
    return figure


def _page_grid(view: SlotWindow, page_size: int, theme: ThemeName) -> list[dict[str, Any]]:
    """Borders between pages: across the row where a page is narrower than it, between rows where a page fills whole rows."""
    rows, columns = view.cells.shape
    line = {"type": "line", "line": {"color": ink(theme), "width": 1, "dash": "dot"}}
    if 1 < page_size < columns and columns % page_size == 0:
        edges = [edge - 0.5 for edge in range(page_size, columns, page_size)]
        return [{**line, "x0": edge, "x1": edge, "y0": 0, "y1": 1, "yref": "y domain"} for edge in edges]
    if page_size >= columns and page_size % columns == 0:
        slots = [view.start + row * columns for row in range(1, rows)]
        edges = [slot - columns / 2 for slot in slots if slot % page_size == 0]
        return [{**line, "y0": edge, "y1": edge, "x0": 0, "x1": 1, "xref": "x domain"} for edge in edges]
    return []


def multiples(maps: Sequence[tuple[str, TileGrid]], theme: ThemeName) -> go.Figure:
    """One small map per rank, alike in size; marks carry (first bad slot, rank) as customdata and can be selected."""
    columns = min(4, len(maps))
    rows = -(-len(maps) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=[chart_text(label) for label, _ in maps], horizontal_spacing=0.03, vertical_spacing=0.28 / rows
    )  # fmt: skip
    for number, (label, grid) in enumerate(maps):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        height, width = grid.tiles.shape
        x, y = np.arange(width) * grid.slots_per_tile, np.arange(height) * grid.slots_per_row
        figure.add_trace(_heatmap(theme, grid.tiles, x, y, "slot %{y} + %{x}<extra></extra>"), **place)
        shown = grid.bad.iloc[np.unique(np.linspace(0, len(grid.bad) - 1, min(len(grid.bad), SMALL_MARKER_LIMIT)).astype(int))]
        figure.add_trace(
            go.Scatter(
                x=x[shown["column"]],
                y=y[shown["row"]],
                customdata=[[int(slot), label] for slot in shown["first_slot"]],
                mode="markers",
                marker={"symbol": "square", "size": 6, "color": STATUS_LOOKS[SlotStatus.CORRUPTED].color(theme)},
                unselected={"marker": {"opacity": 1}},
                hovertemplate="first bad slot %{customdata[0]}<extra></extra>",
            ),
            **place,
        )
    style(figure, theme, height=max(220, 190 * rows))
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_yaxes(showticklabels=False, showgrid=False, autorange="reversed")
    figure.update_layout(showlegend=False, separators=".\u202f", clickmode="event+select", margin={"l": 8, "r": 8, "t": 30, "b": 8})
    return figure


def window(view: SlotWindow, selected: int, theme: ThemeName, *, page_size: int = 1) -> go.Figure:
    """Single slots around the selected one, with letters, page borders and the selection outlined; cells can be selected."""
    rows, columns = view.cells.shape
    x, y = np.arange(columns), view.start + np.arange(rows) * columns
    figure = go.Figure(_heatmap(theme, view.cells, x, y, "slot %{y} + %{x}<extra></extra>", gap=1))
    letters = [STATUS_LOOKS[status].letter for status in SlotStatus] + [""]
    inside = np.flatnonzero(view.cells.ravel() != OUTSIDE)
    figure.add_trace(
        go.Scatter(
            x=x[inside % columns],
            y=y[inside // columns],
            text=[letters[value] for value in view.cells.ravel()[inside]],
            customdata=(view.start + inside)[:, None],
            mode="markers+text",
            marker={"symbol": "square", "size": 16, "opacity": 0.01, "color": ink(theme)},
            textfont={"size": 11, "color": ink(theme)},
            unselected={"textfont": {"color": ink(theme)}},
            showlegend=False,
            hovertemplate="slot %{customdata[0]}<extra></extra>",
        )
    )
    row, column = divmod(selected - view.start, columns)
    half = columns / 2
    outline = {
        "type": "rect", "line": {"color": ink(theme), "width": 3},
        "x0": column - 0.5, "x1": column + 0.5, "y0": y[row] - half, "y1": y[row] + half,
    }  # fmt: skip
    # All at once: adding shapes one by one takes longer than drawing the rest.
    figure.update_layout(shapes=[outline, *_page_grid(view, page_size, theme)])
    style(figure, theme, height=360)
    figure.update_xaxes(title="+ slot", dtick=4, showgrid=False, range=[-0.5, columns - 0.5])
    figure.update_yaxes(title="first slot of the row", autorange="reversed", tickformat=",d", showgrid=False, tickvals=y)
    figure.update_layout(separators=".\u202f", clickmode="event+select")
    return figure
