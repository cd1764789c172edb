"""What Inspect shows, kept in the session and in the address: the log (from an allowed folder), the filters of all views, and the slot."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from kvcanary.analysis.crossfilter import FACETS

LOG, SLOT = "log", "slot"
# Every parameter of the address that belongs to this page; `ui.state` keeps them when it writes its own.
PARAMETERS = (LOG, *FACETS)
_SEPARATOR = "|"
_FILTERS, _SLOT, _LOG, _WRITTEN = "inspect_filters", "inspect_slot", "inspect_log", "inspect_address"
# What was wrong with the slot number that was typed last; over with the next choice.
SLOT_PROBLEM = "inspect_slot_problem"
_LABEL_LIMIT = 50


def adopt() -> None:
    """At the top of the page: take over an address that somebody else wrote, such as a link or the back button."""
    given = {name: st.query_params[name] for name in (*PARAMETERS, SLOT) if name in st.query_params}
    if given and given != st.session_state.get(_WRITTEN):
        st.session_state[_FILTERS] = {name: tuple(given[name].split(_SEPARATOR)[:_LABEL_LIMIT]) for name in FACETS if given.get(name)}
        st.session_state[_LOG] = given.get(LOG, "")
        slot = given.get(SLOT, "")
        st.session_state[_SLOT] = int(slot) if slot.isdecimal() and len(slot) < 19 else None
    write()


def write() -> None:
    """Put what is shown into the address."""
    wanted = {name: _SEPARATOR.join(labels) for name, labels in filters().items() if labels}
    if log := st.session_state.get(_LOG):
        wanted[LOG] = log
    if (slot := chosen_slot()) is not None:
        wanted[SLOT] = str(slot)
    for name in (*PARAMETERS, SLOT):
        if name in wanted and st.query_params.get(name) != wanted[name]:
            st.query_params[name] = wanted[name]
        elif name not in wanted and name in st.query_params:
            del st.query_params[name]
    st.session_state[_WRITTEN] = wanted


def filters() -> dict[str, tuple[str, ...]]:
    """Labels that are kept, by facet; a facet without a choice is not there."""
    kept: dict[str, tuple[str, ...]] = st.session_state.setdefault(_FILTERS, {})
    return kept


def choose(name: str, labels: Iterable[str]) -> None:
    """Keep these labels of a facet alone; none of them means all."""
    kept = dict(filters())
    kept.pop(name, None)
    if chosen := tuple(dict.fromkeys(labels)):
        kept[name] = chosen
    st.session_state[_FILTERS] = kept


def clear_filters() -> None:
    """Show everything again."""
    st.session_state[_FILTERS] = {}


def chosen_slot() -> int | None:
    """The slot whose card is open."""
    slot: int | None = st.session_state.get(_SLOT)
    return slot


def choose_slot(slot: int | None) -> None:
    """Open the card of a slot."""
    st.session_state[_SLOT] = slot
    st.session_state[SLOT_PROBLEM] = ""


def named_log() -> str:
    """The log of an allowed folder that the address names; empty for an upload."""
    return str(st.session_state.get(_LOG) or "")


def begin_log(name: str) -> None:
    """Another log is shown now: its name in an allowed folder or '', no filter and no slot."""
    st.session_state[_LOG] = name
    clear_filters()
    choose_slot(None)
