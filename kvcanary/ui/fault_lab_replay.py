"""One run of a campaign, stepped through: the pool at a step, and what was reported there."""

from __future__ import annotations

import streamlit as st

from kvcanary.analysis import slot_map
from kvcanary.charts import slots as charts
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CampaignPlan, RunKey
from kvcanary.lab.replay import Replay, replay
from kvcanary.ui import state

_ROWS = 17


@st.cache_data(max_entries=8, show_spinner="Replaying the run")
def _frames(_plan: CampaignPlan, run_id: str, key: RunKey) -> Replay:
    return replay(_plan, key, choose_backend("auto", "cpu")[0])


@st.fragment
def draw(run_id: str, plan: CampaignPlan, key: RunKey) -> None:
    """A step slider that starts at the fault, the map of that step, and its reports."""
    played = _frames(plan, run_id, key)
    record = played.record
    if record is None:
        st.caption("The fault found no victim in this run.")
        return
    frames = {frame.index: frame for frame in played.frames}
    steps = list(frames)
    reported = [frame.index for frame in played.frames if frame.index >= record.step and (frame.reports or frame.strict_reports)]
    told = f"first reported in step {reported[0]}" if reported else "never reported"
    st.caption(
        f"Injected in step {record.step} on slots {', '.join(map(str, record.slots)) or 'none'}; {told}. Arrow keys move the slider."
    )
    index = st.slider("Step", steps[0], steps[-1], value=record.step, key=f"step.{'.'.join(map(str, key))}")
    frame = frames[index]
    summary = slot_map.summary_line(frame.status)
    st.caption(
        f"Step {index}: {frame.requests} requests, {frame.tokens} tokens computed, {frame.verified} entries verified"
        f"{f', the fault changed {frame.changed} units here' if frame.changed else ''}. {summary}"
    )
    selected = next((slot for slot in record.slots if 0 <= slot < len(frame.status)), 0)
    view = slot_map.window_around(frame.status, selected, rows=_ROWS)
    st.plotly_chart(charts.window(view, selected, state.theme()), key="replay.map", config={"displayModeBar": False}, alt=summary)
    lines = [*frame.reports, *(f"strict: {text}" for text in frame.strict_reports)]
    st.code("\n".join(lines) or "nothing reported in this step", language=None, wrap_lines=True)
