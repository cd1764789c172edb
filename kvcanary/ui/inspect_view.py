"""The answer of a log: verdict, cause, pictures that the filters cross, incidents, coverage, downloads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from kvcanary.analysis import slot_map
from kvcanary.analysis.diagnosis import DiagnosedCause
from kvcanary.charts import slots as slot_charts
from kvcanary.charts import violations as charts
from kvcanary.escape import html_text
from kvcanary.layout import SlotStatus
from kvcanary.ui import blocks, inspect_export, state, style
from kvcanary.ui.inspect_input import FILTERS, SLOT, Inspection
from kvcanary.units import format_bytes, format_count, format_fraction

TABLE_LIMIT = 500
# A printed slot number may be damaged itself; a map of it must not take the machine's memory.
MAP_LIMIT = 1 << 26
_KINDS = {"pass": "pass", "fail": "error", "partial": "warning", "not run": "note"}
_CONFIG = {"displayModeBar": False}
_LABELS = {"rank": "Rank", "reasons": "Reason", "launch_tag": "Launch tag"}


def answer(found: Inspection) -> None:
    """Verdict sentence, coverage, and the likeliest cause with its evidence."""
    log, diagnosis = found.log, found.diagnosis
    style.verdict(f"{diagnosis.verdict.capitalize()}. {diagnosis.sentence}", _KINDS[diagnosis.verdict])
    unread = f", {format_count(log.unread)} of them not understood" if log.unread else ""
    checked = (
        f"{format_count(diagnosis.coverage.protected_tokens)} checks and writes, {format_count(diagnosis.coverage.sweep_passes)} sweeps"
    )
    lines = f"{format_count(log.canary_lines)} of {format_count(log.lines)} lines are the canary's{unread}"
    style.caption(f"Coverage: {checked}; {lines}; {format_bytes(log.bytes_read)}.")
    for reason in diagnosis.coverage.reasons[:3]:
        st.html(f'<p class="kvc-why kvc-warning">{html_text(reason)}</p>')
    for note in diagnosis.notes:
        st.html(f'<p class="kvc-why kvc-note">{html_text(note)}</p>')
    for number, cause in enumerate(diagnosis.causes):
        if number == 0:
            _cause(cause)
        else:
            with st.expander(f"Other cause: {cause.text.title} ({cause.confidence.name.lower()} confidence)"):
                _cause(cause)


def _cause(cause: DiagnosedCause) -> None:
    text = cause.text
    with st.container(border=True, gap="xxsmall"):
        st.html(
            f'<p class="kvc-finding"><span class="kvc-badge">{cause.confidence.name.lower()} confidence</span>'
            f'<b>{html_text(text.title)}</b></p><p class="kvc-why">{html_text(text.meaning)}</p>'
        )
        left, right = st.columns(2, gap="medium")
        with left:
            blocks.table(("Evidence",), [(item,) for item in cause.evidence])
            if cause.others:
                style.caption(f"Also possible: {', '.join(other.replace('_', ' ') for other in cause.others)}.")
        with right:
            blocks.table(("Confirm by",), [(item,) for item in text.confirm])
            for title, words in (("Flags", text.flags), ("Public reports", text.references)):
                if words:
                    st.html(f'<p class="kvc-why"><b>{title}</b> {html_text(" · ".join(words))}</p>')


def filters(found: Inspection) -> pd.DataFrame:
    """Three choices that hold for every picture and table below; returns the violations that are left."""
    frame = found.frame
    with st.container(horizontal=True, gap="small"):
        for column, key in FILTERS.items():
            options = [str(value) for value in frame[column].value_counts().index if value is not None] if len(frame) else []
            chosen = st.multiselect(_LABELS[column], options, key=key, placeholder="all", disabled=len(options) < 2, width=300)
            if chosen:
                frame = frame[frame[column].isin(chosen)]
    if len(frame) < len(found.frame):
        style.caption(f"{format_count(len(frame))} of {format_count(len(found.frame))} violations are shown.")
    return frame


def pictures(found: Inspection, rows: pd.DataFrame) -> None:
    """Timeline and breakdown, then the map of the pool with its table."""
    if rows.empty:
        style.caption("No violation to draw.")
        return
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.markdown("**Timeline**")
        text = charts.timeline_summary(rows)
        st.plotly_chart(charts.timeline(rows, state.theme()), key="inspect_timeline", config=_CONFIG, alt=text)
        style.caption(text)
    with right:
        st.markdown("**By launch tag and reason**")
        groups = charts.by_tag(rows)
        head = ("launch tag", "reason", "rows", "slots")
        blocks.table(head, [(tag, why, format_count(count), format_count(slots)) for tag, why, count, slots in groups[:12]], numeric=(2, 3))
        if len(groups) > 12:
            style.caption(f"The 12 largest of {format_count(len(groups))} groups; the CSV has every row.")
    _map(found, charts.slot_counts(rows))


def _map(found: Inspection, table: pd.DataFrame) -> None:
    st.markdown(
        "**Slot map**",
        help="Marked tiles hold a reported slot. Grey: this log lists no violation there; it does not say that it was checked.",
    )
    if table.empty:
        style.caption("No record names a slot.")
        return
    numbers = table["slot"].to_numpy(dtype=np.int64)
    known = max((report.pool_slots or 0 for report in found.log.streams), default=0)
    size = min(known or int(numbers.max()) + 1, MAP_LIMIT)
    status = charts.pool_status(numbers, max(size, 1))
    counts = slot_map.count_statuses(status)
    outside = len(numbers) - counts[SlotStatus.CORRUPTED]
    origin = "pool size from the log" if known else "the log does not state the pool size, so the map ends at the largest slot seen"
    share = format_fraction(counts[SlotStatus.CORRUPTED] / len(status))
    text = f"{format_count(counts[SlotStatus.CORRUPTED])} of {format_count(len(status))} slots reported ({share}); {origin}."
    if outside:
        text += f" {format_count(outside)} reported slot numbers lie outside the map."
    style.caption(text)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        figure = slot_charts.overview(slot_map.reduce_to_tiles(status), counts | {SlotStatus.FREE: 0}, state.theme())
        st.plotly_chart(figure, key="inspect_map", config=_CONFIG, alt=text, selection_mode="points", on_select=_take_mark)
    with right:
        shown = table.sort_values(["rows", "slot"], ascending=[False, True]).head(TABLE_LIMIT)
        slots = shown["slot"].astype("int64").tolist()
        st.dataframe(
            shown[["slot", "rows", "ranks"]], key="inspect_slots", hide_index=True, height=min(300, 40 + 36 * len(shown)),
            on_select=lambda: _take_row("inspect_slots", slots),
            selection_mode="single-row", alt="Reported slots; select a row to open its card.",
        )  # fmt: skip
        if len(table) > len(shown):
            style.caption(f"The {format_count(len(shown))} slots with the most rows of {format_count(len(table))}; the CSV has all.")


def _take_mark() -> None:
    marked = [point["customdata"] for point in st.session_state["inspect_map"]["selection"]["points"] if point.get("customdata")]
    if marked:
        first = marked[0]
        st.session_state[SLOT] = int(first[0] if isinstance(first, list | tuple) else first["0"])


def _take_row(key: str, slots: list[int]) -> None:
    chosen = st.session_state[key]["selection"]["rows"]
    if chosen:
        st.session_state[SLOT] = slots[chosen[0]]


def incidents(found: Inspection) -> None:
    """Incidents of the whole log; a row opens its first slot."""
    listed = found.diagnosis.incidents[:TABLE_LIMIT]
    if not listed:
        return
    st.markdown(
        "**Incidents**", help="Violations that belong together. An echo fails only because the slot before it in its chain is broken."
    )
    suspicions = found.diagnosis.suspicions
    rows = [
        {
            "#": incident.number,
            "time": str(incident.first_time or "unknown"),
            "ranks": ", ".join(incident.ranks),
            "steps": "unknown" if incident.first_step is None else f"{incident.first_step} to {incident.last_step}",
            "rows": incident.rows,
            "slots": _some([finding.slot for finding in incident.causes]),
            "echoes": _some([finding.slot for finding in incident.echoes]),
            "cause": f"{suspicions[incident.number].cause.replace('_', ' ')} ({suspicions[incident.number].confidence.name.lower()})",
        }
        for incident in listed
    ]
    first = [(incident.causes or incident.findings)[0].slot for incident in listed]
    st.dataframe(
        pd.DataFrame(rows), key="inspect_incidents", hide_index=True, on_select=lambda: _take_row("inspect_incidents", first),
        selection_mode="single-row", height=min(300, 40 + 36 * len(rows)), alt="Incidents; select a row to open the card of its first slot.",
    )  # fmt: skip
    total = len(found.diagnosis.incidents)
    style.caption(f"Not filtered.{f' The first {format_count(len(listed))} of {format_count(total)}.' if total > len(listed) else ''}")


def _some(slots: list[int]) -> str:
    ordered = sorted(set(slots))
    return ", ".join(map(str, ordered[:4])) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")


def details(found: Inspection, rows: pd.DataFrame) -> None:
    """Coverage by rank, what the log cannot tell, and the downloads."""
    with st.expander("Coverage by rank, and what this log cannot tell"):
        head = ("rank", "listed", "counted", "last step", "skipped steps", "checks and writes", "sweeps", "pool slots")
        reports = [report for report in found.log.streams if report.canary_lines][:TABLE_LIMIT]
        numbers = [
            (r.listed, r.counter, r.last_step, r.overflow_steps, r.protected_tokens, r.sweep_passes, r.pool_slots) for r in reports
        ]  # fmt: skip
        cells = [tuple("unknown" if number is None else format_count(number) for number in row) for row in numbers]
        blocks.table(head, [(report.stream.label, *row) for report, row in zip(reports, cells, strict=True)], numeric=range(1, 8))
        for limit in found.diagnosis.cannot_tell:
            st.html(f'<p class="kvc-why">{html_text(limit)}</p>')
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV", lambda: inspect_export.csv(rows), "violations.csv", "text/csv", on_click="ignore", help="The filtered rows."
        )
        st.download_button(
            "JSON", lambda: inspect_export.json_text(found.log, found.diagnosis), "inspect.json", "application/json", on_click="ignore",
            help=f"The whole diagnosis, with the first {format_count(inspect_export.JSON_LIMIT)} violations.",
        )  # fmt: skip
    with st.expander("Text for a GitHub issue"):
        style.caption("Holds no token and no hash. Services and files can be named in its coverage lines: read it before you post it.")
        st.code(inspect_export.issue_text(found.log, found.diagnosis), language="markdown", wrap_lines=True)
