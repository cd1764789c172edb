"""What the last import said: what it was, errors with their causes and ways out, remarks, and every field with its source."""

from __future__ import annotations

from collections.abc import Iterator

import streamlit as st

from kvcanary.config.findings import Severity
from kvcanary.config.fix_amounts import with_amount
from kvcanary.config.settings import FIELDS, format_field
from kvcanary.escape import html_text
from kvcanary.importers.amounts import missing_fraction
from kvcanary.importers.result import ErrorExplanation, ImportKind, ImportResult
from kvcanary.ui import blocks, plan_choices, plan_findings, state
from kvcanary.units import format_count, group_digits

_SHOWN_REMARKS = 3
# Findings of the readers that stand above as conflicts and unknown flags.
_SAID_ABOVE = ("unknown-flag", "conflicting-values")
_NAMES = {
    ImportKind.COMMAND: "launch command",
    ImportKind.LOG: "start-up log",
    ImportKind.SERVER_INFO: "server_info",
    ImportKind.HF_CONFIG: "config.json of a model",
    ImportKind.WEIGHT_INDEX: "index of a model's weights",
    ImportKind.SETTINGS: "kvcanary settings",
    ImportKind.RUN: "kvcanary run",
    ImportKind.ERROR: "error message",
    ImportKind.MIXED: "several pieces",
}


def failed_as_filled() -> str:
    """What the error of the imported text means, while the form still holds the text's own values; empty otherwise."""
    result: ImportResult | None = st.session_state.get(state.IMPORT_RESULT)
    if result is None or not result.explanations or not result.fields:
        return ""
    texts = state.texts()
    as_filled = all(texts[name] == format_field(name, entry.value) for name, entry in result.fields.items())
    return result.explanations[0].explanation if as_filled else ""


def draw(result: ImportResult) -> None:
    """One line with Undo, then what matters, then the rest folded away."""
    with st.container(border=True, gap="xsmall", key="import_report"):
        with st.container(horizontal=True, wrap=False, gap="small", vertical_alignment="center"):
            st.html(f'<p class="kvc-finding"><b>{html_text(_what(result))}</b>: {html_text(_filled(result))}</p>', width="stretch")
            st.button("Undo import", key="undo_import", on_click=state.undo, args=("import",), icon=":material/undo:")
        for number, explanation in enumerate(result.explanations):
            _explain(number, explanation, result)
        remarks = list(_remarks(result))
        _lines(remarks[:_SHOWN_REMARKS])
        rest = remarks[_SHOWN_REMARKS:]
        if rest:
            with st.expander(f"{len(rest)} more remarks"):
                _lines(rest)
        _tables(result)


def _what(result: ImportResult) -> str:
    names = " + ".join(_NAMES[part] for part in (result.parts or (result.kind,)))
    return f"{result.engine} {names}".strip()


def _filled(result: ImportResult) -> str:
    if not result.fields:
        return "nothing for the form."
    count = len(result.fields)
    text = (
        f"{format_count(count)} fields filled, each marked with its source." if count > 1 else "1 field filled and marked with its source."
    )
    chosen = [FIELDS[name].label for name, source in state.sources().items() if source.startswith(plan_choices.DERIVED)]
    if chosen:
        text += f" Not stated, so chosen as SGLang does: {', '.join(chosen)}."
    if ImportKind.COMMAND in (result.parts or (result.kind,)) and not state.texts()["device_memory_bytes"]:
        if "pool_slot_count" not in state.sources():
            text += f" {group_digits(state.texts()['pool_slot_count'])} KV slots are a placeholder: pick"
        else:
            text += " Pick"
        text += " an accelerator under Memory, and Choices works out what the command leaves to SGLang."
    return text


def _explain(number: int, explanation: ErrorExplanation, result: ImportResult) -> None:
    settings, missing = state.current().settings, missing_fraction(result.observed)
    stated = result.settings_values()
    causes = "".join(f"<li>{html_text(cause)}</li>" for cause in explanation.causes)
    st.html(
        f'<p class="kvc-finding"><span class="kvc-badge kvc-error">error</span><code>{html_text(explanation.message)}</code></p>'
        f'<p class="kvc-why">{html_text(explanation.explanation)}</p>'
        f'<p class="kvc-why"><b>Likely causes, the likeliest first</b></p><ol class="kvc-causes">{causes}</ol>'
    )
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        for index, given in enumerate(explanation.fixes):
            fix = with_amount(given, settings, stated, missing)
            if fix.field and fix.amount_known:
                key = f"explained.{number}.{explanation.label}.{index}"
                plan_findings.fix_button(key, fix.text, fix.field, fix.value, fix.flag, Severity.ERROR if index == 0 else Severity.NOTE)
            else:
                flag = f" <code>{html_text(fix.flag)}</code>" if fix.flag and fix.flag not in fix.text else ""
                st.html(f'<p class="kvc-why">→ {html_text(fix.text)}{flag}</p>', width="content")


def _remarks(result: ImportResult) -> Iterator[tuple[str, str]]:
    """(severity, sentence) of everything that was not taken as it stands, what changes a value first."""
    for conflict in result.conflicts:
        values = ", ".join(f"{candidate.value} ({candidate.source})" for candidate in conflict.candidates)
        yield "warning", f"{conflict.name}: {values}. {conflict.reason}"
    if result.unresolved:
        yield "warning", f"Not in the text, so left open: {', '.join(result.unresolved)}"
    for flag in result.unknown:
        hint = f"; did you mean {flag.suggestion}?" if flag.suggestion else ""
        yield "warning", f"{flag.flag}: {flag.reason}{hint}"
    for finding in result.findings:
        if finding.rule not in _SAID_ABOVE:
            yield str(finding.severity), f"{finding.message}. {finding.why}".strip()


def _lines(remarks: list[tuple[str, str]]) -> None:
    if remarks:
        st.html("".join(f'<p class="kvc-why kvc-{severity}">{html_text(text)}</p>' for severity, text in remarks))


def _tables(result: ImportResult) -> None:
    observed = [(name, str(value)) for name, value in result.observed.items() if value is not None]
    if not result.fields and not observed:
        return
    with st.expander("What was read, with its source"):
        if result.fields:
            rows = [(name, format_field(name, entry.value) or "none", entry.source, entry.derived) for name, entry in result.fields.items()]
            blocks.table(("field", "value", "source", "derived"), rows)
        if observed:
            blocks.table(("stated besides", "value"), observed)
