"""The findings of the Plan page: the engine's sentence, what it means, and buttons that change the setting."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.findings import Finding, Severity
from kvcanary.config.rules import RULES
from kvcanary.escape import html_text, markdown_text
from kvcanary.ui import state, style

# Reserved, so that nothing below moves while somebody types; more findings scroll.
_HEIGHT_PX = 178


def draw(current: state.Current) -> None:
    """Every finding, worst first, in an area of fixed height."""
    with st.container(height=_HEIGHT_PX, border=False, key="findings", gap="xsmall"):
        if not current.findings:
            style.caption(f"Nothing to report: all {len(RULES)} rules were checked.")
        for number, finding in enumerate(current.findings):
            _finding(number, finding)
        if state.unknown_parameters():
            st.button("Drop what is unknown in the link", on_click=state.forget_unknown, key="forget_unknown")


def _finding(number: int, finding: Finding) -> None:
    with st.container(gap=None, key=f"finding.{number}.{finding.rule}"):
        st.html(
            f'<p class="kvc-finding"><span class="kvc-badge kvc-{finding.severity}">{finding.severity}</span>'
            f"<code>{html_text(finding.message.partition('; known fields')[0])}</code></p>"
            f'<p class="kvc-why" title="{html_text(finding.source)}">{html_text(finding.why)}{_flag(finding)}</p>'
        )
        if finding.fixes:
            with st.container(horizontal=True, gap="small"):
                for index, fix in enumerate(finding.fixes):
                    # Two fixes of one finding may change the same field, so the place and not the field makes the key.
                    key = f"fix.{number}.{finding.rule}.{index}.{fix.field}"
                    fix_button(key, fix.text, fix.field, fix.value, fix.flag, finding.severity if index == 0 else Severity.NOTE)


def _flag(finding: Finding) -> str:
    """The first fix as SGLang's command line has it."""
    flag = next((fix.flag for fix in finding.fixes if fix.flag), "")
    return f" <code>{html_text(flag)}</code>" if flag else ""


def fix_button(key: str, text: str, field: str, value: int | float | str | bool | None, flag: str, severity: Severity) -> None:
    """A button that sets one field; those of an error stand out, the others read as links."""
    st.button(
        markdown_text(text),
        key=key,
        help=f"As a flag: {markdown_text(flag)}" if flag else "Changes the form.",
        on_click=state.set_value,
        args=(field, value),
        type="primary" if severity is Severity.ERROR else "tertiary",
    )
