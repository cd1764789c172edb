"""What a campaign runs: size, workload or trace, faults and configurations; how many runs that makes; start."""

from __future__ import annotations

import io
from dataclasses import replace

import streamlit as st

from kvcanary.errors import KvCanaryError
from kvcanary.lab.campaign import CONFIGS, DEFAULT_CONFIGS
from kvcanary.lab.campaign_job import NAMED_FAULTS, CampaignSpec, plan_of
from kvcanary.lab.campaign_load import LOAD_WORDS, SMALL, TRACE_REQUESTS, TraceSample, sample_trace
from kvcanary.lab.records import RunRecord
from kvcanary.ui import fault_lab_address, services, style
from kvcanary.units import format_count

_SEEDS = {"quick": 3, "full": 10}
_TRACE = "own trace"
_PROBLEM = "campaign_problem"
_UPLOAD_LIMIT_MB = 100
_LISTED = 5


def draw() -> None:
    """Choose, see how many runs that makes, and start."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        size = st.segmented_control(
            "Size", list(_SEEDS), default="quick", required=True, key="campaign_size", persist_state="session",
            help="quick: twelve faults and 3 seeds. full: every fault of the catalogue and 10 seeds.",
        )  # fmt: skip
        workload = st.selectbox(
            "Workload", [*LOAD_WORDS, _TRACE], key="campaign_workload", persist_state="session", width=190,
            help="What the simulated engine serves. " + "; ".join(f"{name}: {words}" for name, words in LOAD_WORDS.items())
            + f"; {_TRACE}: the requests of a file of yours.",
        )  # fmt: skip
        faults, configs = _choice(size)
        start = st.container(width="content")
    trace = _trace() if workload == _TRACE else None
    spec = CampaignSpec(
        faults=faults, configs=configs, seeds=_SEEDS[size], workload=SMALL if workload == _TRACE else workload,
        trace=None if trace is None else trace.to_dict(),
    )  # fmt: skip
    problem = "upload a trace first, or choose another workload" if workload == _TRACE and trace is None else ""
    try:
        count = len(plan_of(spec).run_keys())
        counted = f"{len(spec.faults)} faults × {len(spec.configs)} configurations × {spec.seeds} seeds"
        style.caption(f"{format_count(count)} runs: {counted}, less what changes nothing in memory. {_served(spec, trace)}")
    except KvCanaryError as error:
        problem = str(error)
    if problem:
        style.verdict(f"Cannot run: {problem}", "error" if workload != _TRACE else "note")
    queued = len(services.jobs().active())
    start.button(
        "Run" if not queued else f"Queue behind {queued}", key="run_campaign", type="secondary" if queued else "primary",
        disabled=bool(problem), on_click=_start, args=(spec,), icon=":material/play_arrow:",
    )  # fmt: skip
    if failure := st.session_state.pop(_PROBLEM, ""):
        style.verdict(failure, "error")


def _choice(size: str) -> tuple[list[str], list[str]]:
    """Faults and configurations; behind a button, because the matrix has to be seen whole."""
    names, preset = NAMED_FAULTS["all"], NAMED_FAULTS["quick" if size == "quick" else "all"]
    with st.popover("Faults and configurations", width="content", key="campaign_choice"):
        faults = st.multiselect(
            "Faults", names, default=preset, key=f"campaign_faults.{size}", persist_state="session",
            help="What is broken on purpose, one fault in a run; each makes a row of the matrix. Begins with those of the size.",
        )  # fmt: skip
        configs = st.multiselect(
            "Configurations", list(CONFIGS), default=list(DEFAULT_CONFIGS), key="campaign_configs", persist_state="session",
            help="Six from nothing to everything, and each of kvcanary's strict checks beside “partial”.",
        )  # fmt: skip
    return faults, configs


def _served(spec: CampaignSpec, trace: TraceSample | None) -> str:
    if trace is None:
        return f"Workload {spec.workload}: {LOAD_WORDS[spec.workload]}."
    return f"Workload: {trace.summary}."


def _trace() -> TraceSample | None:
    """Upload of a trace, which part of it and how fast; its bad rows by line number."""
    left, right = st.columns([3, 2], gap="medium")
    with left:
        file = st.file_uploader(
            "Trace: Mooncake JSON lines, Azure CSV or BurstGPT CSV", key="campaign_trace", max_upload_size=_UPLOAD_LIMIT_MB,
            help="A campaign serves a few dozen of its requests to a small simulated pool; nothing leaves this host.",
        )  # fmt: skip
    with right, st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        first = st.number_input(
            "From request", 1, value=1, step=1, key="campaign_trace_first", width=140,
            help="The first request of the trace that is served; those before it are left out.",
        )  # fmt: skip
        speed = st.segmented_control(
            "Arrivals", [1, 4, 16, 64], default=4, required=True, key="campaign_trace_speed", format_func=lambda times: f"{times} ×",
            help="How much faster than in the trace. Where requests never meet, faults that need two of them find no victim.",
        )  # fmt: skip
    if file is None:
        return None
    try:
        sample, problems = _sampled(file.getvalue(), file.name, int(first), float(speed))
    except KvCanaryError as error:
        style.verdict(f"The trace was not read: {error}", "error")
        return None
    if problems:
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        style.verdict(f"Rows left out: {'; '.join(problems[:_LISTED])}{more}", "warning")
    return sample


@st.cache_data(max_entries=4, show_spinner="Reading the trace")
def _sampled(data: bytes, name: str, first: int, speed: float) -> tuple[TraceSample, list[str]]:
    sample, problems = sample_trace(
        io.StringIO(data.decode("utf-8", errors="replace")), name, first=first, speed=speed, limit=TRACE_REQUESTS
    )
    return sample, [str(problem) for problem in problems]


def go_on_button(record: RunRecord, missing: int) -> None:
    """Run what a campaign that ended early left over."""
    spec = replace(CampaignSpec(**record.spec), continues=record.id)
    label = f"Run the {format_count(missing)} missing run{'s' if missing > 1 else ''}"
    st.button(label, key="continue_campaign", type="primary", icon=":material/resume:", on_click=_start, args=(spec,))


def _start(spec: CampaignSpec) -> None:
    try:
        fault_lab_address.open_run(services.start(spec))
    except (KvCanaryError, OSError) as error:
        st.session_state[_PROBLEM] = f"Not started: {error}"
