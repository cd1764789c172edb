"""A table whose cells are HTML that we wrote: formulas, second lines, marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from kvcanary.escape import html_text


def draw(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
    """Heads are plain text, cells are HTML in which the caller has escaped every foreign text; `numeric` columns are right-aligned."""
    classes = ["n" if index in numeric else "" for index in range(len(head))]
    header = "".join(f'<th class="{kind}">{html_text(cell)}</th>' for cell, kind in zip(head, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, classes, strict=True)) + "</tr>" for row in rows
    )
    st.html(
        f'<div class="kvc-wide"><table class="kvc-table kvc-plan-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
    )
