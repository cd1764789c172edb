"""Breakdowns that filter each other: a click on a bar or a cell keeps its rows in every view; the list of filters does the same by keyboard."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from kvcanary.analysis.crossfilter import BLOCK_SLOTS, FACETS, OTHER, Crossfilter, label_words
from kvcanary.charts import violations as charts
from kvcanary.escape import markdown_text
from kvcanary.ui import inspect_address as address
from kvcanary.ui import state, style
from kvcanary.ui.inspect_reading import Loaded
from kvcanary.ui.selection import marked
from kvcanary.units import format_count

_CONFIG = {"displayModeBar": False}
_NAMES = {
    "time": "Time", "pool": "Pool", "rank": "Rank", "tag": "Launch tag", "reason": "Reason", "position": "Position",
    "token": "Stored token", "page": "Page", "stride": "Stride", "incident": "Incident",
}  # fmt: skip
_HELP = {
    "time": "When the line was logged, in equal parts of what the log spans.",
    "pool": "Full or window pool, which number their slots apart.",
    "rank": "Who logged it: the rank by the prefix of its lines.",
    "tag": "The launch that found it, as SGLang names its checks.",
    "reason": "What did not agree, as SGLang names it; a violation can have several.",
    "position": "Place of the token in its request, in ranges.",
    "token": "The token id that the record in the slot holds.",
    "page": "Slots that share a page; where the log states no page size, groups of 64.",
    "stride": "Distance in slots to the reported slot before it.",
    "incident": "Violations that one fault explains, by their number in the list of incidents.",
}
_RANK_ROWS = 12
_BY_KEYBOARD = "The list of filters does the same by keyboard."


def filters(found: Loaded) -> None:
    """What is filtered, in one line with a way back, and every facet as a list."""
    cross, chosen = found.inspected.cross, address.filters()
    if not cross.count:
        return
    kept = int(cross.mask(chosen).sum())
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if chosen:
            words = ", ".join(f"{_NAMES[name].lower()} {_chosen_words(name, labels)}" for name, labels in chosen.items())
            style.caption(f"{format_count(kept)} of {format_count(cross.count)} violations are shown: {words}.")
            st.button("Show all", key="inspect_clear", on_click=address.clear_filters, type="tertiary", icon=":material/filter_alt_off:")
        else:
            shown = "The one violation is" if cross.count == 1 else f"All {format_count(cross.count)} violations are"
            style.caption(f"{shown} shown. Click a bar or a cell to keep its rows in every view.")
        with st.popover("Filters", icon=":material/filter_alt:", width="content"):
            for name in FACETS:
                if len(cross.facets[name].labels) > 1 or name in chosen:
                    _list(cross, name)
    missing = [f"{_NAMES[name].lower()} {label}" for name, labels in chosen.items() for label in cross.facets[name].unknown(labels)]
    if missing:
        style.verdict(f"This log has no {', '.join(missing[:5])}, so nothing is kept by that filter.", "warning")


def _chosen_words(name: str, labels: tuple[str, ...]) -> str:
    return " or ".join(label_words(name, label) for label in labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def _list(cross: Crossfilter, name: str) -> None:
    key, facet, chosen = f"inspect_filter.{name}", cross.facets[name], list(address.filters().get(name, ()))
    counts = dict(zip(facet.labels, cross.counts(name, address.filters()).tolist(), strict=True))
    # A range of time, or a label that only a link knows, stays a choice of its own.
    options = [*facet.labels, *(label for label in chosen if label not in counts)]
    st.session_state[key] = chosen
    st.multiselect(
        _NAMES[name], options, key=key, placeholder="all", help=f"{_HELP[name]} None chosen keeps all.",
        on_change=lambda: address.choose(name, st.session_state[key]),
        format_func=lambda label: f"{label_words(name, label)} · {format_count(counts[label])}" if label in counts else label,
    )  # fmt: skip


def overview(found: Loaded) -> None:
    """Timeline, and rows by rank and reason."""
    cross = found.inspected.cross
    if not cross.count:
        style.caption("No violation to draw.")
        return
    left, right = st.columns([3, 2], gap="medium")
    with left:
        _timeline(cross)
    with right:
        st.markdown("**By rank and reason**", help="Rows; a click keeps that rank and reason.")
        _matrix(cross, "rank")


def details(found: Loaded) -> None:
    """Tag by reason, positions, tokens, pages and strides."""
    cross = found.inspected.cross
    if not cross.count:
        return
    with st.container(key="inspect_breakdowns"):
        left, right = st.columns([3, 2], gap="medium")
        with left:
            st.markdown("**By launch tag and reason**", help="HEAD and TAIL are checked at each forward, SWEEP goes over cached slots.")
            _matrix(cross, "tag")
        with right:
            st.markdown("**By position in the sequence**", help="Stored positions, in powers of two.")
            _bars(cross, "position")
        columns = st.columns(3, gap="medium")
        size = cross.page_size
        heads = {
            "page": (
                f"By page of {size} slots" if size else f"By block of {BLOCK_SLOTS} slots",
                "The page size is in the log." if size else "The log does not state the page size, so these are plain blocks.",
            ),
            "stride": ("By stride", "How far a reported slot stands behind the reported slot before it. Powers of two: index arithmetic."),
            "token": ("By stored token", "Token ids in the reported records."),
        }
        for column, (name, (title, help_text)) in zip(columns, heads.items(), strict=True):
            with column:
                st.markdown(f"**{markdown_text(title)}**", help=help_text)
                _bars(cross, name)


def _timeline(cross: Crossfilter) -> None:
    facet, reasons = cross.facets["time"], cross.facets["reason"]
    st.markdown("**Timeline**", help="Drag over a stretch, or click a bar, to keep its rows.")
    counts = cross.timeline(address.filters())
    chosen = facet.chosen(address.filters().get("time", ()))
    text = charts.timeline_summary(cross.time_axis, facet.labels, reasons.labels, counts)
    figure = charts.timeline(cross.time_axis, facet.labels, reasons.labels, counts, chosen, state.theme())
    figure.update_layout(dragmode="select", selectdirection="h")
    st.plotly_chart(
        figure, key="inspect_timeline", config=_CONFIG, alt=text, selection_mode=("points", "box"),
        on_select=lambda: _take_time(facet.labels),
    )  # fmt: skip
    style.caption(text)


def _take_time(labels: tuple[str, ...]) -> None:
    places = {label: index for index, label in enumerate(labels)}
    bins = sorted({places[str(data[0])] for data in marked("inspect_timeline") if str(data[0]) in places})
    if not bins:
        address.choose("time", ())
    elif len(bins) == 1:
        address.choose("time", (labels[bins[0]],))
    else:
        address.choose("time", (f"{labels[bins[0]]}..{labels[bins[-1]]}",))


def _matrix(cross: Crossfilter, name: str) -> None:
    """A facet by reason; a click keeps both."""
    filters, rows, reasons = address.filters(), cross.facets[name], cross.facets["reason"]
    counts = cross.table(name, "reason", filters)
    busy = [place for place in range(len(rows.labels)) if counts[place].sum()][:_RANK_ROWS]
    used = [place for place in range(len(reasons.labels)) if counts[:, place].sum()]
    if not busy:
        style.caption("No row is left by the other filters.")
        return
    kept = np.outer(_chosen(cross, name), _chosen(cross, "reason")) if filters.keys() & {name, "reason"} else np.zeros_like(counts)
    key, cells = f"inspect_matrix.{name}", counts[np.ix_(busy, used)]
    down, across = [rows.labels[place] for place in busy], [reasons.labels[place] for place in used]
    most = charts.ranked([f"{row} {reason}" for row in down for reason in across], cells.ravel())
    st.plotly_chart(
        charts.tag_matrix(down, across, cells, kept[np.ix_(busy, used)].astype(bool), state.theme()),
        key=key, config=_CONFIG, selection_mode="points", on_select=lambda: _take_cell(key, name),
        alt=f"Rows by {_NAMES[name].lower()} and reason: {most}. {_BY_KEYBOARD}",
    )  # fmt: skip
    if len(rows.labels) > len(busy):
        style.caption(f"The first {format_count(len(busy))} of {format_count(len(rows.labels))}; the list of filters has all.")


def _chosen(cross: Crossfilter, name: str) -> Any:
    """Which labels a facet's filter keeps; all of them without a filter."""
    labels = address.filters().get(name, ())
    facet = cross.facets[name]
    return facet.chosen(labels) if labels else np.ones(len(facet.labels), dtype=bool)


def _take_cell(key: str, name: str) -> None:
    cells = marked(key)
    address.choose(name, (str(cell[0]) for cell in cells))
    address.choose("reason", (str(cell[1]) for cell in cells))


def _bars(cross: Crossfilter, name: str) -> None:
    facet, counts = cross.facets[name], cross.counts(name, address.filters())
    # The rest together is larger than any one value and would make all of them look alike.
    shown = np.flatnonzero(counts * np.array([label != OTHER for label in facet.labels], dtype=np.int64))
    if not len(shown):
        style.caption("Nothing to count." if not facet.labels else "No row is left by the other filters.")
        return
    key, keys = f"inspect_bars.{name}", [facet.labels[place] for place in shown]
    chosen, words = facet.chosen(address.filters().get(name, ()))[shown], [label_words(name, label) for label in keys]
    st.plotly_chart(
        charts.bars(words, keys, counts[shown], chosen, state.theme()), key=key, config=_CONFIG,
        selection_mode="points", on_select=lambda: address.choose(name, (str(data[0]) for data in marked(key))),
        alt=f"Rows by {_NAMES[name].lower()}: {charts.ranked(words, counts[shown])}. {_BY_KEYBOARD}",
    )  # fmt: skip
    if rest := int(counts.sum() - counts[shown].sum()):
        style.caption(f"{format_count(rest)} rows have other values.")
