"""One look for charts, pages and reports: every colour under the name of its role, status letters, and the shared figure layout.

A colour that looks different on light and dark ground is a pair (light, dark). The status colours stay apart under the common
colour-vision deficiencies and in greyscale, where their lightness differs; each also has a letter, so that no chart or table depends
on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from kvcanary.layout import SlotStatus

ThemeName = Literal["light", "dark"]
Pair = tuple[str, str]

# Text and ground. A report is a page of its own, a little darker at night than the dashboard with its panels.
INK: Pair = ("#1d2430", "#e6e9ee")
QUIET: Pair = ("#4a5464", "#aab3c0")
FAINT: Pair = ("#d5d9e0", "#3a414d")
GROUND: Pair = ("#ffffff", "#14171c")
SECOND_GROUND: Pair = ("#f4f5f7", "#20252d")
REPORT_GROUND: Pair = ("#ffffff", "#0f1319")
CLEAR: Pair = ("rgba(0,0,0,0)", "rgba(0,0,0,0)")

# What is well, and what is not; dark enough for text.
GOOD: Pair = ("#1b6b3a", "#7fd6a0")
BAD: Pair = ("#a52a0c", "#ff9270")
WARNING: Pair = ("#7a5200", "#f0b95a")

# Colours as the style sheets name them: of the dashboard, and of a report.
PAGE: dict[str, Pair] = {
    "error": BAD,
    "warning": WARNING,
    "note": QUIET,
    "source": ("#0b5a99", "#8cc4f7"),
    "pass": GOOD,
    "ink": INK,
    "rule": FAINT,
    "ground": GROUND,
    "shade": ("#9aa3b0", "#59626f"),
    "on-primary": ("#ffffff", "#10141a"),
}
REPORT: dict[str, Pair] = {
    "ground": REPORT_GROUND, "ink": INK, "quiet": QUIET, "rule": FAINT, "pass": GOOD, "error": BAD, "warning": WARNING, "note": QUIET,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StatusLook:
    """Colour on light and dark ground, letter and words of one slot status."""

    light: str
    dark: str
    letter: str
    label: str

    @property
    def pair(self) -> Pair:
        """Both colours, as `pick` takes them."""
        return self.light, self.dark

    def color(self, theme: ThemeName) -> str:
        """The colour for a theme."""
        return pick(self.pair, theme)


STATUS_LOOKS: dict[SlotStatus, StatusLook] = {
    SlotStatus.FREE: StatusLook("#e8eaee", "#272c35", "·", "free"),
    SlotStatus.RESERVED: StatusLook("#6d7684", "#5d6675", "P", "reserved"),
    SlotStatus.CLEAN: StatusLook("#7db4dd", "#2c6ea6", "o", "clean"),
    SlotStatus.SKIPPED: StatusLook("#e8b13a", "#d39b22", "s", "not verified"),
    SlotStatus.INJECTED: StatusLook("#7a3b9e", "#b583d6", "I", "injected, not reported here"),
    SlotStatus.CORRUPTED: StatusLook("#d1390a", "#ff6a3d", "X", "corrupted"),
}

SERIES: dict[str, Pair] = {
    "stamp": ("#0b62a8", "#6cb2f0"),
    "verify": ("#8a5a00", "#f0b95a"),
    "bound": ("#7b8492", "#98a2b1"),
    "earlier": ("#7a3b9e", "#c99ae6"),
}

# The parts of the canary share one hue that is no status colour, so that they read as one thing and still tell apart in greyscale.
PART_COLORS: dict[str, Pair] = {
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
OTHER_PART = QUIET

# Runs beside each other, and configurations by price, in their order; charts tell them apart by dash and mark as well.
RUNS: tuple[Pair, ...] = (SERIES["stamp"], SERIES["earlier"], SERIES["verify"], ("#2f8f77", "#57b39a"), QUIET)
CONFIGS: tuple[Pair, ...] = (SERIES["bound"], SERIES["stamp"], SERIES["verify"], GOOD, SERIES["earlier"], BAD)

# Cells of the detection matrix: found below half, mostly, always; lightness falls with the rate, so that the order also shows in greyscale.
FOUND: tuple[Pair, Pair, Pair] = (("#dbeaf6", "#1c3a54"), ("#a9cfea", "#235a8a"), ("#6aa9d8", "#3180c0"))
MISSED: Pair = ("#f0a48c", "#a23a17")
OUT_OF_REACH = STATUS_LOOKS[SlotStatus.FREE].pair

# The map of a replay: who holds a slot, marks of damage and reports, and letters that stay in the background.
OWNERS: tuple[Pair, ...] = (
    ("#9ecae9", "#25608f"),
    ("#ffd08a", "#8a5a12"),
    ("#a8dcc4", "#1f6f55"),
    ("#e7b7d4", "#84416a"),
    ("#c9c3ec", "#53499a"),
    ("#f2b8a0", "#8c442a"),
    ("#cfe08f", "#5d6f17"),
    ("#8fd8e4", "#1d6b78"),
)
NO_OWNER: Pair = ("#f3f4f6", "#1d222a")
TREE_OWNER: Pair = ("#cdd3dc", "#434c5a")
INJECTED_MARK: Pair = ("#7a1fa8", "#d9a6f5")
REPORTED_MARK: Pair = ("#b52a00", "#ff8a5e")
CALM_LETTER: Pair = ("rgba(29,36,48,0.45)", "rgba(230,233,238,0.45)")

# Okabe and Ito's set, and a grey for the rest: apart under the common colour-vision deficiencies, on both grounds.
REASONS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8d97a6")
# Few rows and many, as a shade.
FEW: Pair = SECOND_GROUND
MANY: Pair = ("#e89b7d", "#8c3a1e")


def pick(pair: Pair, theme: ThemeName) -> str:
    """The light or dark one of a pair of colours."""
    return pair[0] if theme == "light" else pair[1]


def ink(theme: ThemeName) -> str:
    """Text colour on the page's own ground."""
    return pick(INK, theme)


def faint(theme: ThemeName) -> str:
    """Grid lines and quiet outlines."""
    return pick(FAINT, theme)


def css_variables(colors: Mapping[str, Pair], theme: ThemeName, prefix: str = "--") -> str:
    """The colours as custom properties of a style sheet: '--ink: #1d2430; --rule: #d5d9e0;'."""
    return " ".join(f"{prefix}{name}: {pick(pair, theme)};" for name, pair in colors.items())


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
        "paper_bgcolor": pick(CLEAR, theme),
        "plot_bgcolor": pick(CLEAR, theme),
        "font": {"size": 13, "color": ink(theme)},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "hoverlabel": {"align": "left"},
        "dragmode": False,
    }


def _axis(theme: ThemeName) -> dict[str, Any]:
    return {"gridcolor": faint(theme), "zeroline": False, "automargin": True}
