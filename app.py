"""The dashboard. Start it with: streamlit run app.py

Run for a session it is the page, imported by the server it is the application around the pages.
"""

from __future__ import annotations

import streamlit as st

if __name__ == "__main__":
    from kvcanary.ui import access, shell, style

    st.set_page_config(page_title="kvcanary", page_icon=style.ICON, layout="wide", initial_sidebar_state="auto")
    page = shell.navigation()
    access.admit()
    with shell.frame():
        page.run()
else:
    from starlette.middleware import Middleware

    from kvcanary.ui import hosts, server

    app = st.App(
        __file__, secrets=server.app_secrets(), routes=server.routes(), lifespan=server.lifespan, on_script_error=server.on_error,
        middleware=[Middleware(hosts.KnownHosts)],
    )  # fmt: skip
