"""What a campaign runs: workload, faults, configurations and seeds; how many runs that makes; start."""

from __future__ import annotations

import streamlit as st

from kvcanary.errors import KvCanaryError
from kvcanary.lab.campaign import ALL_FAULTS, DEFAULT_CONFIGS
from kvcanary.lab.campaign_job import QUICK_FAULTS, CampaignSpec, plan_of
from kvcanary.ui import fault_lab_address, services, style
from kvcanary.units import format_count

_SEEDS = {"quick": 3, "full": 10}


def draw() -> None:
    """Choose, see how many runs that makes, and start."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        size = st.segmented_control(
            "Size", list(_SEEDS), default="quick", required=True, key="campaign_size", persist_state="session",
            help="quick: twelve faults and 3 seeds, well under a minute. full: every fault of the catalogue and 10 seeds.",
        )  # fmt: skip
        start = st.container(width="content")
    names = [".".join(fault) for fault in ALL_FAULTS]
    preset = [".".join(fault) for fault in (QUICK_FAULTS if size == "quick" else ALL_FAULTS)]
    with st.expander("Faults and configurations", key="campaign_choice"):
        faults = st.multiselect("Faults", names, default=preset, key=f"campaign_faults.{size}", persist_state="session")
        configs = st.multiselect(
            "Configurations", list(DEFAULT_CONFIGS), default=list(DEFAULT_CONFIGS), key="campaign_configs", persist_state="session"
        )
    spec = CampaignSpec(faults=faults, configs=configs, seeds=_SEEDS[size])
    problem = ""
    try:
        count = len(plan_of(spec).run_keys())
        style.caption(f"{format_count(count)} runs: {len(faults)} faults, {len(configs)} configurations, {spec.seeds} seeds, small pool.")
    except KvCanaryError as error:
        problem = str(error)
        style.verdict(f"Cannot run: {problem}", "error")
    queued = len(services.jobs().active())
    start.button(
        "Run" if not queued else f"Queue behind {queued}", key="run_campaign", type="primary", disabled=bool(problem), on_click=_start,
        args=(spec,), icon=":material/play_arrow:",
    )  # fmt: skip
    if failure := st.session_state.pop("campaign_problem", ""):
        style.line(failure, "error")


def _start(spec: CampaignSpec) -> None:
    try:
        st.query_params["run"] = services.start(spec)
        fault_lab_address.close()
    except (KvCanaryError, OSError) as error:
        st.session_state["campaign_problem"] = str(error)
