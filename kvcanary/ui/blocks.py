"""Building blocks that more than one page shows: tables, and a sentence in the place of what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from kvcanary.errors import JobError, StoreError
from kvcanary.escape import html_text
from kvcanary.ui import style


@contextmanager
def sentence_for_trouble() -> Iterator[None]:
    """A store that is locked, full or damaged takes the place of what needed it, and the rest of the page stays."""
    try:
        yield
    except (StoreError, JobError) as error:
        style.verdict(str(error), "error")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
    """A small static table; columns named in `numeric` are right-aligned. Cells are plain text."""
    _table(head, ([html_text(cell) for cell in row] for row in rows), numeric, "kvc-table")


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
    """The same for formulas, second lines and marks: cells are HTML in which the caller has escaped every foreign text."""
    _table(head, rows, numeric, "kvc-table kvc-plan-table")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int], look: str) -> None:
    classes = ["n" if index in numeric else "" for index in range(len(head))]
    header = "".join(f'<th class="{kind}">{html_text(cell)}</th>' for cell, kind in zip(head, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, classes, strict=True)) + "</tr>" for row in rows
    )
    st.html(f'<div class="kvc-wide"><table class="{look}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>')


def key(items: Iterable[tuple[str, str, str]]) -> str:
    """HTML of (name, amount, colour) of the parts of a figure, to be put into an element of the class kvc-key."""
    return "".join(
        f'<span><i style="background:{color}"></i>{html_text(name)} <b>{html_text(amount)}</b></span>' for name, amount, color in items
    )
