"""The detection matrix of a campaign: one bar of unit length per cell, because bars can be hatched and clicked, heatmap cells cannot."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvcanary.charts.theme import ThemeName, faint, ink, pick, style
from kvcanary.lab.campaign import CellSummary

# Rate below the bound -> ground; lightness falls with the rate, so that the order also shows in greyscale.
_RATES: tuple[tuple[float, tuple[str, str]], ...] = (
    (0.5, ("#f3d9a0", "#6b5312")),
    (0.9, ("#bcd9ee", "#1f4f78")),
    (1.01, ("#7db4dd", "#2c6ea6")),
)
_MISSED, _OUT_OF_REACH, _NOT_RUN = ("#f0a48c", "#8f3315"), ("#e8eaee", "#272c35"), ("#ffffff", "#15191f")


def matrix(cells: Sequence[CellSummary], theme: ThemeName) -> go.Figure:
    """Faults down, configurations across; customdata of each bar is kind, variant, configuration."""
    configs = list(dict.fromkeys(cell.config for cell in cells))
    figure = go.Figure()
    for number, config in enumerate(configs):
        column = [cell for cell in cells if cell.config == config]
        hatched = ["/" if cell.outcome == "out of reach" else "" for cell in column]
        figure.add_trace(
            go.Bar(
                y=[f"{cell.kind}.{cell.variant}" for cell in column],
                x=[1] * len(column),
                base=number,
                orientation="h",
                text=[cell.outcome for cell in column],
                customdata=[
                    [cell.kind, cell.variant, cell.config, cell.reason or f"{cell.detected} of {cell.injected}"] for cell in column
                ],
                marker={
                    "color": [_ground(cell, theme) for cell in column],
                    "pattern": {
                        "shape": hatched,
                        "size": 9,
                        "solidity": 0.12,
                        "fgopacity": 0.45,
                        "fgcolor": ink(theme),
                        "fillmode": "overlay",
                    },
                    "line": {"color": faint(theme), "width": 1},
                },
                selected={"marker": {"opacity": 1}},
                unselected={"marker": {"opacity": 1}, "textfont": {"color": ink(theme)}},
                textposition="inside",
                insidetextanchor="middle",
                insidetextfont={"size": 11, "color": ink(theme)},
                hovertemplate="%{y}<br>%{customdata[2]}: %{text}<br>%{customdata[3]}<extra></extra>",
                showlegend=False,
            )
        )
    rows = len({(cell.kind, cell.variant) for cell in cells})
    style(figure, theme, height=90 + 26 * rows)
    figure.update_xaxes(
        tickvals=[n + 0.5 for n in range(len(configs))], ticktext=[c.replace(", sweep", ",<br>sweep") for c in configs], side="top"
    )
    figure.update_xaxes(showgrid=False, range=[0, len(configs)])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(barmode="overlay", bargap=0.08, clickmode="event+select", margin={"t": 60})
    return figure


def _ground(cell: CellSummary, theme: ThemeName) -> str:
    text = cell.outcome
    if text == "out of reach":
        return pick(_OUT_OF_REACH, theme)
    if cell.rate is None:
        return pick(_NOT_RUN, theme)
    if not cell.detected:
        return pick(_MISSED, theme)
    return next(pick(colors, theme) for bound, colors in _RATES if cell.rate < bound)


def matrix_summary(cells: Sequence[CellSummary]) -> str:
    """The matrix in one sentence, also its text for who cannot see it."""
    texts = [cell.outcome for cell in cells]
    missed, blind, idle = texts.count("missed"), texts.count("out of reach"), texts.count("no victim")
    return (
        f"{len(cells)} cells: {len(cells) - missed - blind - idle} detected at least once, {missed} missed, {blind} out of reach, "
        f"{idle} without a victim."
    )
