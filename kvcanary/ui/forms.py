"""The settings form: one widget per field, its message beside it, changes taken while typing."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvcanary.config.findings import Finding
from kvcanary.config.presets import find_preset, presets
from kvcanary.config.settings import FIELDS, GROUPS, FieldSpec, format_field
from kvcanary.errors import ConfigError
from kvcanary.ui import plan_devices, state, style
from kvcanary.units import format_bytes, parse_size

FIRST_FIELDS = (
    "req_to_token_pool_size", "max_seq_len_per_req", "pool_slot_count", "page_size",
    "cuda_graph_max_bs", "speculative_num_draft_tokens", "max_prefill_tokens", "chunked_prefill_size",
    "mode", "real_data", "sweep_interval", "ring_capacity",
    "model", "kv_dtype", "num_layers", "num_kv_heads", "head_dim",
    "device_memory_bytes", "weight_bytes", "mem_fraction_static", "tp_size",
)  # fmt: skip
_PRESET = "preset"


def settings_form(findings: Sequence[Finding]) -> None:
    """All groups; rare fields fold away, and open by themselves when one of them has an error."""
    by_field = _messages(findings)
    style.mark_imported([state.widget_key(name) for name in state.sources()])
    for group in GROUPS:
        names = [name for name, spec in FIELDS.items() if spec.group == group]
        st.markdown(f"**{group.capitalize()}**")
        if group == "memory":
            plan_devices.draw()
        _grid([name for name in names if name in FIRST_FIELDS], by_field)
        rest = [name for name in names if name not in FIRST_FIELDS]
        if rest:
            changed = [name for name in rest if state.texts()[name] != format_field(name, FIELDS[name].default)]
            open_it = any(name in by_field and by_field[name].severity == "error" for name in rest)
            imported = sum(name in state.sources() for name in rest)
            counts = [f"{len(changed)} changed"] * bool(changed) + [f"{imported} with a source"] * bool(imported)
            label = f"More about {group}" + (f" ({', '.join(counts)})" if counts else "")
            with st.expander(label, expanded=open_it, key=f"more.{group}"):
                _grid(rest, by_field)


def preset_picker() -> None:
    """Start from a real configuration; choosing one replaces what is in the form."""
    titles = {preset.name: preset.title for preset in presets()}
    st.selectbox(
        "Start from a preset",
        list(titles),
        index=None,
        format_func=titles.__getitem__,
        key=_PRESET,
        placeholder="Start from a real configuration",
        label_visibility="collapsed",
        width=330,
        on_change=_apply_preset,
    )


def undo_button() -> None:
    """Take back the last preset, accelerator or choice; an import has its own button in its report."""
    if state.last_step() not in ("", "import"):
        st.button("Undo", key="undo", on_click=state.undo, icon=":material/undo:", help="Bring back the fields as they were before.")


def _apply_preset() -> None:
    chosen = st.session_state.get(_PRESET)
    if chosen is None:
        return
    preset = find_preset(chosen)
    state.replace_all({name: format_field(name, value) for name, value in preset.settings.items()}, f"preset {preset.title}")


def _messages(findings: Sequence[Finding]) -> dict[str, Finding]:
    first: dict[str, Finding] = {}
    for finding in findings:
        for name in finding.fields:
            first.setdefault(name, finding)
    return first


def _grid(names: list[str], by_field: dict[str, Finding]) -> None:
    """Two fields in a row at every width. One grid, because each container is a message to the browser at every keystroke."""
    texts, sources = state.texts(), state.sources()
    grid = st.grid(2, wrap=False, min_column_width=1, gap=("xxsmall", "small"), key=f"grid.{names[0]}")
    for name in names:
        with grid.cell():
            _field(FIELDS[name], texts[name])
            _line(name, texts[name], sources.get(name, ""), by_field.get(name))


def _field(spec: FieldSpec, text: str) -> None:
    key = state.widget_key(spec.name)
    # Widgets lose their value when another page is shown, so each is seeded from the text that the session keeps.
    st.session_state.setdefault(key, text)
    help_text = f"{spec.help} SGLang: `{spec.flag}`" if spec.flag else spec.help
    choices = ("true", "false") if spec.kind == "switch" else spec.choices
    if choices:
        # An unknown value from a link stays visible as one more choice and is explained, not replaced.
        options = [*choices, *([text] if text not in choices else [])]
        labels = {"true": "on", "false": "off"} if spec.kind == "switch" else {}
        st.selectbox(spec.label, options, key=key, help=help_text, format_func=lambda option: labels.get(option, option))
    else:
        st.text_input(spec.label, key=key, help=help_text, live="200ms", placeholder="none" if spec.optional else None, autocomplete="off")


def _line(name: str, text: str, source: str, finding: Finding | None) -> None:
    # A preset fills most fields: its name under each of them says nothing, the flag does.
    named = bool(source) and not source.startswith("preset ")
    origin = source if not named or source.startswith("derived") else f"from {source}"
    if finding is not None:
        said = finding.message.removeprefix("kv-canary: ").removeprefix(f"{name} ")
        style.line(" · ".join(part for part in (said, origin if named else "") if part), finding.severity.value)
    else:
        style.line(
            " · ".join(part for part in (_size(name, text), origin if named else FIELDS[name].flag) if part), "source" if source else "note"
        )


def _size(name: str, text: str) -> str:
    """A size in bytes as people say it; empty for other fields and for text that is none."""
    if FIELDS[name].kind != "size" or not text:
        return ""
    try:
        return f"= {format_bytes(parse_size(text))}"
    except ConfigError:
        return ""
