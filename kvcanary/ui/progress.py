"""A running job: stage, bar, what has been measured so far, stop. Polls only while there is something to poll."""

from __future__ import annotations

import streamlit as st

from kvcanary.analysis.frames import decode_variant, points_frame, variants
from kvcanary.charts import throughput
from kvcanary.errors import JobError, StoreError
from kvcanary.escape import html_text, markdown_text
from kvcanary.lab.jobs import JobStatus
from kvcanary.lab.records import RunRecord
from kvcanary.ui import access, blocks, services, state, style
from kvcanary.units import format_seconds

_POLL_S = 0.7


@st.fragment(run_every=_POLL_S)
def panel(run_id: str) -> None:
    """The job on its page; the whole page is drawn anew when it is over."""
    with blocks.sentence_for_trouble():
        _panel(run_id)


def _panel(run_id: str) -> None:
    status = services.jobs().status(run_id)
    if not status.record.state.active:
        st.rerun()
    _bar(status)
    _stop_button(status.record, "page")
    frame = points_frame(services.runs().points(run_id))
    found = variants(frame)
    if found:
        rows = decode_variant(frame, *found[-1])
        text = throughput.summary(rows, status.record.spec.get("step_time_s"))
        st.plotly_chart(throughput.by_batch(rows, state.theme()), key=f"live.{run_id}", config={"displayModeBar": False}, alt=text)
        style.caption(f"So far, hash {found[-1][0]}, {found[-1][1]}: {text}")


def sidebar() -> None:
    """The running job in the sidebar, on every page; nothing when no job is active."""
    if services.jobs().active():
        _sidebar_panel()


@st.fragment(run_every=_POLL_S)
def _sidebar_panel() -> None:
    with blocks.sentence_for_trouble():
        _active_jobs()


def _active_jobs() -> None:
    active = services.jobs().active()
    if not active:
        st.rerun()
    _bar(active[0])
    if len(active) > 1:
        style.caption(f"{len(active) - 1} more in the queue")
    _stop_button(active[0].record, "sidebar")


def _bar(status: JobStatus) -> None:
    if status.place:
        st.progress(0.0, text=f"Queued, place {status.place}")
        return
    progress = status.progress
    if progress is None:
        st.progress(0.0, text="Starting the worker")
        return
    eta = f", about {format_seconds(progress.eta_s)} left" if progress.eta_s is not None else ""
    st.progress(
        min(1.0, progress.done / max(1, progress.total)), text=markdown_text(f"{progress.stage.capitalize()}: {progress.message}{eta}")
    )


def _stop_button(record: RunRecord, place: str) -> None:
    if record.owner:
        st.html(f'<p class="kvc-why">Started by {html_text(access.name_of(record.owner))}</p>')
    if services.jobs().folder(record.id).stop_file.exists():
        st.button("Stopping", key=f"stop.{place}", disabled=True)
    elif access.user().may_change(record.owner):
        st.button("Stop", key=f"stop.{place}", on_click=_stop, args=(record.id,), icon=":material/stop:")
    else:
        st.button("Stop", key=f"stop.{place}", disabled=True, help="Only who started a job, or an administrator, can stop it.")


def _stop(run_id: str) -> None:
    try:
        services.stop(run_id)
    except (JobError, StoreError):
        # It ended between the drawing of the button and the click, which is what was wanted; trouble of the store is told by the panel.
        return
