"""Measured rates beside the roofs of the machine: which one is touched, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from kvcanary.charts.theme import SERIES, ThemeName, pick, style
from kvcanary.lab.tables import share_text
from kvcanary.units import format_count, format_rate

_LOOKS = {"memory": "dash", "compute": "dot", "chain latency": "dashdot", "launch": "longdash"}


def roofline(rows: pd.DataFrame, limits: Mapping[str, float], op: str, theme: ThemeName) -> go.Figure:
    """Items per second by items of one operation, log-log, with a line per limit; rows as analysis.roofline.roofline_variant gives them."""
    rows = rows[rows["op"] == op]
    what = "tokens" if op == "stamp" else "slots"
    figure = go.Figure()
    for name, dash in _LOOKS.items():
        seconds = rows[f"{name}_s"].astype(float)
        if seconds.isna().all():
            continue
        rate = rows["items"] / seconds
        figure.add_trace(
            go.Scatter(
                x=rows["items"], y=rate, name=f"{name} alone", mode="lines" if len(rows) > 1 else "markers",
                line={"color": pick(SERIES["bound"], theme), "width": 1.5, "dash": dash},
                customdata=[[format_count(int(items)), format_rate(float(value), what)] for items, value in zip(rows["items"], rate, strict=True)],
                hovertemplate=f"{name} alone would allow %{{customdata[1]}}<br>at %{{customdata[0]}} {what}<extra></extra>",
            )
        )  # fmt: skip
    if op == "stamp" and limits.get("chain_step_s") and len(rows):
        one_chain = 1 / limits["chain_step_s"]
        figure.add_trace(
            go.Scatter(
                x=[rows["items"].min(), rows["items"].max()], y=[one_chain, one_chain], name=f"one chain: {format_rate(one_chain, what)}",
                mode="lines", line={"color": pick(SERIES["earlier"], theme), "width": 1}, hoverinfo="name",
            )
        )  # fmt: skip
    color = pick(SERIES[op], theme)
    figure.add_trace(
        go.Scatter(
            x=rows["items"], y=rows["items_per_s"], name=f"{op}, measured", mode="lines+markers",
            line={"color": color, "width": 2.5}, marker={"size": 9, "symbol": "circle" if op == "stamp" else "square"},
            customdata=[
                [format_count(int(items)), format_rate(float(rate), what), limit, share_text(float(share))]
                for items, rate, limit, share in zip(rows["items"], rows["items_per_s"], rows["limit"], rows["share"], strict=True)
            ],
            hovertemplate=(
                f"%{{customdata[0]}} {what}: %{{customdata[1]}}<br>held by %{{customdata[2]}}, share of the time: %{{customdata[3]}}<extra></extra>"
            ),
        )
    )  # fmt: skip
    style(figure, theme, height=340)
    figure.update_xaxes(type="log", title=f"{what} per launch", dtick=1, exponentformat="SI", minor={"showgrid": False})
    figure.update_yaxes(type="log", title=f"{what} per second", dtick=1, exponentformat="SI", range=_decades(rows))
    figure.update_layout(legend={"y": 1.0, "yanchor": "bottom"}, margin={"t": 60})
    return figure


def _decades(rows: pd.DataFrame) -> list[float]:
    """Powers of ten that show the measured rates and the roof that is nearest at each size; roofs far above may leave the plot."""
    if rows.empty:
        return [0.0, 1.0]
    nearest = rows["items_per_s"] / rows["share"].clip(lower=0.01)
    return [math.log10(rows["items_per_s"].min() / 3), math.log10(max(nearest.max(), rows["items_per_s"].max()) * 3)]
