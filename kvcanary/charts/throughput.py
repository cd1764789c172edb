"""Throughput of stamp and verify beside the bound that moves the same bytes."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvcanary.charts.theme import SERIES, ThemeName, pick, style
from kvcanary.lab.tables import forward_text, share_text
from kvcanary.units import format_rate, format_seconds

_OPS = (("verify", "slots", "square"), ("stamp", "tokens", "circle"))


def by_batch(frame: pd.DataFrame, theme: ThemeName, earlier: pd.DataFrame | None = None, earlier_name: str = "") -> go.Figure:
    """Items per second by batch, log-log: medians with p20 to p80 as bars, bounds dashed, an earlier run dotted. Rows as decode_variant."""
    figure = go.Figure()
    for op, what, symbol in _OPS:
        rows = frame[frame["op"] == op]
        color = pick(SERIES[op], theme)
        rate = rows["items"] / rows["p50_s"]
        figure.add_trace(
            go.Scatter(
                x=rows["batch"], y=rate, name=f"{op}, {what}/s", mode="lines+markers",
                line={"color": color, "width": 2}, marker={"symbol": symbol, "size": 9},
                error_y={
                    "type": "data", "symmetric": False, "thickness": 1, "color": color,
                    "array": rows["items"] / rows["p20_s"] - rate, "arrayminus": rate - rows["items"] / rows["p80_s"],
                },
                customdata=[[format_rate(value, what), format_seconds(p50)] for value, p50 in zip(rate, rows["p50_s"], strict=True)],
                hovertemplate=f"{op}, batch %{{x}}<br>%{{customdata[0]}}<br>median %{{customdata[1]}}<extra></extra>",
            )
        )  # fmt: skip
        bound = rows["items"] / rows["bound_p50_s"]
        figure.add_trace(
            go.Scatter(
                x=rows["batch"], y=bound, name=f"{op} bound (same bytes, no hash)", mode="lines",
                line={"color": color, "width": 1.5, "dash": "dash"},
                customdata=[[format_rate(value, what)] for value in bound],
                hovertemplate=f"{op} bound, batch %{{x}}<br>%{{customdata[0]}}<extra></extra>",
            )
        )  # fmt: skip
        if earlier is not None and len(earlier):
            before = earlier[earlier["op"] == op]
            figure.add_trace(
                go.Scatter(
                    x=before["batch"], y=before["items"] / before["p50_s"],
                    name=f"{op}, {earlier_name}", mode="lines+markers",
                    line={"color": pick(SERIES["earlier"], theme), "width": 1.5, "dash": "dot"},
                    marker={"symbol": f"{symbol}-open", "size": 8},
                    hovertemplate=f"{op}, {earlier_name}, batch %{{x}}: %{{y:.3s}}/s<extra></extra>",
                )
            )  # fmt: skip
    style(figure, theme, height=380)
    figure.update_xaxes(type="log", title="batch, requests", dtick=1, minor={"showgrid": False})
    figure.update_yaxes(type="log", title="per second", dtick=1, exponentformat="SI")
    figure.update_layout(legend={"y": 1.0, "yanchor": "bottom"}, margin={"t": 50})
    return figure


def summary(frame: pd.DataFrame, step_time_s: float | None = None) -> str:
    """The chart in words: the best rate of each operation and its share of the bound, and one forward at the largest batch."""
    if frame.empty:
        return "No decode point has been measured."
    records = frame.to_dict("records")
    parts = []
    for op, what, _ in _OPS:
        rows = [row for row in records if row["op"] == op]
        if rows:
            best = max(rows, key=lambda row: float(row["items_per_s"]))
            rate = format_rate(float(best["items_per_s"]), what)
            parts.append(f"{op} reaches {rate} at batch {int(best['batch'])} (share of its bound: {share_text(best['share_of_bound'])})")
    last = max(records, key=lambda row: int(row["batch"]))
    if pd.isna(last["forward_s"]):
        return "; ".join(parts) + "."
    forward = forward_text(float(last["forward_s"]), step_time_s)
    return f"{'; '.join(parts)}; the canary of one forward (HEAD and TAIL) takes {forward} at batch {int(last['batch'])}."
