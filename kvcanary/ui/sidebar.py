"""The sidebar: the current plan in two lines, the device and why, the running job. Nothing else."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.findings import count_sentence
from kvcanary.escape import html_text
from kvcanary.ui import access, progress, services, state
from kvcanary.units import format_count


def draw() -> None:
    """Fill the sidebar from the session."""
    current = state.current()
    settings = current.settings
    name = settings.model.model or "No model named"
    # Where a field cannot be read, the settings hold its default, which nobody chose.
    slots = f"{format_count(settings.pool.pool_slot_count)} slots" if current.readable else "not computed"
    counted = count_sentence(finding.severity for finding in current.findings)
    device = list(services.devices())[-1]
    with st.sidebar:
        st.html(
            f'<div class="kvc-side"><b>{html_text(name)}</b><br>{slots} · {html_text(counted)}'
            f"<br><br><b>Backend</b><br>{html_text(services.auto_choice(device))}</div>"
        )
        progress.sidebar()
        if access.login() is not None:
            st.html(f'<div class="kvc-side">Logged in as {html_text(access.user().name)}</div>')
            st.button("Log out", on_click=st.logout, key="logout")
