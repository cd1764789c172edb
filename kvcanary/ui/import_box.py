"""The box at the top of Plan: paste or upload anything, see what it was, fill the form from it, take it back."""

from __future__ import annotations

from html import escape

import streamlit as st

from kvcanary.config.settings import format_field
from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import merge, read_bytes, read_text
from kvcanary.importers.result import ErrorExplanation, ImportResult
from kvcanary.ui import blocks, state, style
from kvcanary.units import format_count

_TEXT, _FILES, _PROBLEM = "paste_text", "paste_files", "import_problem"
_HINT = "Paste a launch command, a start-up log, /server_info, a config.json or an error message"
UPLOAD_LIMIT_MB = 200


def draw() -> None:
    """The box and, below it, what the last import said."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.text_area("Paste anything", key=_TEXT, height=68, placeholder=_HINT, label_visibility="collapsed")
        with st.container(gap="xsmall", width=150):
            st.button("Import", key="import", on_click=_take, type="primary", width="stretch")
            with st.popover("Upload", width="stretch"):
                st.file_uploader(
                    "Files (several at once)", accept_multiple_files=True, key=_FILES, max_upload_size=UPLOAD_LIMIT_MB, on_change=_take
                )
    if problem := st.session_state.get(_PROBLEM):
        style.verdict(f"Not imported: {problem}", "error")
    result: ImportResult | None = st.session_state.get(state.IMPORT_RESULT)
    if result is not None:
        _report(result)


def _take() -> None:
    """Read everything that was given; a piece that cannot be read says so and nothing that was entered is lost."""
    text = st.session_state.get(_TEXT) or ""
    files = st.session_state.get(_FILES) or []
    st.session_state[_PROBLEM] = ""
    if not text.strip() and not files:
        st.session_state[_PROBLEM] = "there is nothing to read; paste some text or upload a file"
        return
    try:
        results = [read_text(text)] if text.strip() else []
        results += [read_bytes(file.getvalue(), file.name) for file in files]
        result = results[0] if len(results) == 1 else merge(results)
    except ImportTextError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    st.session_state[state.IMPORT_RESULT] = result
    if result.fields:
        texts = {name: format_field(name, entry.value) for name, entry in result.fields.items()}
        origin = {name: f"{entry.source}{f' ({entry.derived})' if entry.derived else ''}" for name, entry in result.fields.items()}
        state.merge_in(texts, origin)


def _report(result: ImportResult) -> None:
    what = f"{result.engine} {result.kind}".strip().replace("_", " ")
    count = len(result.fields)
    with st.container(border=True, gap="xsmall", key="import_report"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.html(
                f'<p class="kvc-finding"><b>Read as {escape(what)}</b>: {format_count(count)} fields filled, each marked with its source.</p>'
            )
            if state.can_undo():
                st.button("Undo import", key="undo_import", on_click=_undo, icon=":material/undo:")
        for explanation in result.explanations:
            _explain(explanation)
        for finding in result.findings:
            st.html(f'<p class="kvc-why kvc-{finding.severity}">{escape(finding.message)}</p>')
        _leftovers(result)
        if result.fields:
            with st.expander("Fields and where they came from"):
                rows = [
                    (name, format_field(name, entry.value) or "none", entry.source, entry.derived) for name, entry in result.fields.items()
                ]
                blocks.table(("field", "value", "source", "derived"), rows)
        if result.observed:
            with st.expander("What the text states besides"):
                blocks.table(("name", "value"), [(name, str(value)) for name, value in result.observed.items()])


def _explain(explanation: ErrorExplanation) -> None:
    st.html(
        f'<p class="kvc-finding"><span class="kvc-badge kvc-error">error</span><code>{escape(explanation.message)}</code></p>'
        f'<p class="kvc-why">{escape(explanation.explanation)}</p>'
        + "".join(f'<p class="kvc-why">{number}. {escape(cause)}</p>' for number, cause in enumerate(explanation.causes, start=1))
    )
    with st.container(horizontal=True, gap="small"):
        for number, fix in enumerate(explanation.fixes):
            if fix.field and fix.value is not None:
                st.button(
                    fix.text,
                    key=f"explained.{explanation.label}.{explanation.line}.{number}",
                    on_click=state.set_value,
                    args=(fix.field, fix.value),
                    help=f"As a flag: `{fix.flag}`" if fix.flag else "Changes the form.",
                )
            else:
                st.html(f'<p class="kvc-why">→ {escape(fix.text)}{f" <code>{escape(fix.flag)}</code>" if fix.flag else ""}</p>')


def _leftovers(result: ImportResult) -> None:
    for conflict in result.conflicts:
        values = ", ".join(f"{candidate.value} ({candidate.source})" for candidate in conflict.candidates)
        st.html(f'<p class="kvc-why kvc-warning">{escape(f"{conflict.name}: {values}. {conflict.reason}")}</p>')
    if result.unresolved:
        st.html(f'<p class="kvc-why kvc-warning">Not in the text, so left open: {escape(", ".join(result.unresolved))}</p>')
    for flag in result.unknown:
        hint = f"; did you mean {flag.suggestion}?" if flag.suggestion else ""
        st.html(f'<p class="kvc-why kvc-warning">{escape(f"{flag.flag}: {flag.reason}{hint}")}</p>')


def _undo() -> None:
    state.undo()
    st.session_state[state.IMPORT_RESULT] = None
