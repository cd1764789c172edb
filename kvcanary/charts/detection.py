"""The detection matrix of a campaign: one bar of unit length per cell, because bars can be hatched and clicked, heatmap cells cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kvcanary.charts.theme import CLEAR, FOUND, MISSED, OUT_OF_REACH, ThemeName, faint, ink, pick, style
from kvcanary.faults.catalogue import find
from kvcanary.faults.targets import Target, target
from kvcanary.lab.campaign import CellSummary, Fault
from kvcanary.lab.frontier import ConfigCost
from kvcanary.units import format_seconds

# Rate below the bound -> ground and legend.
_RATES = ((0.5, FOUND[0], "found below half"), (0.995, FOUND[1], "found mostly"), (1.01, FOUND[2], "found always"))
_NOT_RUN = CLEAR
_TALL, _LOW, _MANY_ROWS = 25, 19, 24
_HEADING = 1.15


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """Faults from top to bottom: (fault, place) of each row and (heading, place) of each group; height is the place behind the last."""

    faults: tuple[tuple[Fault, float], ...]
    headings: tuple[tuple[str, float], ...]
    height: float


def matrix_rows(faults: Sequence[Fault]) -> MatrixRows:
    """The rows of a matrix, grouped by what is hit; inside a group the order of the catalogue stays."""
    rows: list[tuple[Fault, float]] = []
    headings: list[tuple[str, float]] = []
    place = 0.0
    for group in Target:
        mine = [fault for fault in faults if target(*fault) is group]
        if mine:
            headings.append((str(group), place))
            rows += [(fault, place + _HEADING + index) for index, fault in enumerate(mine)]
            place += _HEADING + len(mine)
    return MatrixRows(tuple(rows), tuple(headings), place)


def matrix(cells: Sequence[CellSummary], costs: Sequence[ConfigCost], theme: ThemeName) -> go.Figure:
    """Faults down, grouped by what is hit; configurations across in the order of costs, with their price. customdata of a bar begins with
    kind, variant and configuration."""
    rows = matrix_rows(list(dict.fromkeys((cell.kind, cell.variant) for cell in cells)))
    place_of = dict(rows.faults)
    figure = go.Figure()
    for number, cost in enumerate(costs):
        column = [cell for cell in cells if cell.config == cost.config]
        figure.add_trace(_column(column, number, [place_of[cell.kind, cell.variant] for cell in column], theme))
    _legend(figure, cells, theme)
    for heading, place in rows.headings:
        figure.add_annotation(
            x=0, xref="paper", y=place + 0.15, text=f"<b>{heading}</b>", showarrow=False, xanchor="left", yanchor="middle",
            font={"size": 12, "color": ink(theme)},
        )  # fmt: skip
    style(figure, theme, height=round(118 + (_TALL if len(rows.faults) <= _MANY_ROWS else _LOW) * rows.height))
    figure.update_xaxes(
        tickvals=[number + 0.5 for number in range(len(costs))],
        ticktext=[_column_head(cost) for cost in costs],
        side="top",
        showgrid=False,
        range=[0, max(1, len(costs))],
        tickfont={"size": 12},
    )
    figure.update_yaxes(
        range=[rows.height - 0.35, -0.45],
        tickvals=[place for _, place in rows.faults],
        ticktext=[f"{kind} · {variant}" for (kind, variant), _ in rows.faults],
        showgrid=False,
        tickfont={"size": 12 if len(rows.faults) <= _MANY_ROWS else 11},
    )
    figure.update_layout(
        barmode="overlay",
        bargap=0,
        clickmode="event+select",
        margin={"t": 8, "b": 40},
        legend={"y": -0.005, "yanchor": "top", "font": {"size": 12}, "itemclick": False, "itemdoubleclick": False},
    )
    return figure


def _column_head(cost: ConfigCost) -> str:
    name = cost.config.replace(", sweep", ",<br>sweep").replace(", token", ",<br>token", 1)
    return f"<b>{name}</b><br>{format_seconds(cost.canary_s_per_step)} a step"


def _column(column: Sequence[CellSummary], number: int, places: list[float], theme: ThemeName) -> go.Bar:
    return go.Bar(
        y=places,
        x=[0.97] * len(column),
        base=number + 0.015,
        width=0.88,
        orientation="h",
        text=[cell.outcome for cell in column],
        customdata=[[cell.kind, cell.variant, cell.config, _what(cell), _detail(cell)] for cell in column],
        marker={
            "color": [_ground(cell, theme) for cell in column],
            "pattern": _pattern(["/" if cell.outcome == "out of reach" else "" for cell in column], theme),
            "line": {"color": faint(theme), "width": 1},
        },
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}, "textfont": {"color": ink(theme)}},
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"size": 12, "color": ink(theme)},
        constraintext="none",
        hovertemplate="<b>%{customdata[0]} · %{customdata[1]}</b><br>%{customdata[3]}<br>%{customdata[2]}: %{text}<br>%{customdata[4]}"
        "<extra></extra>",
        showlegend=False,
    )


def _pattern(shapes: list[str] | str, theme: ThemeName) -> dict[str, object]:
    return {"shape": shapes, "size": 7, "solidity": 0.15, "fgopacity": 0.4, "fgcolor": ink(theme), "fillmode": "overlay"}


def _what(cell: CellSummary) -> str:
    return find(cell.kind, cell.variant).what


def _detail(cell: CellSummary) -> str:
    if cell.outcome == "out of reach":
        return cell.reason
    if cell.rate is None:
        return "no run found a victim for it" if cell.runs else "no run of it has ended yet"
    soon = "" if cell.latency_p50 is None else f", after {cell.latency_p50:g} steps at the median"
    return f"{cell.detected} of {cell.injected} reported{soon}"


def _legend(figure: go.Figure, cells: Sequence[CellSummary], theme: ThemeName) -> None:
    grounds = {_ground(cell, theme) for cell in cells}
    looks = [(pick(pair, theme), name, "") for _, pair, name in reversed(_RATES)]
    looks += [(pick(MISSED, theme), "missed", ""), (pick(OUT_OF_REACH, theme), "out of reach: no check here can see it", "/")]
    looks.append((pick(_NOT_RUN, theme), "not injected", ""))
    for color, name, shape in looks:
        if color in grounds:
            marker = {"color": color, "pattern": _pattern(shape, theme), "line": {"color": faint(theme), "width": 1}}
            figure.add_trace(go.Bar(x=[None], y=[None], name=name, marker=marker, orientation="h", hoverinfo="skip"))


def _ground(cell: CellSummary, theme: ThemeName) -> str:
    if cell.outcome == "out of reach":
        return pick(OUT_OF_REACH, theme)
    if cell.rate is None:
        return pick(_NOT_RUN, theme)
    if not cell.detected:
        return pick(MISSED, theme)
    return next(pick(colors, theme) for bound, colors, _ in _RATES if cell.rate < bound)


def matrix_summary(cells: Sequence[CellSummary]) -> str:
    """The matrix in one sentence, also its text for who cannot see it."""
    texts = [cell.outcome for cell in cells]
    missed, blind, idle = texts.count("missed"), texts.count("out of reach"), texts.count("no victim") + texts.count("not run")
    return (
        f"{len(cells)} cells: {len(cells) - missed - blind - idle} detected at least once, {missed} missed, {blind} out of reach, "
        f"{idle} not injected."
    )
