"""Plan: will these settings start, and what does the canary cost?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import forms, import_box, plan_view, shell, state

shell.require_frame()
current = state.current()
st.title("Plan", anchor=False)
import_box.draw()
plan_view.verdict(current)
left, right = st.columns([5, 7], gap="large")
with left:
    forms.preset_picker()
    forms.undo_button()
    forms.settings_form(current.findings)
with right:
    plan_view.draw(current)
