"""Benchmark: how fast can this machine stamp and verify, and does the detector work here?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import benchmark_view, shell, state

shell.require_frame()
st.title("Benchmark", anchor=False)
current = state.current()
benchmark_view.controls(current)
benchmark_view.result(current)
