"""The few rules of CSS that Streamlit's theme cannot say, and escaping for the HTML that we write ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from kvcanary.escape import html_text, markdown_text

# A local picture: an icon by name would make the browser ask a server on the internet.
ICON = str(Path(__file__).with_name("icon.png"))
_STYLE_SHEET = Path(__file__).with_name("style.css")
_COLORS = {
    "light": {
        "error": "#a52a0c",
        "warning": "#7a5200",
        "note": "#4a5464",
        "source": "#0b5a99",
        "pass": "#1b6b3a",
        "ink": "#1d2430",
        "rule": "#d5d9e0",
        "ground": "#ffffff",
        "shade": "#9aa3b0",
        "on-primary": "#ffffff",
    },
    "dark": {
        "error": "#ff9270",
        "warning": "#f0b95a",
        "note": "#aab3c0",
        "source": "#8cc4f7",
        "pass": "#7fd6a0",
        "ink": "#e6e9ee",
        "rule": "#3a414d",
        "ground": "#14171c",
        "shade": "#59626f",
        "on-primary": "#10141a",
    },
}


def inject(theme: str) -> None:
    """Put the style sheet on the page, once per run."""
    variables = "".join(f"--kvc-{name}: {color};" for name, color in _COLORS[theme].items())
    st.html(_STYLE_SHEET)
    st.html(f"<style>:root {{ {variables} }}</style>")


def line(text: str, kind: str) -> None:
    """One line of reserved height under a field; long text is cut and stands whole in the tooltip."""
    st.html(f'<div class="kvc-line kvc-{kind}" title="{html_text(text)}">{html_text(text) or "&nbsp;"}</div>')


def remark(text: str, kind: str) -> None:
    """A sentence that stands by itself and is shown whole."""
    st.html(f'<p class="kvc-why kvc-{kind}">{html_text(text)}</p>')


def verdict(text: str, kind: str) -> None:
    """The answer of a page in one sentence; kind: pass, error, warning, note."""
    st.html(f'<div class="kvc-verdict kvc-{kind}" role="status"><span>{html_text(text)}</span></div>')


def caption(text: str) -> None:
    """A quiet line of plain text; Streamlit would read its caption as Markdown."""
    st.caption(markdown_text(text))


def mark_imported(widget_keys: Sequence[str]) -> None:
    """A bar at the left of each field that was filled from a source; a rule of style, so that no widget is rebuilt when it goes away."""
    places = ", ".join(f".st-key-{key.replace('.', '-')}" for key in widget_keys)
    st.html(f"<style>{places or '.kvc-none'} {{ box-shadow: -6px 0 0 -3px var(--kvc-source); }}</style>")
