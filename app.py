"""The dashboard: page configuration and navigation. Start it with: streamlit run app.py"""

from __future__ import annotations

import streamlit as st

from kvcanary.ui import shell, style

st.set_page_config(page_title="kvcanary", page_icon=style.ICON, layout="wide", initial_sidebar_state="auto")

page = shell.navigation()
with shell.frame():
    page.run()
