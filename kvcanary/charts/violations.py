"""Violations of a log over time and by kind, aggregated so that a million rows weigh what a hundred do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from kvcanary.charts.theme import ThemeName, style
from kvcanary.escape import chart_text
from kvcanary.layout import SlotStatus
from kvcanary.units import format_count

BINS = 120
_KINDS = 6
OTHER = "other"
# Okabe and Ito's set: apart under the common colour-vision deficiencies; patterns carry the same in greyscale.
_COLORS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8d97a6")
_PATTERNS = ("", "/", "x", ".", "-", "|", "+")


def timeline_counts(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Name of the axis and counts [bin, reason]: by time, else by step, else in the order read; at most BINS bins, rows without are left out.

    frame: columns time, step and reasons of ViolationTable.frame(). The six most frequent reasons keep a column, the rest share 'other'.
    """
    if frame.empty:
        return "order in the log", pd.DataFrame()
    reasons = _main_reasons(frame["reasons"])
    if frame["time"].notna().any():
        name, values = "time", frame["time"]
    elif frame["step"].notna().any():
        name, values = "step", frame["step"]
    else:
        name, values = "order in the log", pd.Series(np.arange(len(frame)), index=frame.index)
    known = values.notna()
    seconds = values[known].astype("int64").to_numpy()
    low, width = int(seconds.min()), max(1, -(-(int(seconds.max()) - int(seconds.min()) + 1) // BINS))
    starts = low + (seconds - low) // width * width
    index = pd.Series(starts).astype(values.dtype) if name == "time" else pd.Series(starts)
    return name, pd.crosstab(index.to_numpy(), reasons[known.to_numpy()])


def _main_reasons(reasons: pd.Series) -> npt.NDArray[np.object_]:
    texts = reasons.astype(str).to_numpy(dtype=object)
    main = reasons.value_counts().index[:_KINDS].astype(str)
    return np.where(np.isin(texts, main), texts, OTHER)


def timeline(frame: pd.DataFrame, theme: ThemeName) -> go.Figure:
    """Stacked bars, one colour and pattern per reason."""
    name, counts = timeline_counts(frame)
    figure = go.Figure()
    for number, reason in enumerate(counts.columns):
        figure.add_trace(
            go.Bar(
                x=counts.index, y=counts[reason], name=chart_text(reason), hovertemplate=f"%{{x}}<br>{chart_text(reason)}: %{{y}}<extra></extra>",
                marker={"color": _COLORS[number], "pattern": {"shape": _PATTERNS[number], "size": 5}},
            )
        )  # fmt: skip
    style(figure, theme, height=280)
    figure.update_layout(barmode="stack", showlegend=True)
    figure.update_xaxes(title=name)
    figure.update_yaxes(title="violations", tickformat=",d", rangemode="tozero")
    return figure


def timeline_summary(frame: pd.DataFrame) -> str:
    """The timeline in words."""
    if frame.empty:
        return "No violation is listed."
    name, counts = timeline_counts(frame)
    totals = counts.sum(axis=1)
    top = frame["reasons"].value_counts()
    return (
        f"{format_count(len(frame))} violations by {name}, from {counts.index[0]} on; most ({format_count(int(totals.max()))}) at "
        f"{totals.idxmax()}; most often {top.index[0]} ({format_count(int(top.iloc[0]))})."
    )


def by_tag(frame: pd.DataFrame) -> list[tuple[str, str, int, int]]:
    """Launch tag, reasons, rows and distinct slots, most rows first."""
    if frame.empty:
        return []
    grouped = (
        frame.groupby(["launch_tag", "reasons"], observed=True)["slot_idx"].agg(["size", "nunique"]).sort_values("size", ascending=False)
    )
    return [(str(tag), str(reason), int(rows), int(slots)) for (tag, reason), rows, slots in grouped.itertuples()]


def slot_counts(frame: pd.DataFrame) -> pd.DataFrame:
    """slot, rows, ranks, first line of each reported slot, in slot order."""
    known = frame[frame["slot_idx"].notna()]
    grouped = known.groupby("slot_idx").agg(rows=("line", "size"), ranks=("rank", "nunique"), line=("line", "first"))
    return grouped.reset_index(names="slot")


def pool_status(slots: npt.NDArray[np.int64], num_slots: int) -> npt.NDArray[np.uint8]:
    """Status uint8 [num_slots]: CORRUPTED where reported, FREE where the log lists nothing; slots outside are left out."""
    status = np.full(num_slots, SlotStatus.FREE, dtype=np.uint8)
    status[slots[(slots >= 0) & (slots < num_slots)]] = SlotStatus.CORRUPTED
    return status
