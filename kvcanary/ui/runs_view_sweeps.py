"""Sweeps on the page where their results land: how far each is, stop, and what became of the last ones. Polls only while one goes on."""

from __future__ import annotations

import streamlit as st

from kvcanary.errors import JobError, StoreError
from kvcanary.escape import markdown_text
from kvcanary.store import sweep_progress
from kvcanary.store.sweep_progress import SweepProgress
from kvcanary.ui import access, runs_view, services, style

_POLL_S = 1.0


def sweeps() -> None:
    """Every sweep of this data folder that goes on, was killed, or ended within the last hour; nothing when there is none."""
    found = sweep_progress.shown_sweeps(services.home())
    if any(sweep.alive for sweep in found):
        _live([_outcomes(sweep) for sweep in found])
    else:
        _draw(found)


@st.fragment(run_every=_POLL_S)
def _live(drawn: list[tuple[str, int, bool]]) -> None:
    """The sweeps as they are now; the list of runs below is drawn anew when a point has ended since it was `drawn`."""
    found = sweep_progress.shown_sweeps(services.home())
    if [_outcomes(sweep) for sweep in found] != drawn:
        st.rerun()
    _draw(found)


def _outcomes(sweep: SweepProgress) -> tuple[str, int, bool]:
    return sweep.id, sweep.left, sweep.alive


def _draw(found: list[SweepProgress]) -> None:
    for sweep in found:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"sweep.{sweep.id}"):
            if sweep.alive:
                ended = sweep.points - sweep.left
                st.progress(ended / max(1, sweep.points), text=markdown_text(sweep.sentence))
                _runs_button(sweep)
                _stop_button(sweep)
            else:
                style.remark(sweep.sentence, "error" if sweep.ended_s is None or sweep.failed_verdicts else "note")
                _runs_button(sweep)
                st.button("Put away", key=f"sweep.away.{sweep.id}", on_click=_put_away, args=(sweep.id,), type="tertiary")


def _runs_button(sweep: SweepProgress) -> None:
    help_text = "Narrow the list to the runs of this sweep."
    st.button("Its runs", key=f"sweep.runs.{sweep.id}", on_click=_narrow, args=(sweep.label,), type="tertiary", help=help_text)


def _narrow(label: str) -> None:
    st.session_state[runs_view.LABEL_KEY] = label


def _stop_button(sweep: SweepProgress) -> None:
    key = f"sweep.stop.{sweep.id}"
    if sweep.stopping:
        st.button("Stopping", key=key, disabled=True)
    elif access.user().may_change(""):
        st.button("Stop sweep", key=key, on_click=_stop, args=(sweep.id,), icon=":material/stop:")
    else:
        st.button("Stop sweep", key=key, disabled=True, help="A sweep belongs to who called it; only an administrator can stop it here.")


def _stop(sweep_id: str) -> None:
    try:
        services.stop_sweep(sweep_id)
    except (JobError, StoreError):
        # It ended between the drawing of the button and the click, which is what was wanted.
        return


def _put_away(sweep_id: str) -> None:
    sweep_progress.put_away(services.home(), sweep_id)
