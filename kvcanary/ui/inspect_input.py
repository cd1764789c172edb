"""Where a log comes in: upload, paste or the example. What was read stays in the session that read it."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.diagnosis import Diagnosis, diagnose
from kvcanary.analysis.log_stream import read_streams
from kvcanary.errors import KvCanaryError
from kvcanary.ui import style
from kvcanary.ui.inspect_example import example_log

UPLOAD_LIMIT_MB = 200
SLOT = "inspect_slot"
FILTERS = {"rank": "inspect_rank", "reasons": "inspect_reason", "launch_tag": "inspect_tag"}
_FOUND, _PROBLEM, _TEXT, _FILES = "inspect_found", "inspect_problem", "inspect_text", "inspect_files"


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    """A log that was read. frame: log.violations.frame(); sources: the bytes as given, by the name that violations carry as file."""

    log: CanaryLog
    diagnosis: Diagnosis
    frame: pd.DataFrame
    sources: dict[str, bytes]


def draw() -> Inspection | None:
    """The form, and what was read last in this session."""
    found: Inspection | None = st.session_state.get(_FOUND)
    with st.expander("Read another log", expanded=False) if found else st.container():
        left, right = st.columns(2, gap="medium")
        with left:
            st.file_uploader(
                "Server logs, one per rank or day (also .gz and .zst)", accept_multiple_files=True, key=_FILES, on_change=_take_files,
                max_upload_size=UPLOAD_LIMIT_MB,
            )  # fmt: skip
        with right:
            st.text_area("Or paste lines of a log", key=_TEXT, height=92, placeholder="kv_canary violation: launch_tag=…")
            with st.container(horizontal=True, gap="small"):
                st.button("Inspect", key="inspect_go", type="primary", on_click=_take_text)
                st.button("Load an example", key="inspect_example", on_click=_read, args=({"example.log": example_log().encode()},))
    if problem := st.session_state.get(_PROBLEM):
        style.verdict(f"Not read: {problem}", "error")
    if found is None and not problem:
        style.caption("No log has been read yet. A log with canary lines ends in a verdict, a cause and a map; the example shows how.")
    return found


def _take_files() -> None:
    files = st.session_state.get(_FILES) or []
    if not files:
        return
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        st.session_state[_PROBLEM] = "two files have the same name, so their lines could not be told apart; rename one"
        return
    _read({file.name: file.getvalue() for file in files})


def _take_text() -> None:
    text = st.session_state.get(_TEXT) or ""
    if not text.strip():
        st.session_state[_PROBLEM] = "there is nothing to read; paste some lines or upload a file"
        return
    _read({"pasted text": text.encode(errors="replace")})


def _read(sources: dict[str, bytes]) -> None:
    st.session_state[_PROBLEM] = ""
    try:
        log = read_streams([(name, io.BytesIO(data)) for name, data in sources.items()])
        found = Inspection(log, diagnose(log), log.violations.frame(), sources)
    except KvCanaryError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    st.session_state[_FOUND] = found
    for key in (SLOT, *FILTERS.values()):
        st.session_state.pop(key, None)
