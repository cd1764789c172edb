"""The run that a page shows: the one that the address names, else the newest; another one is never shown without a word."""

from __future__ import annotations

import streamlit as st

from kvcanary.errors import StoreError
from kvcanary.lab.records import RunRecord
from kvcanary.ui import services, style

_PAGES = {"benchmark": "Benchmark", "campaign": "Fault lab"}


def choose(kind: str) -> RunRecord | None:
    """The run of a kind to show; None when there is none of that kind. A warning says when it is not the one in the address, and why."""
    wanted = st.query_params.get("run", "")
    record, why = _wanted(wanted, kind) if wanted else (None, "")
    if record is not None:
        return record
    newest = services.runs().records(kind=kind, limit=1)
    if why:
        instead = f"the newest {kind} is shown" if newest else f"there is no {kind} to show instead"
        style.verdict(f"{why}; {instead}.", "warning")
    return newest[0] if newest else None


def _wanted(run_id: str, kind: str) -> tuple[RunRecord | None, str]:
    """The run of an id when it is of the kind, else why not."""
    try:
        record = services.runs().record(run_id)
    except StoreError as error:
        shown = f"There is no run {run_id[:60]}"
        return None, shown if str(error).startswith("no run") else str(error).rstrip(".")
    if record.kind == kind:
        return record, ""
    return None, f"Run {run_id} is a {record.kind} and no {kind}: it is shown on {_PAGES.get(record.kind, 'Runs')}"
