"""Inspect: from a server's violation log to where, what pattern, why, and what next."""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import inspect_input, inspect_slot, inspect_view, shell

shell.require_frame()
st.title("Inspect", anchor=False)
found = inspect_input.draw()
if found is not None:
    inspect_view.answer(found)
    rows = inspect_view.filters(found)
    inspect_view.pictures(found, rows)
    inspect_view.incidents(found)
    inspect_slot.draw(found, rows)
    inspect_view.details(found, rows)
