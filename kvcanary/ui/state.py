"""What a session remembers: the settings as typed, and their copy in the address bar.

The text of each field is the state, not its parsed value, so that an illegal entry survives page changes, reloads and links and can be
explained everywhere. The address is written by us instead of bound to widgets, because a bound choice drops a value that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import streamlit as st

from kvcanary.charts.theme import ThemeName
from kvcanary.config.findings import Finding, worst_first
from kvcanary.config.rules import validate
from kvcanary.config.settings import FIELDS, Settings, format_field, read_flat

_TEXT = "settings_text"
_WRITTEN = "address_written"
_UNKNOWN = "address_unknown"
_SOURCES = "field_sources"
_UNDO = "before_steps"
_GO = "next_page"
_UNDO_STEPS = 20
IMPORT_RESULT = "import_result"

PAGE_PARAMETERS = (
    "run", "slot", "fault", "config", "seed", "step", "theme", "embed",
    # Inspect's log and filters.
    "log", "time", "pool", "rank", "tag", "reason", "position", "token", "page", "stride", "incident",
)  # fmt: skip
_DEFAULT_TEXT = {name: format_field(name, spec.default) for name, spec in FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Current:
    """The settings of this session with everything there is to say about them.

    `settings` holds the default where a field is unreadable; `readable` is false then, and nothing may be started from it.
    """

    settings: Settings
    findings: Sequence[Finding]
    readable: bool


def widget_key(name: str) -> str:
    """Session key of a field's widget."""
    return f"field.{name}"


def texts() -> dict[str, str]:
    """The text of every field, in form order."""
    stored: dict[str, str] = st.session_state.setdefault(_TEXT, dict(_DEFAULT_TEXT))
    return stored


def begin() -> None:
    """At the top of each run, before any widget: take over the address and what was typed."""
    _adopt_address()
    known = texts()
    for name in FIELDS:
        typed = st.session_state.get(widget_key(name), known[name]) or ""
        if typed != known[name]:
            known[name] = typed
            # What was typed over an imported value no longer comes from there.
            sources().pop(name, None)


def _adopt_address() -> None:
    """Take the settings from the address when somebody else wrote it: a link, a bookmark, the back button."""
    parameters = {key: value for key, value in st.query_params.to_dict().items() if key not in PAGE_PARAMETERS}
    if _WRITTEN in st.session_state and (not parameters or parameters == st.session_state[_WRITTEN]):
        return
    st.session_state[_UNKNOWN] = {key: value for key, value in parameters.items() if key not in FIELDS}
    set_texts({**_DEFAULT_TEXT, **{key: value for key, value in parameters.items() if key in FIELDS}})
    st.session_state[_WRITTEN] = parameters


def set_texts(changes: Mapping[str, str]) -> None:
    """Change some fields; their widgets follow. Only before the widgets are drawn: in a callback or at the top of a run."""
    for name, text in changes.items():
        texts()[name] = text
        st.session_state[widget_key(name)] = text


def replace_all(values: Mapping[str, str], source: str = "") -> None:
    """Start over from other settings: fields not given take their defaults. Can be taken back with `undo`."""
    _remember("preset")
    st.session_state[IMPORT_RESULT] = None
    set_texts({**_DEFAULT_TEXT, **values})
    st.session_state[_UNKNOWN] = {}
    st.session_state[_SOURCES] = dict.fromkeys(values, source)


def merge_in(values: Mapping[str, str], origin: Mapping[str, str], *, step: str = "change", result: Any = None) -> None:
    """Fill some fields, each with the place its value came from; `result` is the import behind it. Can be taken back with `undo`."""
    _remember(step)
    if result is not None:
        st.session_state[IMPORT_RESULT] = result
    set_texts(values)
    st.session_state[_SOURCES] = {**sources(), **origin}


def _remember(step: str) -> None:
    kept: list[tuple[str, dict[str, str], dict[str, str], Any]] = st.session_state.setdefault(_UNDO, [])
    kept.append((step, dict(texts()), dict(sources()), st.session_state.get(IMPORT_RESULT)))
    del kept[:-_UNDO_STEPS]


def last_step() -> str:
    """What `undo` would take back: 'import', 'preset', 'change', or nothing."""
    kept = st.session_state.get(_UNDO)
    return kept[-1][0] if kept else ""


def undo(step: str = "") -> None:
    """Restore fields, sources and import report as they were before the last step, or before the last step of the given kind."""
    kept = st.session_state.get(_UNDO) or []
    while kept:
        taken, before, origin, result = kept.pop()
        if step in ("", taken):
            set_texts(before)
            st.session_state[_SOURCES] = origin
            st.session_state[IMPORT_RESULT] = result
            return


def set_value(name: str, value: Any) -> None:
    """Change one field to a typed value, for example by a fix."""
    set_texts({name: format_field(name, value)})
    sources().pop(name, None)


def write_address() -> None:
    """Put the fields that differ from their defaults into the address bar, keeping a page's own parameters."""
    parameters = {name: text for name, text in texts().items() if text != _DEFAULT_TEXT[name]}
    kept = {key: value for key, value in st.query_params.to_dict().items() if key in PAGE_PARAMETERS}
    if st.query_params.to_dict() != {**parameters, **kept}:
        st.query_params.from_dict({**parameters, **kept})
    st.session_state[_WRITTEN] = parameters


def current() -> Current:
    """Parse the texts and check every rule at once."""
    return _read(tuple({**texts(), **unknown_parameters()}.items()))


# The page and the sidebar both ask in one run, and most runs change no setting. A pure function of the texts, whoever typed them.
@lru_cache(maxsize=64)
def _read(given: tuple[tuple[str, str], ...]) -> Current:
    settings, problems = read_flat(dict(given))
    unreadable = {name for problem in problems for name in problem.fields}
    ruled = [finding for finding in validate(settings) if not unreadable.intersection(finding.fields)]
    return Current(settings, tuple(worst_first(problems + ruled)), not problems)


def untouched() -> bool:
    """Whether every field still has its default and nothing came with the address."""
    return texts() == _DEFAULT_TEXT and not unknown_parameters()


def unknown_parameters() -> dict[str, str]:
    """Parameters of the address that are no field."""
    unknown: dict[str, str] = st.session_state.setdefault(_UNKNOWN, {})
    return unknown


def forget_unknown() -> None:
    """Drop the parameters of the address that are no field."""
    st.session_state[_UNKNOWN] = {}


def sources() -> dict[str, str]:
    """Where imported fields came from: field -> 'line 3, --page-size'."""
    stored: dict[str, str] = st.session_state.setdefault(_SOURCES, {})
    return stored


def go_to(page: str) -> None:
    """For callbacks, which cannot switch the page themselves: the run that follows goes there."""
    st.session_state[_GO] = page


def next_page() -> str:
    """The page that a callback asked for, once; '' when none did."""
    page: str = st.session_state.pop(_GO, "")
    return page


def theme() -> ThemeName:
    """Light or dark, as the browser shows it."""
    return "dark" if st.context.theme.type == "dark" else "light"
