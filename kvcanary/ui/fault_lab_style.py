"""The Fault lab's own rules of CSS, with the status colours of the theme."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvcanary.charts.theme import STATUS_LOOKS
from kvcanary.ui import state

_STYLE_SHEET = Path(__file__).with_name("fault_lab.css")


def inject() -> None:
    """Put them on the page, once per run."""
    theme = state.theme()
    colors = "".join(f"--kvl-{status.name.lower()}: {look.color(theme)};" for status, look in STATUS_LOOKS.items())
    st.html(_STYLE_SHEET)
    st.html(f"<style>:root {{ {colors} }}</style>")
