"""One look for every chart: status colours with letters, series colours, and the shared figure layout.

The status colours stay apart under the common colour-vision deficiencies and in greyscale, where their lightness differs; each
also has a letter, so that no chart or table depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from kvcanary.layout import SlotStatus

ThemeName = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class StatusLook:
    """Colour on light and dark ground, letter and words of one slot status."""

    light: str
    dark: str
    letter: str
    label: str

    def color(self, theme: ThemeName) -> str:
        """The colour for a theme."""
        return self.light if theme == "light" else self.dark


STATUS_LOOKS: dict[SlotStatus, StatusLook] = {
    SlotStatus.FREE: StatusLook("#e8eaee", "#272c35", "·", "free"),
    SlotStatus.RESERVED: StatusLook("#6d7684", "#5d6675", "P", "reserved"),
    SlotStatus.CLEAN: StatusLook("#7db4dd", "#2c6ea6", "o", "clean"),
    SlotStatus.SKIPPED: StatusLook("#e8b13a", "#d39b22", "s", "not verified"),
    SlotStatus.INJECTED: StatusLook("#7a3b9e", "#b583d6", "I", "injected, not reported here"),
    SlotStatus.CORRUPTED: StatusLook("#d1390a", "#ff6a3d", "X", "corrupted"),
}

SERIES: dict[str, tuple[str, str]] = {
    "stamp": ("#0b62a8", "#6cb2f0"),
    "verify": ("#8a5a00", "#f0b95a"),
    "bound": ("#7b8492", "#98a2b1"),
    "earlier": ("#7a3b9e", "#c99ae6"),
}

# The parts of the canary share one hue that is no status colour, so that they read as one thing and still tell apart in greyscale.
PART_COLORS: dict[str, tuple[str, str]] = {
    "weights": ("#8d97a6", "#6c7686"),
    "kv": ("#7db4dd", "#2c6ea6"),
    "state": ("#9a7b56", "#8f7350"),
    "draft": ("#b9d5ec", "#1d4f7c"),
    "canary buffers": ("#0f7f6b", "#27b39a"),
    "canary workspace": ("#4fb3a0", "#7fd6c4"),
    "canary ring": ("#a5d8cd", "#1d6f61"),
    "canary tables": ("#07473c", "#bfeae1"),
    "tables": ("#7a3b9e", "#b583d6"),
    "graphs": ("#c9a227", "#a98a2b"),
    "left": ("#eef0f3", "#232830"),
}
OTHER_PART = ("#4a5464", "#aab3c0")


def pick(pair: tuple[str, str], theme: ThemeName) -> str:
    """The light or dark one of a pair of colours."""
    return pair[0] if theme == "light" else pair[1]


def ink(theme: ThemeName) -> str:
    """Text colour on the page's own ground."""
    return "#1d2430" if theme == "light" else "#e6e9ee"


def faint(theme: ThemeName) -> str:
    """Grid lines and quiet outlines."""
    return "#d5d9e0" if theme == "light" else "#3a414d"


def layout(theme: ThemeName, *, height: int) -> dict[str, Any]:
    """Margins, fonts, grid and a legend above the plot, with both axes; the ground stays the page's own.

    For a figure that is built in one go, go.Figure(traces, layout): each update of one that stands costs Plotly milliseconds.
    """
    return {**_frame(theme, height), "xaxis": _axis(theme), "yaxis": _axis(theme)}


def style(
    figure: go.Figure,
    theme: ThemeName,
    *,
    height: int,
    xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None,
    **own: Any,
) -> go.Figure:
    """Apply `layout` to a figure that stands, whatever axes it has; `xaxis` and `yaxis` go into each of them, `own` into the layout.

    One property at a time: update_layout and its kind make an event of the whole for a browser that is not there, at four times the cost.
    """
    frame = _frame(theme, height)
    for name, value in {**frame, **own}.items():
        figure.layout[name] = {**frame[name], **value} if name in frame and isinstance(value, dict) else value
    for axes, more in ((figure.select_xaxes(), xaxis), (figure.select_yaxes(), yaxis)):
        for axis in axes:
            for name, value in {**_axis(theme), **(more or {})}.items():
                axis[name] = value
    return figure


def _frame(theme: ThemeName, height: int) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 36, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 13, "color": ink(theme)},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "hoverlabel": {"align": "left"},
        "dragmode": False,
    }


def _axis(theme: ThemeName) -> dict[str, Any]:
    return {"gridcolor": faint(theme), "zeroline": False, "automargin": True}
