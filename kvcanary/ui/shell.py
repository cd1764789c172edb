"""The frame around each page, and the guard that puts a page into it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.navigation.page import Page as StreamlitPage

from kvcanary.ui import blocks, first_run, sidebar, state, style

_run = threading.local()


def navigation() -> StreamlitPage:
    """The pages of the dashboard, in the order of the sidebar; returns the one that was asked for."""
    return st.navigation(
        [
            st.Page("pages/plan.py", title="Plan", default=True),
            st.Page("pages/benchmark.py", title="Benchmark"),
            st.Page("pages/fault_lab.py", title="Fault lab", url_path="fault_lab"),
            st.Page("pages/inspect_log.py", title="Inspect"),
            st.Page("pages/runs.py", title="Runs"),
        ]
    )


@contextmanager
def frame() -> Iterator[None]:
    """Style sheet and address before a page, address and sidebar after it."""
    style.inject(state.theme())
    state.begin()
    _run.inside = True
    with blocks.sentence_for_trouble():
        first_run.arrive()
        try:
            yield
        finally:
            _run.inside = False
    state.write_address()
    with blocks.sentence_for_trouble():
        sidebar.draw()


def require_frame() -> None:
    """First line of each page: when a fresh server is entered through a page's own address, start over from app.py.

    Streamlit runs the files of a folder called pages/ by themselves until somebody has called st.navigation; calling it here ends that
    for good, and the rerun then takes the normal way with the same address.
    """
    if not getattr(_run, "inside", False):
        navigation()
        st.rerun()
