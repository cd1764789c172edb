"""The answer of a log: verdict and coverage, the likeliest cause, the incidents, and what the log does not cover."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from kvcanary.analysis.diagnosis import DiagnosedCause
from kvcanary.analysis.inspected import Inspected
from kvcanary.charts.inspection_sections import EVENT_WORDS
from kvcanary.charts.sections import VERDICT_KINDS
from kvcanary.escape import html_text, markdown_text
from kvcanary.lab.records import Verdict
from kvcanary.ui import blocks, selection, style
from kvcanary.ui import inspect_address as address
from kvcanary.ui.inspect_reading import Loaded
from kvcanary.units import format_bytes, format_count

TABLE_LIMIT = 500
_FIRST, _REASONS = 2, 3


def answer(found: Loaded) -> None:
    """Verdict sentence and coverage."""
    log, diagnosis = found.inspected.log, found.inspected.diagnosis
    style.verdict(f"{diagnosis.verdict.capitalize()}. {diagnosis.sentence}", VERDICT_KINDS[Verdict(diagnosis.verdict)])
    unread = f", {format_count(log.unread)} of them not understood" if log.unread else ""
    checks, sweeps = diagnosis.coverage.protected_tokens, diagnosis.coverage.sweep_passes
    checked = "no line counts the checks"
    if checks is not None and sweeps is not None:
        checked = f"{format_count(checks)} checks and writes, {format_count(sweeps)} sweeps"
    lines = f"{format_count(log.canary_lines)} of {format_count(log.lines)} lines are the canary's{unread}"
    style.caption(f"Coverage: {checked}; {lines}; {format_bytes(log.bytes_read)}.")
    # What the verdict says already stands there.
    reasons = [reason for reason in diagnosis.coverage.reasons if reason not in diagnosis.sentence]
    notes = diagnosis.notes
    lines_html = [f'<p class="kvc-why kvc-warning">{html_text(reason)}</p>' for reason in reasons[:_REASONS]]
    if len(reasons) > _REASONS:
        more = f"More under coverage by rank: {format_count(len(reasons) - _REASONS)}."
        lines_html.append(f'<p class="kvc-why kvc-warning">{more}</p>')
    lines_html += [f'<p class="kvc-why kvc-note">{html_text(note)}</p>' for note in notes]
    if lines_html:
        st.html("".join(lines_html))


def causes(found: Loaded) -> None:
    """The likeliest cause as a card, the others behind it."""
    diagnosis = found.inspected.diagnosis
    if diagnosis.causes:
        _cause(diagnosis.causes[0])
    for cause in diagnosis.causes[1:]:
        with st.expander(f"Other cause: {markdown_text(cause.text.title)} ({cause.confidence.name.lower()} confidence)"):
            _cause(cause)


def _cause(cause: DiagnosedCause) -> None:
    """The card in short; everything behind it opens on demand."""
    text = cause.text
    with st.container(border=True, gap="xxsmall"):
        st.html(
            f'<p class="kvc-finding"><span class="kvc-badge">{cause.confidence.name.lower()} confidence</span>'
            f'<b>{html_text(text.title)}</b></p><p class="kvc-why">{html_text(text.meaning)}</p>'
        )
        left, right = st.columns(2, gap="medium")
        with left:
            blocks.table(("Evidence",), [(item,) for item in cause.evidence[:_FIRST]])
        with right:
            blocks.table(("Confirm by",), [(item,) for item in text.confirm[:_FIRST]])
        more = len(cause.evidence) + len(text.confirm) - 2 * _FIRST
        with st.expander("Flags, public reports" + (f", and {more} more points" if more > 0 else "")):
            if cause.evidence[_FIRST:]:
                blocks.table(("More evidence",), [(item,) for item in cause.evidence[_FIRST:]])
            if text.confirm[_FIRST:]:
                blocks.table(("Confirm by",), [(item,) for item in text.confirm[_FIRST:]])
            for title, words in (("Flags", text.flags), ("Public reports", text.references)):
                if words:
                    st.html(f'<p class="kvc-why"><b>{title}</b> {html_text(" · ".join(words))}</p>')
            if cause.others:
                style.caption(f"Also possible: {', '.join(other.replace('_', ' ') for other in cause.others)}.")


def incidents(found: Loaded) -> None:
    """Incidents that the filters leave; a row opens its first slot."""
    inspected = found.inspected
    if not inspected.diagnosis.incidents:
        return
    st.markdown(
        "**Incidents**", help="Violations that belong together. An echo fails only because the slot before it in its chain is broken."
    )
    left = inspected.cross.counts("incident", {**address.filters(), "incident": ()})
    listed = [incident for incident, rows in zip(inspected.diagnosis.incidents, left.tolist(), strict=True) if rows]
    shown = listed[:TABLE_LIMIT]
    table = _incident_table(inspected, [incident.number for incident in shown])
    if table.empty:
        style.caption("No incident has rows under these filters.")
        return
    first = [(incident.causes or incident.findings)[0].slot for incident in shown]
    st.dataframe(
        table, key="inspect_incidents", hide_index=True, on_select=lambda: take_row("inspect_incidents", first),
        selection_mode="single-row", height=min(300, 40 + 36 * len(table)),
        alt="Incidents; select a row (Shift+Space) to open the card of its first slot.",
    )  # fmt: skip
    words = ["Select a row (Shift+Space) to open its first slot."]
    if len(listed) > len(shown):
        words.append(f"The first {format_count(len(shown))} of {format_count(len(listed))}.")
    if hidden := len(left) - len(listed):
        words.append(f"{format_count(hidden)} incidents have no row under these filters.")
    style.caption(" ".join(words))


def _incident_table(inspected: Inspected, numbers: list[int]) -> pd.DataFrame:
    suspicions, wanted = inspected.diagnosis.suspicions, set(numbers)
    return pd.DataFrame(
        [
            {
                "#": incident.number,
                "cause": f"{suspicions[incident.number].cause.replace('_', ' ')} ({suspicions[incident.number].confidence.name.lower()})",
                "time": str(incident.first_time or "unknown"),
                "ranks": ", ".join(incident.ranks),
                "steps": "unknown" if incident.first_step is None else f"{incident.first_step} to {incident.last_step}",
                "running requests": "unknown" if incident.running_reqs is None else str(incident.running_reqs),
                "rows": incident.rows,
                "slots": _some([finding.slot for finding in incident.causes]),
                "echoes": _some([finding.slot for finding in incident.echoes]),
            }
            for incident in inspected.diagnosis.incidents
            if incident.number in wanted
        ]
    )


def take_row(key: str, slots: list[int]) -> None:
    """A selected row opens the card of its slot."""
    if (row := selection.first_row(key)) is not None:
        address.choose_slot(slots[row])


def _some(slots: list[int]) -> str:
    ordered = sorted(set(slots))
    return ", ".join(map(str, ordered[:4])) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")


def coverage(found: Loaded) -> None:
    """Coverage by rank, and what the log cannot tell."""
    with st.expander("Coverage by rank, and what this log cannot tell"):
        head = ("rank", "listed", "counted", "last step", "skipped steps", "checks and writes", "sweeps", "pool slots")
        reports = [report for report in found.inspected.log.streams if report.canary_lines][:TABLE_LIMIT]
        numbers = [
            (r.listed, r.counter, r.last_step, r.overflow_steps, r.protected_tokens, r.sweep_passes, r.pool_slots) for r in reports
        ]  # fmt: skip
        cells = [tuple("unknown" if number is None else format_count(number) for number in row) for row in numbers]
        blocks.table(head, [(report.stream.label, *row) for report, row in zip(reports, cells, strict=True)], numeric=range(1, 8))
        diagnosis = found.inspected.diagnosis
        gaps = [f'<p class="kvc-why kvc-warning">{html_text(reason)}</p>' for reason in diagnosis.coverage.reasons]
        st.html("".join(gaps + [f'<p class="kvc-why">{html_text(limit)}</p>' for limit in diagnosis.cannot_tell]))


def other_lines(found: Loaded) -> None:
    """What else in the log matters: errors, injected faults, installs, health, the window's translation."""
    events, counts = found.inspected.log.events, found.inspected.log.event_counts
    if not events:
        return
    words = ", ".join(f"{format_count(count)} {EVENT_WORDS.get(kind, kind)}" for kind, count in sorted(counts.items()))
    with st.expander(f"Other lines that matter: {markdown_text(words)}"):
        shown = events[:TABLE_LIMIT]
        st.dataframe(
            pd.DataFrame(
                {
                    "time": [str(event.time or "unknown") for event in shown],
                    "rank": [event.stream.label for event in shown],
                    "what": [EVENT_WORDS.get(event.kind, event.kind) for event in shown],
                    "line": [event.line for event in shown],
                    "text": [event.text[:300] for event in shown],
                }
            ),
            hide_index=True, height=min(320, 40 + 36 * len(shown)), alt="Other lines of the log that matter, in order.",
        )  # fmt: skip
        if len(events) > len(shown):
            style.caption(f"The first {format_count(len(shown))} of {format_count(len(events))}.")
