"""Fault lab: which faults would this canary catch, how soon, at what price, and which never?"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import fault_lab_view, shell

shell.require_frame()
st.title("Fault lab", anchor=False)
fault_lab_view.controls()
fault_lab_view.result()
