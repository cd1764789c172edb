"""The Fault lab's parts: what to run, the matrix of the shown campaign, what the configurations cost, and one run replayed."""

from __future__ import annotations

import streamlit as st

from kvcanary.charts import detection
from kvcanary.errors import KvCanaryError, StoreError
from kvcanary.lab.campaign import ALL_FAULTS, DEFAULT_CONFIGS, CampaignPlan, CampaignRun, CellSummary, summarise
from kvcanary.lab.campaign_job import QUICK_FAULTS, CampaignSpec, plan_of, read_runs
from kvcanary.lab.frontier import ConfigCost, config_costs
from kvcanary.lab.records import RunRecord, Verdict
from kvcanary.ui import blocks, fault_lab_replay, progress, services, state, style
from kvcanary.units import format_count, format_fraction, format_seconds

_CELL = "cell"
_KINDS = {Verdict.PASS: "pass", Verdict.FAIL: "error", Verdict.PARTIAL: "warning", Verdict.NOT_RUN: "note"}
_SEEDS = {"quick": 3, "full": 10}


def controls() -> None:
    """Choose faults, configurations and size, see how many runs that makes, and start it."""
    size = st.segmented_control(
        "Size", list(_SEEDS), default="quick", required=True, key="campaign_size", persist_state="session",
        help="quick: twelve faults and 3 seeds. full: every fault of the catalogue and 10 seeds.",
    )  # fmt: skip
    names = [".".join(fault) for fault in ALL_FAULTS]
    preset = [".".join(fault) for fault in (QUICK_FAULTS if size == "quick" else ALL_FAULTS)]
    with st.expander("Faults and configurations"):
        faults = st.multiselect("Faults", names, default=preset, key=f"campaign_faults.{size}", persist_state="session")
        configs = st.multiselect(
            "Configurations", list(DEFAULT_CONFIGS), default=list(DEFAULT_CONFIGS), key="campaign_configs", persist_state="session"
        )
    spec = CampaignSpec(faults=faults, configs=configs, seeds=_SEEDS[size])
    problem = ""
    try:
        count = len(plan_of(spec).run_keys())
        st.caption(f"{format_count(count)} runs: {len(faults)} faults, {len(configs)} configurations, {spec.seeds} seeds, small pool.")
    except KvCanaryError as error:
        problem = str(error)
        style.verdict(f"Cannot run: {problem}", "error")
    st.button(
        "Run", key="run_campaign", type="primary", disabled=bool(problem), on_click=_start, args=(spec,), icon=":material/play_arrow:"
    )
    if failure := st.session_state.pop("campaign_problem", ""):
        style.line(failure, "error")


def _start(spec: CampaignSpec) -> None:
    try:
        st.query_params["run"] = services.jobs().start(spec)
    except (KvCanaryError, OSError) as error:
        st.session_state["campaign_problem"] = str(error)


def result() -> None:
    """The campaign named in the address, else the newest."""
    newest = services.runs().records(kind="campaign", limit=1)
    if not newest:
        st.info("No campaign has run yet. Press Run: each fault is planted under each configuration, and the matrix says what was seen.")
        return
    wanted = st.query_params.get("run", "")
    record = _wanted(wanted) or newest[0]
    if record.state.active:
        progress.panel(record.id)
    else:
        _finished(record)


def _wanted(run_id: str) -> RunRecord | None:
    try:
        record = services.runs().record(run_id)
    except StoreError:
        return None
    return record if record.kind == "campaign" else None


def _finished(record: RunRecord) -> None:
    style.verdict(record.sentence or f"{record.state.value.capitalize()}. {record.error}", _KINDS[record.verdict])
    plan = plan_of(CampaignSpec(**record.spec))
    runs = read_runs(services.runs().folder(record.id).path)
    if not runs:
        st.caption("No run was finished, so there is no matrix.")
        return
    cells = summarise(plan, runs)
    _matrix(record.id, cells)
    _costs(config_costs(plan, runs))
    _replay(record.id, plan, runs, cells)


def _matrix(run_id: str, cells: list[CellSummary]) -> None:
    key, text = f"matrix.{run_id}", detection.matrix_summary(cells)

    def take() -> None:
        points = st.session_state[key]["selection"]["points"]
        if points:
            data = points[0]["customdata"]
            values = list(data.values()) if isinstance(data, dict) else list(data)
            st.session_state[_CELL] = (values[0], values[1], values[2])

    st.markdown("**Detection**", help="Share of injected faults that were reported. Hatched: no check of that configuration can see it.")
    st.plotly_chart(
        detection.matrix(cells, state.theme()), key=key, config={"displayModeBar": False}, alt=text, on_select=take, selection_mode="points"
    )
    st.caption(f"{text} Click a cell, or select a row of the table, to replay a run.")
    _cell_table(run_id, cells)


def _cell_table(run_id: str, cells: list[CellSummary]) -> None:
    key = f"cells.{run_id}"

    def take() -> None:
        rows = st.session_state[key]["selection"]["rows"]
        if rows:
            cell = cells[rows[0]]
            st.session_state[_CELL] = (cell.kind, cell.variant, cell.config)

    table = {
        "fault": [f"{cell.kind}.{cell.variant}" for cell in cells],
        "configuration": [cell.config for cell in cells],
        "result": [cell.outcome for cell in cells],
        "95 % interval": ["" if c.rate_low is None else f"{c.rate_low * 100:.0f} to {(c.rate_high or 0) * 100:.0f} %" for c in cells],
        "injected": [cell.injected for cell in cells],
        "latency p50, steps": [cell.latency_p50 for cell in cells],
        "latency p90, steps": [cell.latency_p90 for cell in cells],
        "corrupt tokens p50": [cell.corrupt_tokens_p50 for cell in cells],
        "reported as": [", ".join(cell.reports) for cell in cells],
        "why out of reach": [cell.reason for cell in cells],
    }
    st.dataframe(
        table, key=key, hide_index=True, height=235, on_select=take, selection_mode="single-row",
        alt="Every cell of the matrix; select a row to replay one of its runs.",
    )  # fmt: skip


def _costs(costs: list[ConfigCost]) -> None:
    st.markdown("**Cost and detection**", help="On the frontier: nothing else finds as many for less.")
    blocks.table(
        ("configuration", "found", "latency p90", "entries per step", "canary per step", "on the frontier"),
        [
            (
                row.config,
                f"{format_fraction(row.rate)} of {row.injected}" if row.injected else "nothing injected",
                "none" if row.latency_p90 is None else f"{row.latency_p90:g} steps",
                format_count(round(row.verified_per_step)),
                format_seconds(row.canary_s_per_step),
                "yes" if row.on_frontier else "no",
            )
            for row in costs
        ],
        numeric=(1, 2, 3, 4),
    )


def _replay(run_id: str, plan: CampaignPlan, runs: list[CampaignRun], cells: list[CellSummary]) -> None:
    chosen = st.session_state.get(_CELL)
    cell = next((cell for cell in cells if (cell.kind, cell.variant, cell.config) == chosen), None)
    if cell is None:
        return
    st.subheader(f"{cell.kind}.{cell.variant} under {cell.config}", anchor=False)
    seeds = [run.key[3] for run in runs if run.key[:3] == chosen and run.changed]
    if cell.reason:
        st.caption(f"Out of reach: {cell.reason}.")
    if not seeds:
        st.caption("No run of this cell has a fault in memory, so there is nothing to replay.")
        return
    seed = st.selectbox("Seed", seeds, key=f"seed.{run_id}.{cell.kind}.{cell.variant}.{cell.config}", width=140)
    fault_lab_replay.draw(run_id, plan, (cell.kind, cell.variant, cell.config, seed))
