"""What a click on a chart, or a row of a table, has selected."""

from __future__ import annotations

from typing import Any

import streamlit as st


def marked(key: str) -> list[list[Any]]:
    """Customdata of the selected points of a chart; a point without any is nothing that can be opened."""
    points = st.session_state[key]["selection"]["points"]
    found = [point["customdata"] for point in points if point.get("customdata")]
    # The browser sends a list as an object with its places as names.
    return [list(data.values()) if isinstance(data, dict) else list(data) for data in found]


def first_row(key: str) -> int | None:
    """The selected row of a table, None where the selection was taken away."""
    rows: list[int] = st.session_state[key]["selection"]["rows"]
    return rows[0] if rows else None
