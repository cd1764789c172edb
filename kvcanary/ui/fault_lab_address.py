"""Which run of a campaign is replayed, kept in the address, so that a link shows it and the back button leads back to the matrix.

Each change is one call, because the browser remembers every change of the address as a page of its own.
"""

from __future__ import annotations

import streamlit as st

_NAMES = ("fault", "config", "seed", "step", "slot")


def open_cell(kind: str, variant: str, config: str) -> None:
    """Replay a run of a cell."""
    _write({"fault": f"{kind}.{variant}", "config": config})


def open_seed(seed: int) -> None:
    """Another run of the same cell."""
    _write({name: st.query_params.get(name, "") for name in ("fault", "config")} | {"seed": str(seed)})


def open_slot(slot: int) -> None:
    """The card of a slot."""
    st.query_params["slot"] = str(slot)


def pin(step: int, slot: int) -> None:
    """Step and slot, for a link that leads to just this moment."""
    _write(
        {name: st.query_params[name] for name in ("fault", "config", "seed") if name in st.query_params}
        | {"step": str(step), "slot": str(slot)}
    )


def close() -> None:
    """Back to the matrix."""
    _write({})


def open_run(run_id: str) -> None:
    """Another campaign."""
    _write({"run": run_id})


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


def _write(values: dict[str, str]) -> None:
    kept = {name: text for name, text in st.query_params.to_dict().items() if name not in _NAMES}
    st.query_params.from_dict({**kept, **values})
