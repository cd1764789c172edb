"""An imported start-up log beside the plan, line by line."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.reconcile import plan_to_compare, reconcile
from kvcanary.config.reconciliation import Row, Status
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.importers.result import ImportKind, ImportResult
from kvcanary.ui import blocks, state, style
from kvcanary.units import format_count

_MARKS = {
    Status.AGREES: ("agrees", "pass"),
    Status.EXPLAINED: ("explained", "source"),
    Status.UNEXPLAINED: ("unexplained", "error"),
    Status.NOT_PLANNED: ("no figure", "note"),
}
_ORDER = (Status.UNEXPLAINED, Status.EXPLAINED, Status.AGREES, Status.NOT_PLANNED)


def log_of_session() -> ImportResult | None:
    """The last import, where it holds a log."""
    result: ImportResult | None = st.session_state.get(state.IMPORT_RESULT)
    return result if result is not None and result.observed and ImportKind.LOG in (result.parts or (result.kind,)) else None


def draw(settings: Settings) -> None:
    """Values of the log and of the plan, the unexplained first; or how to get a log here."""
    result = log_of_session()
    if result is None:
        style.caption("No log yet. Paste or upload a start-up log above; its sizes and limits are then laid beside this plan.")
        return
    try:
        found = reconcile(plan_to_compare(settings), result.observed)
    except ConfigError as error:
        style.remark(f"Not compared: {error}.", "note")
        return
    kind = "warning" if found.unexplained else "pass"
    st.html(f'<p class="kvc-finding kvc-{kind}"><b>{html_text(found.text)}</b></p>')
    rows = sorted(found.rows, key=lambda row: _ORDER.index(row.status))
    blocks.html_table(("value", "log", "plan", "difference", "verdict"), [_cells(row) for row in rows], numeric=(1, 2, 3))


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    word, kind = _MARKS[row.status]
    why = f'<br><span class="kvc-quiet">{html_text(row.why)}</span>' if row.why else ""
    return (
        f'{html_text(row.label)}<br><span class="kvc-quiet">{html_text(row.unit)}</span>',
        _number(row.observed, row.unit),
        "" if row.planned is None else _number(row.planned, row.unit),
        "" if row.difference is None else _number(row.difference, row.unit),
        f'<b class="kvc-{kind}">{word}</b>{why}',
    )


def _number(value: float, unit: str) -> str:
    return f"{value:z.2f}" if unit == "GiB" else format_count(round(value))
