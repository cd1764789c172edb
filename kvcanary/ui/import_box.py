"""The box at the top of Plan: paste, upload or fetch anything, see what it was, fill the form from it, take it back."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from kvcanary.config.settings import format_field
from kvcanary.errors import ImportTextError
from kvcanary.importers import server_info
from kvcanary.importers.detect import merge, read_bytes, read_text
from kvcanary.importers.result import ImportKind, ImportResult
from kvcanary.ui import import_report, plan_choices, plan_environment, plan_view, state, style

_TEXT, _FILES, _URL, _PROBLEM = "paste_text", "paste_files", "fetch_url", "import_problem"
_HINT = "Paste a launch command, a start-up log, /server_info, a config.json or an error message"
UPLOAD_LIMIT_MB = 200


def draw() -> None:
    """The box and, below it, what the last import said."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="import_box"):
        st.text_area("Paste anything", key=_TEXT, height=80, placeholder=_HINT, label_visibility="collapsed")
        with st.container(gap="xsmall", width=190):
            st.button(
                "Import", key="import", on_click=_take_pasted, type="primary", width="stretch",
                help="Reads what stands in the box on this host, and fills the fields that it states, each with its source.",
            )  # fmt: skip
            with st.container(horizontal=True, gap="xsmall"):
                with st.popover("Upload"):
                    st.file_uploader(
                        "Files (several at once)",
                        accept_multiple_files=True,
                        key=_FILES,
                        max_upload_size=UPLOAD_LIMIT_MB,
                        on_change=_take_files,
                        help="The same as in the box, as files: read on this host together with what is pasted, and not kept.",
                    )
                with st.popover("Fetch"):
                    _fetch_form()
    if problem := st.session_state.get(_PROBLEM):
        style.verdict(f"Not imported: {problem}", "error")
    result: ImportResult | None = st.session_state.get(state.IMPORT_RESULT)
    if result is not None:
        import_report.draw(result)


def hand_over(text: str) -> None:
    """Read a text that was given to another page; what it says, or why it cannot be read, stands on Plan then."""
    st.session_state[_TEXT] = text
    _take([lambda: read_text(text)], [])


def _fetch_form() -> None:
    """Ask a running server, where the operator of this dashboard has allowed it."""
    hosts = plan_environment.fetch_hosts()
    if not hosts:
        style.caption("Off. To read /server_info of a running server, start the dashboard with the hosts that may be asked:")
        st.code(f"{server_info.HOSTS_VARIABLE}=10.0.0.7:30000 streamlit run app.py", language="shell", wrap_lines=True)
        return
    st.text_input(
        "Server", key=_URL, placeholder=f"http://{min(hosts)}", autocomplete="off",
        help="A running SGLang server, one of those allowed below; what its /server_info states fills the fields.",
    )  # fmt: skip
    st.button("Fetch server_info", key="fetch", on_click=_take_fetched, type="primary")
    style.caption(f"One GET, nothing is sent. Allowed: {', '.join(sorted(hosts))}.")


def _take_pasted() -> None:
    text = st.session_state.get(_TEXT) or ""
    files = st.session_state.get(_FILES) or []
    if not text.strip() and not files:
        st.session_state[_PROBLEM] = "there is nothing to read; paste some text or upload a file"
        return
    _take([lambda: read_text(text)] if text.strip() else [], files)


def _take_files() -> None:
    files = st.session_state.get(_FILES) or []
    if files:
        text = st.session_state.get(_TEXT) or ""
        _take([lambda: read_text(text)] if text.strip() else [], files)


def _take_fetched() -> None:
    url = st.session_state.get(_URL) or ""
    _take([lambda: server_info.fetch(url, allowed_hosts=plan_environment.fetch_hosts())], [])


def _take(readers: list[Callable[[], ImportResult]], files: list[st.runtime.uploaded_file_manager.UploadedFile]) -> None:
    """Read every piece; one that cannot be read says so, and the others are imported all the same."""
    results: list[ImportResult] = []
    problems: list[str] = []
    for reader in [*readers, *(lambda file=file: read_bytes(file.getvalue(), file.name) for file in files)]:
        try:
            results.append(reader())
        except ImportTextError as error:
            problems.append(str(error))
    st.session_state[_PROBLEM] = "; ".join(problems)
    if results:
        _fill(results[0] if len(results) == 1 else merge(results))


def _fill(result: ImportResult) -> None:
    texts = {name: format_field(name, entry.value) for name, entry in result.fields.items()}
    origin = {name: f"{entry.source}{f' ({entry.derived})' if entry.derived else ''}" for name, entry in result.fields.items()}
    parts = result.parts or (result.kind,)
    if ImportKind.COMMAND in parts and ImportKind.LOG not in parts:
        # A log states what the engine chose; a command leaves it open.
        chosen, why = plan_choices.fill({**state.texts(), **texts}, {**state.sources(), **origin})
        texts, origin = {**chosen, **texts}, {**why, **origin}
    state.merge_in(texts, origin, step="import", result=result)
    if ImportKind.LOG in parts:
        st.session_state[plan_view.VIEW] = plan_view.LOG_VIEW
