"""The few rules of CSS that Streamlit's theme cannot say, and escaping for the HTML that we write ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from kvcanary.charts.theme import PAGE, ThemeName, css_variables
from kvcanary.escape import html_text, markdown_text

# A local picture: an icon by name would make the browser ask a server on the internet.
ICON = str(Path(__file__).with_name("icon.png"))
_STYLE_SHEET = Path(__file__).with_name("style.css")


def inject(theme: ThemeName) -> None:
    """Put the style sheet on the page, once per run."""
    st.html(_STYLE_SHEET)
    st.html(f"<style>:root {{ {css_variables(PAGE, theme, '--kvc-')} }}</style>")


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
