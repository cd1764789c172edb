"""Violations of a log over time and by kind, drawn from counts, so that a million rows weigh what a hundred do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from kvcanary.charts.theme import FEW, MANY, REASONS, SERIES, ThemeName, ink, pick, style
from kvcanary.escape import chart_text
from kvcanary.units import format_count

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KINDS = 6
OTHER = "other"
# They carry in greyscale what the colours of the reasons say.
_PATTERNS = ("", "/", "x", ".", "-", "|", "+")
_FADED = 0.35
_FEW = 5


def main_reasons(labels: Sequence[str], counts: Counts) -> tuple[list[str], Counts]:
    """The most frequent columns of counts [bins, labels], the rest together as 'other'; empty columns are left out."""
    totals = counts.sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    order = order[totals[order] > 0]
    main, rest = order[:_KINDS], order[_KINDS:]
    names, columns = [labels[index] for index in main], counts[:, main]
    if len(rest):
        names, columns = [*names, OTHER], np.column_stack([columns, counts[:, rest].sum(axis=1)])
    return names, columns


def timeline(axis: str, bins: Sequence[str], reasons: Sequence[str], counts: Counts, chosen: Mask, theme: ThemeName) -> go.Figure:
    """Stacked bars per bin, one colour and pattern per reason; counts [bins, reasons]. Bins that are not chosen fade, when any is.

    Each bar carries its bin as customdata.
    """
    names, columns = main_reasons(reasons, counts)
    opacity = np.where(chosen, 1.0, _FADED) if chosen.any() else np.ones(len(bins))
    figure = go.Figure()
    for number, reason in enumerate(names):
        label = chart_text(reason)
        figure.add_trace(
            go.Bar(
                x=list(bins) if axis == "time" else [int(start) for start in bins],
                y=columns[:, number],
                customdata=[[name] for name in bins],
                name=label,
                hovertemplate=f"%{{x}}<br>{label}: %{{y}}<extra></extra>",
                marker={"color": REASONS[number], "opacity": opacity, "pattern": {"shape": _PATTERNS[number], "size": 5}},
                unselected={"marker": {"opacity": 1}},
            )
        )
    # Plotly would cut the second of a lone bin, and a violation, into parts.
    alone: dict[str, Any] = {"tickvals": list(bins)} if axis == "time" and len(bins) == 1 else {}
    whole: dict[str, Any] = {"dtick": 1} if columns.sum(axis=1).max(initial=0) <= _FEW else {}
    return style(
        figure, theme, height=240, barmode="stack", showlegend=True, bargap=0.06, clickmode="event+select", separators=".\u202f",
        xaxis={"title": None if axis == "time" else axis, "type": "date" if axis == "time" else "linear", **alone},
        yaxis={"title": "violations", "tickformat": ",d", "rangemode": "tozero", **whole},
    )  # fmt: skip


def timeline_summary(axis: str, bins: Sequence[str], reasons: Sequence[str], counts: Counts) -> str:
    """The timeline in words."""
    totals, kinds = counts.sum(axis=1), counts.sum(axis=0)
    if not totals.sum():
        return "No violation is listed."
    first, most, kind = int(np.flatnonzero(totals)[0]), int(totals.argmax()), int(kinds.argmax())
    if totals.sum() == 1:
        return f"One violation, at {axis} {bins[first]}: {reasons[kind]}."
    return (
        f"{format_count(int(totals.sum()))} violations by {axis}, from {bins[first]} on; most ({format_count(int(totals[most]))}) at "
        f"{bins[most]}; most often {reasons[kind]} ({format_count(int(kinds[kind]))})."
    )


def tag_matrix(tags: Sequence[str], reasons: Sequence[str], counts: Counts, chosen: Mask, theme: ThemeName) -> go.Figure:
    """Launch tags by reasons, counts and chosen [tags, reasons]; each cell that has rows carries (tag, reason) as customdata."""
    places = np.argwhere(counts > 0)
    x, y = [_broken(chart_text(reason)) for reason in reasons], [chart_text(tag) for tag in tags]
    shade = np.log10(np.maximum(counts, 0) + 1.0)
    figure = go.Figure(
        go.Heatmap(
            z=shade,
            x=x,
            y=y,
            colorscale=[[0, pick(FEW, theme)], [1, pick(MANY, theme)]],
            zmin=0,
            zmax=max(1.0, float(shade.max(initial=0))),
            showscale=False,
            xgap=2,
            ygap=2,
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[x[column] for _, column in places],
            y=[y[row] for row, _ in places],
            text=[f"<b>{format_count(int(counts[row, column]))}</b>" for row, column in places],
            customdata=[[tags[row], reasons[column]] for row, column in places],
            mode="markers+text",
            marker={
                "symbol": "square-open", "size": 28, "color": ink(theme),
                "opacity": [1.0 if chosen[row, column] else 0.01 for row, column in places], "line": {"width": 2},
            },
            textfont={"size": 12, "color": ink(theme)},
            unselected={"textfont": {"color": ink(theme)}},
            hovertemplate="%{y}<br>%{x}<br>%{text} rows<extra></extra>",
        )
    )  # fmt: skip
    return style(
        figure, theme, height=100 + 30 * max(2, len(tags)), showlegend=False, clickmode="event+select",
        xaxis={"showgrid": False, "side": "top", "tickangle": 0}, yaxis={"showgrid": False, "autorange": "reversed"},
    )  # fmt: skip


def ranked(names: Sequence[str], counts: Counts) -> str:
    """The largest of some counts in words: 'TP0 12, TP1 3 and 2 more'."""
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())].tolist()
    words = ", ".join(f"{names[place]} {format_count(int(counts[place]))}" for place in order[:_FEW])
    more = f" and {format_count(len(order) - _FEW)} more" if len(order) > _FEW else ""
    return f"{words}{more}" if words else "no row"


def _broken(reason: str) -> str:
    """A label over several short lines."""
    return reason.replace("+", "+<br>").replace("verify_", "verify_<br>")


def bars(labels: Sequence[str], keys: Sequence[str], counts: Counts, chosen: Mask, theme: ThemeName) -> go.Figure:
    """Rows per label as horizontal bars, in the order given; each carries its key as customdata, and those not chosen fade."""
    opacity = np.where(chosen, 1.0, _FADED) if chosen.any() else np.ones(len(keys))
    figure = go.Figure(
        go.Bar(
            x=counts,
            y=[chart_text(label) for label in labels],
            orientation="h",
            customdata=[[key] for key in keys],
            text=[format_count(int(count)) for count in counts],
            textposition="outside",
            cliponaxis=False,
            marker={"color": pick(SERIES["stamp"], theme), "opacity": opacity, "line": {"width": 0}},
            unselected={"marker": {"opacity": 1}},
            hovertemplate="%{y}: %{text} rows<extra></extra>",
        )
    )
    return style(
        figure, theme, height=20 + 24 * max(2, len(keys)), bargap=0.25, clickmode="event+select", margin={"l": 8, "r": 56, "t": 4, "b": 4},
        xaxis={"showticklabels": False, "showgrid": False, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )  # fmt: skip
