"""The slot map of a log: the pool, one map per rank, single slots around the chosen one, and the same as a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from kvcanary.analysis import slot_map
from kvcanary.analysis.inspected import Inspected, Pool
from kvcanary.charts import slots as charts
from kvcanary.errors import ConfigError
from kvcanary.layout import SlotStatus
from kvcanary.ui import inspect_address as address
from kvcanary.ui import state, style
from kvcanary.ui.inspect_reading import Loaded
from kvcanary.ui.inspect_view import take_row
from kvcanary.ui.selection import marked
from kvcanary.units import format_count, parse_integer

_CONFIG = {"displayModeBar": False}
_TOGETHER, _EACH = "all ranks together", "one map per rank"
_SMALL_COLUMNS, _SMALL_ROWS = 96, 40
_MAPS = 16
_TABLE_LIMIT = 500
_TYPED = "inspect_typed"


def draw(found: Loaded) -> None:
    """Map and table of the pool that is looked at; a mark, a row or a number opens a slot."""
    inspected = found.inspected
    if not inspected.pools:
        return
    kept = inspected.cross.mask(address.filters())
    st.markdown(
        "**Slot map**",
        help="Marked tiles hold a reported slot. Grey: this log lists no violation there; it does not say that it was checked.",
    )
    if not inspected.statuses and not (inspected.cross.slots[kept] >= 0).any():
        style.caption("No record names a slot under these filters.")
        return
    ranks = inspected.cross.facets["rank"].labels
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        pool = _pool_choice(inspected)
        choice = _TOGETHER
        if len(ranks) > 1:
            choice = st.selectbox(
                "Map of", [_TOGETHER, _EACH, *ranks], key="inspect_map_of", persist_state="session", width=240,
                help="Each rank has a pool of its own: draw all over one another, a small map of each, or one rank alone.",
            )  # fmt: skip
        st.text_input(
            "Go to slot", key=_TYPED, placeholder=f"0 to {format_count(pool.num_slots - 1)}", on_change=_take_typed, width=200,
            help="Shows the slots around this number one by one, and every record that names it.",
        )  # fmt: skip
    style.line(st.session_state.get(address.SLOT_PROBLEM, ""), "error")
    left, right = st.columns([3, 2], gap="medium")
    with left:
        if choice == _EACH:
            _multiples(inspected, pool, kept, ranks)
        else:
            _one(inspected, pool, kept, "" if choice == _TOGETHER else choice)
    with right:
        _table(inspected, pool, kept)


def _pool_choice(inspected: Inspected) -> Pool:
    pools = {pool.name: pool for pool in inspected.pools}
    if len(pools) == 1:
        return inspected.pools[0]
    name = st.segmented_control(
        "Pool", list(pools), key="inspect_pool", default=next(iter(pools)), required=True, format_func=lambda each: pools[each].title,
        help="The full and the window pool number their slots apart.", persist_state="session",
    )  # fmt: skip
    return pools[str(name)]


def shown_pool(inspected: Inspected) -> Pool:
    """The pool that the map shows, for what stands beside it."""
    name = st.session_state.get("inspect_pool")
    return next((pool for pool in inspected.pools if pool.name == name), inspected.pools[0])


def _one(inspected: Inspected, pool: Pool, kept: np.ndarray, rank: str) -> None:
    status, outside = inspected.status(pool, kept, rank)
    text = inspected.summary(pool, status, outside)
    counts = slot_map.count_statuses(status)
    grid = slot_map.reduce_to_tiles(status)
    figure = charts.overview(grid, counts if inspected.statuses else counts | {SlotStatus.FREE: 0}, state.theme())
    st.plotly_chart(
        figure, key="inspect_map", config=_CONFIG, alt=text, selection_mode="points", on_select=lambda: _take_mark("inspect_map")
    )
    style.caption(text)


def _multiples(inspected: Inspected, pool: Pool, kept: np.ndarray, ranks: tuple[str, ...]) -> None:
    shown = ranks[:_MAPS]
    maps, words = [], []
    for rank in shown:
        status, _ = inspected.status(pool, kept, rank)
        bad = slot_map.count_statuses(status)[SlotStatus.CORRUPTED]
        maps.append((f"{rank}: {format_count(bad)}", slot_map.reduce_to_tiles(status, columns=_SMALL_COLUMNS, rows=_SMALL_ROWS)))
        words.append(f"{rank} {format_count(bad)}")
    text = f"Reported slots by rank: {', '.join(words)}; {pool.origin}."
    st.plotly_chart(
        charts.multiples(maps, state.theme()), key="inspect_maps", config=_CONFIG, alt=text, selection_mode="points",
        on_select=lambda: _take_mark("inspect_maps"),
    )  # fmt: skip
    more = f" The first {_MAPS} of {format_count(len(ranks))} ranks; choose another by name." if len(ranks) > _MAPS else ""
    style.caption(text + more)


def _table(inspected: Inspected, pool: Pool, kept: np.ndarray) -> None:
    # A lazy table cannot be selected from, so this one is short; every row stands in the one below the records.
    rows, total = inspected.most_reported(pool, kept, _TABLE_LIMIT)
    if not rows:
        style.caption("No slot is reported.")
        return
    table = pd.DataFrame(rows, columns=["slot", "rows", "role"])
    if inspected.page_size and inspected.page_size > 1:
        table["page"], table["in page"] = table["slot"] // inspected.page_size, table["slot"] % inspected.page_size
    st.dataframe(
        table, key="inspect_slots", hide_index=True, height=min(330, 40 + 36 * len(table)),
        on_select=lambda: take_row("inspect_slots", table["slot"].tolist()), selection_mode="single-row",
        alt="Reported slots; select a row (Shift+Space) to open its card.",
    )  # fmt: skip
    which = f"The {format_count(len(table))} slots with the most rows of {format_count(total)}" if total > len(table) else (
        f"{format_count(total)} reported slot{'' if total == 1 else 's'}, most rows first"
    )  # fmt: skip
    style.caption(f"{which}. Select a row (Shift+Space) to open its card.")


def window(found: Loaded, slot: int) -> None:
    """Single slots around the chosen one, with the borders of pages."""
    inspected = found.inspected
    pool = shown_pool(inspected)
    status, _ = inspected.status(pool, inspected.cross.mask(address.filters()))
    if not 0 <= slot < len(status):
        style.caption(f"Slot {format_count(slot)} lies outside the map of {format_count(len(status))} slots.")
        return
    view = slot_map.window_around(status, slot)
    last = min(view.start + view.cells.size, len(status)) - 1
    page = inspected.page_size or 1
    text = f"Slots {format_count(view.start)} to {format_count(last)}, one cell each, slot {format_count(slot)} outlined"
    text += f"; dotted lines between pages of {page}." if page > 1 else "."
    st.plotly_chart(
        charts.window(view, slot, state.theme(), page_size=page), key="inspect_window", config=_CONFIG, selection_mode="points", alt=text,
        on_select=lambda: _take_mark("inspect_window"),
    )  # fmt: skip
    style.caption(text)


def _take_mark(key: str) -> None:
    if found := marked(key):
        address.choose_slot(int(found[0][0]))


def _take_typed() -> None:
    text = st.session_state[_TYPED] or ""
    st.session_state[address.SLOT_PROBLEM] = ""
    try:
        if text.strip():
            address.choose_slot(parse_integer(text))
    except ConfigError as error:
        st.session_state[address.SLOT_PROBLEM] = f"slot {error}"
