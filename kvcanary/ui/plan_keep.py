"""Keeping a plan: the button on the Plan page, and what it said."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.plan_report import plan_document, plan_report
from kvcanary.config.settings import Settings
from kvcanary.errors import KvCanaryError
from kvcanary.lab.records import Verdict
from kvcanary.ui import access, services, state, style

_KEPT = "plan_kept"


def button(current: state.Current) -> None:
    """Store the plan as it stands, also one that will not start; not while a field cannot be read."""
    st.button(
        "Keep in Runs", key="plan_keep", on_click=_keep, args=(current.settings,), disabled=not current.readable,
        help="Stores settings, findings and memory, to compare and to hand over.",
    )  # fmt: skip


def said() -> None:
    """What became of the last click."""
    if text := st.session_state.pop(_KEPT, ""):
        style.caption(text)


def _keep(settings: Settings) -> None:
    report = plan_report(settings)
    try:
        run = services.runs().save_plan(
            settings.to_flat(), verdict=Verdict(report.verdict), sentence=report.sentence, document=plan_document(report),
            owner=access.user().owner,
        )  # fmt: skip
    except KvCanaryError as error:
        st.session_state[_KEPT] = f"Not kept: {error}"
    else:
        st.session_state[_KEPT] = f"Kept in Runs as {run}.{access.kept_to()}"
