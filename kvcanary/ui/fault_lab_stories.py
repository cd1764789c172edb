"""Named stories after public reports: a few slots and steps, and which rows each configuration would print."""

from __future__ import annotations

import streamlit as st

from kvcanary.faults.catalogue import CATALOGUE
from kvcanary.faults.preset import Preset
from kvcanary.faults.presets import PRESETS
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CONFIGS, DEFAULT_CONFIGS
from kvcanary.lab.campaign_preset import PresetResult, tell
from kvcanary.ui import blocks, style


def draw() -> None:
    """Choose a story; what happens, and what is reported of it, row by row."""
    with st.expander("Stories from public reports, row by row", key="stories", on_change="rerun") as opened:
        if not opened.open:
            return
        name = st.selectbox(
            "Story", list(PRESETS), key="story", persist_state="session", format_func=lambda name: PRESETS[name].title,
            help="Small enough to follow slot by slot. Names and numbers are ours, the mechanisms are those of the reports.",
        )  # fmt: skip
        preset = PRESETS[name]
        style.verdict(preset.story, "note")
        blocks.table(("configuration", "step", "reported"), [row for found in _told(name) for row in _rows(found)])
        style.caption(_source(preset))
        st.code(f"kvcanary campaign --preset {name}", language=None)


def _rows(found: PresetResult) -> list[tuple[str, str, str]]:
    """One row per line of a configuration, which is named once; or why there is none."""
    if not found.lines:
        return [(found.config, "", found.reason or "nothing reported")]
    rows = [line.removeprefix("step ").split(": ", 1) for line in found.lines]
    return [(found.config if not index else "", step, text) for index, (step, text) in enumerate(rows)]


def _source(preset: Preset) -> str:
    refs = next(fault.refs for fault in CATALOGUE if fault.kind == preset.kind)
    reports = f" Reports of this kind: {', '.join(refs)}." if refs else ""
    return f"{preset.kind}.{preset.variant}.{reports}"


@st.cache_data(max_entries=64, show_spinner="Playing the story")
def _told(name: str) -> list[PresetResult]:
    return tell(PRESETS[name], {config: CONFIGS[config] for config in DEFAULT_CONFIGS}, choose_backend("auto", "cpu")[0])
