"""Fault lab: which faults would this canary catch, how soon, at what price, and which never?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import chosen_run, fault_lab_controls, fault_lab_stories, fault_lab_style, fault_lab_view, shell

shell.require_frame()
fault_lab_style.inject()
record = chosen_run.choose("campaign")
if not fault_lab_view.replay_view(record):
    st.title("Fault lab", anchor=False)
    fault_lab_controls.draw()
    fault_lab_view.result(record)
    fault_lab_stories.draw()
