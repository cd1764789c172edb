"""Runs: what did we run before, what changed, what do I hand to colleagues?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import runs_view, runs_view_sweeps, shell

shell.require_frame()
st.title("Runs", anchor=False)
runs_view_sweeps.sweeps()
if runs_view.any_stored():
    runs_view.table(runs_view.filters())
    runs_view.opened()
