"""Building blocks that more than one page shows: findings with their fixes, figures with formulas, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from kvcanary.config.findings import Finding, Fix, Severity
from kvcanary.config.formula import Bound
from kvcanary.escape import html_text, markdown_text
from kvcanary.ui import state

_HEADS = {Severity.ERROR: "will not start", Severity.WARNING: "fails or misleads later", Severity.NOTE: "worth knowing"}


def findings_list(findings: Sequence[Finding]) -> None:
    """Every finding, worst first: the engine's sentence, what it means, and buttons that change the setting."""
    for number, finding in enumerate(findings):
        with st.container(border=True, gap="xxsmall", key=f"finding.{number}.{finding.rule}"):
            st.html(
                f'<p class="kvc-finding"><span class="kvc-badge kvc-{finding.severity}">{finding.severity}</span>'
                f"<code>{html_text(finding.message)}</code></p>"
                f'<p class="kvc-why" title="{html_text(finding.source)}">{html_text(finding.why)}</p>'
            )
            if finding.fixes:
                with st.container(horizontal=True, gap="small"):
                    for index, fix in enumerate(finding.fixes):
                        _fix_button(f"{number}.{finding.rule}.{index}", finding.severity, fix)


def _fix_button(place: str, severity: Severity, fix: Fix) -> None:
    # Two fixes of one finding may change the same field, so the place and not the field makes the key.
    st.button(
        markdown_text(fix.text),
        key=f"fix.{place}.{fix.field}",
        help=f"As a flag: {markdown_text(fix.flag)}" if fix.flag else "Changes the form.",
        on_click=state.set_value,
        args=(fix.field, fix.value),
        type="primary" if severity is Severity.ERROR else "secondary",
    )


def count_sentence(findings: Iterable[Finding]) -> str:
    """'2 errors, 1 warning, 3 notes', leaving out what there is none of."""
    found = [finding.severity for finding in findings]
    parts = [f"{found.count(kind)} {kind}{'s' if found.count(kind) > 1 else ''}" for kind in Severity if kind in found]
    return ", ".join(parts) or "no findings"


def figure(label: str, value: str, bound: Bound) -> None:
    """A number with the formula line that produced it."""
    st.html(f'<div class="kvc-figure">{html_text(label)}<b>{html_text(value)}</b><code>{html_text(bound.text)}</code></div>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
    """A small static table; columns named in `numeric` are right-aligned. Cells are plain text."""
    classes = ["n" if index in numeric else "" for index in range(len(head))]
    header = "".join(f'<th class="{kind}">{html_text(cell)}</th>' for cell, kind in zip(head, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{html_text(cell)}</td>' for cell, kind in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    )
    st.html(f'<div class="kvc-wide"><table class="kvc-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>')
