"""For somebody new: three stories that load something real-shaped, go to its page, and say what to look at there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from kvcanary.config.presets import find_preset
from kvcanary.config.settings import format_field
from kvcanary.ui import inspect_input, state

_FRESH, _HINT = "first_run_fresh", "first_run_hint"


@dataclass(frozen=True, slots=True)
class Story:
    """A button: what it prepares, the page where it goes on, and what to look at there."""

    label: str
    about: str
    prepare: Callable[[], None]
    page: str
    hint: str


def _preset(name: str) -> Callable[[], None]:
    def load() -> None:
        preset = find_preset(name)
        state.replace_all({field: format_field(field, value) for field, value in preset.settings.items()}, f"preset {preset.title}")

    return load


STORIES = (
    Story(
        "Size a pool", "Loads Qwen3-8B on one H100 into Plan.", _preset("qwen3-8b-h100"), "pages/plan.py",
        "The bold line says whether this pool starts and what the canary costs. Change KV slots, and everything beside follows.",
    ),
    Story(
        "Does my canary work?", "Loads a small pool and goes to Benchmark.", _preset("laptop"), "pages/benchmark.py",
        "Press Run: the detector has to find planted faults first, only then it is timed. Marked tiles of the map open the card of a slot.",
    ),
    Story(
        "I have a violation log", "Reads an invented log on Inspect.", inspect_input.take_example, "pages/inspect_log.py",
        "An invented log of two ranks: verdict, likeliest cause, then where. Choose a mark or a row for one slot; read your own below.",
    ),
)  # fmt: skip


def draw() -> None:
    """The row of stories on Plan, for a session that came without settings; it stays while somebody types, so that nothing jumps."""
    if not st.session_state.setdefault(_FRESH, state.untouched()) or st.session_state.get(state.IMPORT_RESULT) is not None:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="first_run"):
        st.html('<span class="kvc-why">New here?</span>', width="content")
        for number, story in enumerate(STORIES):
            st.button(story.label, key=f"story.{number}", help=story.about, on_click=_begin, args=(number,))
        st.button("Not now", key="story.none", type="tertiary", on_click=_end)


def arrive() -> None:
    """At the top of each page: go on to the page that a button leads to, and say there what to look at until it is put away."""
    if page := state.next_page():
        st.switch_page(page)
    if text := st.session_state.get(_HINT):
        with st.container(horizontal=True, wrap=False, gap="small", vertical_alignment="center", key="story_hint"):
            st.info(text)
            st.button("Got it", key="story.close", width="content", on_click=lambda: st.session_state.pop(_HINT, None))


def _begin(number: int) -> None:
    story = STORIES[number]
    story.prepare()
    st.session_state[_FRESH] = False
    state.go_to(story.page)
    st.session_state[_HINT] = story.hint


def _end() -> None:
    st.session_state[_FRESH] = False
