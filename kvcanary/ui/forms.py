"""The settings form: one widget per field, its message beside it, changes taken while typing."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.devices import catalogue, find_device
from kvcanary.config.findings import Finding
from kvcanary.config.presets import find_preset, presets
from kvcanary.config.settings import FIELDS, FieldSpec, format_field
from kvcanary.ui import state, style

GROUP_TITLES = {"pool": "Pool", "batch": "Batch", "canary": "Canary", "model": "Model", "memory": "Memory"}
FIRST_FIELDS = (
    "req_to_token_pool_size", "max_seq_len_per_req", "pool_slot_count", "page_size",
    "cuda_graph_max_bs", "speculative_num_draft_tokens", "max_prefill_tokens", "chunked_prefill_size",
    "mode", "real_data", "sweep_interval", "ring_capacity",
    "model", "kv_dtype", "num_layers", "num_kv_heads", "head_dim",
    "device_memory_bytes", "weight_bytes", "mem_fraction_static", "tp_size",
)  # fmt: skip
_PRESET, _DEVICE = "preset", "accelerator"


def settings_form(findings: list[Finding]) -> None:
    """All groups; rare fields fold away, and open by themselves when one of them has an error."""
    by_field = _messages(findings)
    for group, title in GROUP_TITLES.items():
        names = [name for name, spec in FIELDS.items() if spec.group == group]
        st.markdown(f"**{title}**")
        if group == "memory":
            _device_picker()
        _grid([name for name in names if name in FIRST_FIELDS], by_field)
        rest = [name for name in names if name not in FIRST_FIELDS]
        if rest:
            changed = [name for name in rest if state.texts()[name] != format_field(name, FIELDS[name].default)]
            open_it = any(name in by_field and by_field[name].severity == "error" for name in rest)
            label = f"More about {title.lower()}" + (f" ({len(changed)} changed)" if changed else "")
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
        on_change=_apply_preset,
    )


def undo_button() -> None:
    """Take back the last preset, while there is one; an import has its own button in its report."""
    if state.can_undo() and not state.imported():
        st.button("Undo", key="undo", on_click=state.undo, icon=":material/undo:", help="Bring back the fields as they were before.")


def _apply_preset() -> None:
    chosen = st.session_state.get(_PRESET)
    if chosen is None:
        return
    preset = find_preset(chosen)
    state.replace_all({name: format_field(name, value) for name, value in preset.settings.items()}, f"preset {preset.title}")


def _device_picker() -> None:
    st.selectbox(
        "Accelerator",
        [device.name for device in catalogue()],
        index=None,
        key=_DEVICE,
        placeholder="Pick an accelerator to fill in its memory",
        label_visibility="collapsed",
        on_change=_apply_device,
    )


def _apply_device() -> None:
    device = find_device(st.session_state.get(_DEVICE) or "")
    if device is not None:
        memory = device.memory_bytes or device.sheet_bytes
        state.merge_in({"device_memory_bytes": str(memory)}, {"device_memory_bytes": f"{device.name}: {device.memory_source}"})


def _messages(findings: list[Finding]) -> dict[str, Finding]:
    first: dict[str, Finding] = {}
    for finding in findings:
        for name in finding.fields:
            first.setdefault(name, finding)
    return first


def _grid(names: list[str], by_field: dict[str, Finding]) -> None:
    with st.container(gap="xxsmall"):
        for start in range(0, len(names), 2):
            for column, name in zip(st.columns(2, gap="small"), names[start : start + 2], strict=False):
                with column, st.container(gap="xsmall"):
                    _field(FIELDS[name])
                    _line(name, by_field.get(name))


def _field(spec: FieldSpec) -> None:
    key, text = state.widget_key(spec.name), state.texts()[spec.name]
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


def _line(name: str, finding: Finding | None) -> None:
    if finding is not None:
        text = finding.message.removeprefix("kv-canary: ").removeprefix(f"{name} ")
        style.line(text, finding.severity.value)
    else:
        source = state.sources().get(name, "")
        style.line(f"from {source}" if source else "", "source")
