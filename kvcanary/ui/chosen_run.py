"""The run that a page shows: the one that the address names, else the newest; another one is never shown without a word."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.settings import Settings, format_field
from kvcanary.errors import StoreError
from kvcanary.lab.records import RunRecord
from kvcanary.ui import services, style
from kvcanary.units import format_count

_PAGES = {"benchmark": "Benchmark", "campaign": "Fault lab"}
_NAMED = 4


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


def other_settings(record: RunRecord, planned: Settings) -> str:
    """A sentence with the settings of a run that Plan holds otherwise by now; '' where they are the same or the run has none."""
    given = record.spec.get("settings")
    if not isinstance(given, dict):
        return ""
    differing = [
        f"{name} {_value(name, given[name])} (Plan: {_value(name, value)})"
        for name, value in planned.to_flat().items()
        if name in given and format_field(name, given[name]) != format_field(name, value)
    ]
    if not differing:
        return ""
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return f"It ran with other settings than Plan has now: {', '.join(differing[:_NAMED])}{more}."


def _value(name: str, value: object) -> str:
    return format_count(value) if type(value) is int else format_field(name, value) or "none"
