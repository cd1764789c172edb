"""Which run of a campaign is replayed, kept in the address, so that a link shows it and the back button leads back to the matrix."""

from __future__ import annotations

import streamlit as st

_NAMES = ("fault", "config", "seed", "step", "slot")


def open_cell(kind: str, variant: str, config: str) -> None:
    """Replay a run of a cell."""
    close()
    st.query_params["fault"] = f"{kind}.{variant}"
    st.query_params["config"] = config


def close() -> None:
    """Back to the matrix."""
    for name in _NAMES:
        st.query_params.pop(name, None)


def cell() -> tuple[str, str, str] | None:
    """Kind, variant and configuration that the address names; None when it names none. They need not exist."""
    fault, config = st.query_params.get("fault", ""), st.query_params.get("config", "")
    if not fault and not config:
        return None
    kind, _, variant = fault.partition(".")
    return kind, variant, config


def number(name: str) -> int | None:
    """A whole number of the address: seed, step or slot; None where there is none."""
    text = st.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 12 else None


def set_number(name: str, value: int) -> None:
    """Put a number into the address."""
    st.query_params[name] = str(value)
