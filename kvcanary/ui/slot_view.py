"""The per-slot map: overview, window, table and card, selected by click, by row or by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvcanary.analysis import slot_map
from kvcanary.analysis.slot_card import SlotCard, bad_table, diff_bits, slot_card
from kvcanary.charts import slots as charts
from kvcanary.charts.theme import STATUS_LOOKS
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.layout import SlotStatus
from kvcanary.store.runs import SlotArrays
from kvcanary.ui import selection, state, style
from kvcanary.units import format_count, parse_integer

TABLE_LIMIT = 1000
_SLOT, _TYPED, _PROBLEM = "slot", "slot_number", "slot_problem"
_CONFIG = {"displayModeBar": False}
# What is worth saying about a neighbour; the window beside the card shows the rest.
_TELLING = (SlotStatus.INJECTED, SlotStatus.CORRUPTED)


@st.fragment
def draw(run_id: str, arrays: SlotArrays, cards: Sequence[Mapping[str, Any]], page_size: int) -> None:
    """Everything about the slots of one run; a slot that is chosen draws this part of the page alone, and no chart above or below it."""
    status = arrays.status
    summary = slot_map.summary_line(status)
    st.markdown(
        "**Slot map**",
        help="Each tile shows the worst status of its slots. Marks can be clicked; the table does the same by keyboard (Shift+Space).",
    )
    style.caption(summary)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        figure = charts.overview(slot_map.reduce_to_tiles(status), slot_map.count_statuses(status), state.theme())
        st.plotly_chart(
            figure, key=f"overview.{run_id}", config=_CONFIG, alt=summary, selection_mode="points",
            on_select=lambda: _take_mark(f"overview.{run_id}"),
        )  # fmt: skip
    with right:
        _bad_table(run_id, status, cards)
        st.text_input(
            "Go to slot",
            key=_TYPED,
            placeholder=f"0 to {format_count(len(status) - 1)}",
            on_change=_take_typed,
            args=(len(status),),
            live="400ms",
            help="Shows the slots around this number one by one, with the card of the slot.",
        )
        style.line(st.session_state.get(_PROBLEM, ""), "error")
    slot = chosen_slot(len(status))
    if slot is None:
        style.caption("Choose a marked tile, a row of the table or a number to see single slots.")
        return
    left, right = st.columns([1, 1], gap="medium")
    with left:
        view = slot_map.window_around(status, slot)
        last = min(view.start + view.cells.size, len(status)) - 1
        st.plotly_chart(
            charts.window(view, slot, state.theme(), page_size=page_size), key=f"window.{run_id}", config=_CONFIG, selection_mode="points",
            on_select=lambda: _take_mark(f"window.{run_id}"),
            alt=f"Slots {view.start} to {last}, one cell each, slot {slot} outlined.",
        )  # fmt: skip
    with right:
        _card(slot_card(arrays, cards, slot))


def chosen_slot(num_slots: int) -> int | None:
    """The slot named in the address, None when there is none or it lies outside this pool."""
    raw = st.query_params.get(_SLOT, "")
    return int(raw) if raw.isdecimal() and len(raw) < 12 and int(raw) < num_slots else None


def _choose(slot: int) -> None:
    st.query_params[_SLOT] = str(slot)
    st.session_state[_PROBLEM] = ""


def _take_mark(key: str) -> None:
    if found := selection.marked(key):
        _choose(int(found[0][0]))


def _take_typed(num_slots: int) -> None:
    text = st.session_state[_TYPED] or ""
    st.session_state[_PROBLEM] = ""
    if not text.strip():
        return
    try:
        slot = parse_integer(text)
        if not 0 <= slot < num_slots:
            raise ConfigError(f"must be between 0 and {format_count(num_slots - 1)}, got {format_count(slot)}")
    except ConfigError as error:
        st.session_state[_PROBLEM] = f"slot {error}"
    else:
        _choose(slot)


def _bad_table(run_id: str, status: slot_map.Status, cards: Sequence[Mapping[str, Any]]) -> None:
    rows = bad_table(status, cards, TABLE_LIMIT)
    if not rows:
        style.caption("No slot was reported or damaged.")
        return
    key = f"bad.{run_id}"

    def take() -> None:
        if (chosen := selection.first_row(key)) is not None:
            _choose(rows[chosen][0])

    names = ("slot", "status", "request", "position", "reported as", "planted")
    table = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    st.dataframe(
        table, key=key, hide_index=True, height=235, on_select=take, selection_mode="single-row",
        alt="Slots that were reported or damaged on purpose; select a row (Shift+Space) to open its card.",
    )  # fmt: skip
    if len(cards) > len(rows):
        style.caption(f"The first {len(rows)} of {len(cards)} rows; the download has all of them.")


def _card(card: SlotCard) -> None:
    look = STATUS_LOOKS[card.status]
    owner = "no request" if card.request is None else f"request row {card.request}, position {card.position}"
    st.html(
        f'<p class="kvc-finding" data-testid="slot-card"><span class="kvc-badge">{look.letter} {html_text(look.label)}</span>'
        f"<b>Slot {format_count(card.slot)}</b> · {html_text(owner)}</p>"
        f'<p class="kvc-why">{html_text(card.explanation)}</p>'
        f'<p class="kvc-why">{html_text("Reported as: " + " + ".join(card.reasons)) if card.reasons else "Not reported."}</p>'
    )
    rows = "".join(
        f"<tr><th>{row.name}</th><td>{_value(row.stored)}</td><td>{_value(row.expected)}</td>"
        f"<td>{f'<mark>{diff_bits(row.differing)}</mark>' if row.differing else 'same' if row.expected is not None else '?'}</td></tr>"
        for row in card.fields
    )
    st.html(
        '<div class="kvc-wide"><table class="kvc-table"><thead><tr><th>field</th><th>stored</th><th>expected by verify</th>'
        "<th>bits that differ</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
    with st.container(horizontal=True, gap="small"):
        for label, slot in (("predecessor", card.predecessor), ("successor", card.successor)):
            if slot is not None:
                text = f"{label} {format_count(slot)}" if slot >= 0 else f"no {label}"
                st.button(text, key=f"go.{label}", on_click=_choose, args=(slot,), disabled=slot < 0, help="Next in the same chain.")
    around = ", ".join(
        f"{format_count(slot)} {STATUS_LOOKS[status].label}" for slot, status in card.neighbours if slot != card.slot and status in _TELLING
    )
    style.caption(f"Neighbours in the pool: {around or 'none of them reported or damaged'}.")


def _value(value: int | None) -> str:
    if value is None:
        return "not kept"
    if 0 <= value < 10**7:
        return f"<code>{value}</code> (0x{value:x})"
    return f"<code>0x{value & (1 << 64) - 1:016x}</code>"
