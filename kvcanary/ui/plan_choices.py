"""What SGLang chooses for flags that nobody gave, beside the form's values, and a button that takes the choices over."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.choices import CHOSEN_FIELDS, choose_missing
from kvcanary.config.defaults import Derived
from kvcanary.config.settings import FIELDS, Settings, format_field, read_flat
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.ui import blocks, state, style
from kvcanary.units import group_digits

DERIVED = "derived as SGLang does: "


def unstated(values: dict[str, str], origin: dict[str, str]) -> list[str]:
    """Fields of CHOSEN_FIELDS that nobody gave: still at the form's default, or filled by an earlier choice."""
    return [
        name
        for name in CHOSEN_FIELDS
        if origin.get(name, "").startswith(DERIVED) or (name not in origin and values[name] == format_field(name, FIELDS[name].default))
    ]


def fill(values: dict[str, str], origin: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Texts and sources that complete some settings with the engine's choices; empty where the settings cannot be read."""
    settings, problems = read_flat(values)
    if problems:
        return {}, {}
    try:
        _, derived, _ = choose_missing(settings, unstated(values, origin))
    except ConfigError:
        return {}, {}
    texts = {entry.field: format_field(entry.field, entry.value) for entry in derived}
    return texts, {entry.field: _source(entry) for entry in derived}


def draw(settings: Settings) -> None:
    """The choices, each with its rule, and which of them nobody has stated."""
    try:
        _, derived, open_fields = choose_missing(settings, CHOSEN_FIELDS)
    except ConfigError as error:
        style.remark(f"Not known: {error}.", "note")
        return
    free = unstated(state.texts(), state.sources())
    able = [
        entry.field for entry in derived if entry.field in free and format_field(entry.field, entry.value) != state.texts()[entry.field]
    ]
    style.caption("What SGLang would choose if these flags were left out, each building on the ones before it.")
    if able:
        label = (
            f"Use SGLang's choice for the {len(able)} that nobody stated"
            if len(able) > 1
            else "Use SGLang's choice where nothing was stated"
        )
        st.button(label, key="use_choices", on_click=_use)
    rows = [_cells(entry.field, format_field(entry.field, entry.value), f"{entry.rule}: {entry.formula}", free) for entry in derived]
    rows += [_cells(entry.field, "unknown", f"{entry.text}; settled by {entry.settle}", free) for entry in open_fields]
    rows.sort(key=lambda row: row[0])
    blocks.html_table(("setting", "now", "SGLang", "rule with your numbers"), [row[1:] for row in rows], numeric=(1, 2))


def _cells(name: str, choice: str, rule: str, free: list[str]) -> tuple[int, str, str, str, str]:
    spec = FIELDS[name]
    stated = "not stated" if name in free else state.sources().get(name, "typed in the form")
    return (
        CHOSEN_FIELDS.index(name),
        f'{html_text(spec.label)}<br><span class="kvc-quiet">{html_text(spec.flag)}</span>',
        f'{html_text(group_digits(state.texts()[name]) or "none")}<br><span class="kvc-quiet">{html_text(stated[:40])}</span>',
        html_text(group_digits(choice)),
        f'<span class="kvc-quiet">{html_text(group_digits(rule))}</span>',
    )


def _use() -> None:
    texts, origin = fill(state.texts(), state.sources())
    if texts:
        state.merge_in(texts, origin)


def _source(entry: Derived) -> str:
    return f"{DERIVED}{entry.formula}"
