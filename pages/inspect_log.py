"""Inspect: from a server's violation log to where, what pattern, why, and what next."""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import inspect_address, inspect_breakdowns, inspect_export, inspect_input, inspect_map, inspect_slot, inspect_view, shell

shell.require_frame()
st.title("Inspect", anchor=False)
inspect_address.adopt()
found = inspect_input.draw()
if found is not None:
    inspect_view.answer(found)
    inspect_input.to_plan(found)
    inspect_breakdowns.filters(found)
    inspect_breakdowns.overview(found)
    inspect_view.causes(found)
    inspect_map.draw(found)
    inspect_breakdowns.details(found)
    inspect_view.incidents(found)
    inspect_slot.draw(found)
    inspect_export.every_row(found)
    inspect_view.other_lines(found)
    inspect_view.coverage(found)
    inspect_export.draw(found)
inspect_address.write()
