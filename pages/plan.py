"""Plan: will these settings start, and what does the canary cost?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import first_run, forms, import_box, plan_keep, plan_view, shell, state

shell.require_frame()
planned = plan_view.planned(state.current())
with st.container(horizontal=True, gap="small", vertical_alignment="center", key="plan_head"):
    st.title(
        "Plan", anchor=False, width="stretch",
        help="Says whether SGLang starts with these settings, and what the canary costs. A real configuration from the list on the right "
        "replaces every field; Undo brings them back.",
    )  # fmt: skip
    forms.undo_button()
    forms.preset_picker()
    plan_keep.button(planned.current)
plan_keep.said()
first_run.draw()
import_box.draw()
plan_view.verdict(planned)
with st.container(key="plan_columns"):
    left, right = st.columns([5, 7], gap="large")
with left:
    forms.settings_form(planned.current.findings)
with right:
    plan_view.draw(planned)
