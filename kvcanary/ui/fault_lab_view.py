"""The result of a campaign: matrix, latency, frontier, the answer in a sentence; or one of its runs replayed."""

from __future__ import annotations

import streamlit as st

from kvcanary.charts import detection
from kvcanary.charts import frontier as charts
from kvcanary.charts.sections import VERDICT_KINDS, costs_table
from kvcanary.errors import KvCanaryError
from kvcanary.escape import markdown_text
from kvcanary.lab.campaign_job import CampaignSpec, plan_of
from kvcanary.lab.frontier import answer, best_cost, headline, launch_settings
from kvcanary.lab.records import RunRecord, RunState
from kvcanary.ui import (
    blocks,
    fault_lab_address,
    fault_lab_controls,
    fault_lab_data,
    fault_lab_replay,
    progress,
    selection,
    services,
    state,
    style,
)
from kvcanary.ui.fault_lab_data import Campaign
from kvcanary.units import format_count, format_fraction

_CONFIG = {"displayModeBar": False}
_LIVE_S, _RUNS_PER_S = 2.0, 300
_SECONDS, _ENTRIES = "cost in seconds", "cost in entries"
_STEPS, _TOKENS = "latency in steps", "latency in tokens"


def result(record: RunRecord | None) -> None:
    """A campaign while it runs, and when it is over."""
    if record is None:
        st.info("No campaign has run yet. Press Run: each fault is planted under each configuration, and the matrix says what was seen.")
        return
    if record.state.active:
        progress.panel(record.id)
        st.fragment(_live, run_every=pace_s(record))(record.id)
        return
    try:
        campaign = fault_lab_data.load(record)
    except KvCanaryError as error:
        _failed(record)
        style.verdict(f"The runs of this campaign cannot be shown: {error}", "error")
        return
    _ended(record, campaign)
    if campaign.missing:
        fault_lab_controls.go_on_button(record, campaign.missing)
    if campaign.runs:
        matrix(campaign)
        _latency_and_cost(campaign)
        _answer(campaign)


def _ended(record: RunRecord, campaign: Campaign) -> None:
    """How it ended, and the answer as far as there is one."""
    said = []
    if record.state is not RunState.DONE:
        ran, planned = format_count(len(campaign.runs)), format_count(len(campaign.plan.run_keys()))
        said.append(f"{record.state.value.capitalize()} after {ran} of {planned} runs.")
    if campaign.alarms:
        said.append(f"{campaign.alarms}.")
    if campaign.runs:
        said.append(headline(campaign.plan, campaign.costs, campaign.cells))
    style.verdict(" ".join(said) or record.sentence, VERDICT_KINDS[record.verdict])
    _failed(record)


def _failed(record: RunRecord) -> None:
    if record.state in (RunState.FAILED, RunState.INTERRUPTED):
        with st.expander("Last words of the worker"):
            st.code(record.error or "nothing was printed", language=None, wrap_lines=True)


def pace_s(record: RunRecord) -> float:
    """How long a matrix of a campaign that runs is left as it is: reading and summing up thousands of runs takes a second of its machine."""
    try:
        planned = len(plan_of(CampaignSpec(**record.spec)).run_keys())
    except KvCanaryError:
        return _LIVE_S
    return max(_LIVE_S, planned / _RUNS_PER_S)


def _live(run_id: str) -> None:
    """The matrix as far as it is known."""
    try:
        campaign = fault_lab_data.load(services.jobs().status(run_id).record)
    except KvCanaryError as error:
        style.caption(f"The runs so far cannot be shown: {error}")
        return
    if campaign.runs:
        matrix(campaign, clickable=False)
    else:
        style.caption("The matrix appears with the first run.")


def matrix(campaign: Campaign, *, clickable: bool = True) -> None:
    """The matrix and its table; a cell or a row opens a replay."""
    key, text = f"matrix.{campaign.run_id}.{clickable}", detection.matrix_summary(campaign.cells)

    def take() -> None:
        if found := selection.marked(key):
            fault_lab_address.open_cell(*found[0][:3])

    st.markdown(
        "**What each configuration sees**",
        help="Rows: injected faults, grouped by what they hit. Columns: canary configurations, cheapest first. A cell: the share of its "
        "runs in which anything was reported at or after the fault.",
    )
    figure = detection.matrix(campaign.cells, campaign.costs, state.theme())
    with st.container(key="kvl_matrix"):
        if clickable:
            st.plotly_chart(figure, key=key, config=_CONFIG, alt=text, on_select=take, selection_mode="points")
        else:
            st.plotly_chart(figure, key=key, config=_CONFIG, alt=text)
    if clickable:
        style.caption(f"{text} Click a cell to replay one of its runs, step by step.")
        with st.expander("The same as a table: select a row (Shift+Space) to replay one of its runs", key=f"table.{campaign.run_id}"):
            _cell_table(campaign)
    else:
        style.caption(text)


def _cell_table(campaign: Campaign) -> None:
    key, cells = f"cells.{campaign.run_id}", campaign.cells

    def take() -> None:
        if (row := selection.first_row(key)) is not None:
            fault_lab_address.open_cell(cells[row].kind, cells[row].variant, cells[row].config)

    table = {
        "fault": [f"{cell.kind}.{cell.variant}" for cell in cells],
        "configuration": [cell.config for cell in cells],
        "result": [cell.outcome for cell in cells],
        "95 % interval": [_interval(cell.rate_low, cell.rate_high) for cell in cells],
        "injected": [cell.injected for cell in cells],
        "latency p50, steps": [cell.latency_p50 for cell in cells],
        "latency p90, steps": [cell.latency_p90 for cell in cells],
        "tokens to the report p50": [cell.latency_tokens_p50 for cell in cells],
        "p90": [cell.latency_tokens_p90 for cell in cells],
        "victims' tokens p50": [cell.corrupt_tokens_p50 for cell in cells],
        "slots flagged p50": [cell.slots_flagged_p50 for cell in cells],
        "requests flagged p50": [cell.requests_flagged_p50 for cell in cells],
        "coverage p50": [None if cell.coverage_p50 is None else format_fraction(cell.coverage_p50) for cell in cells],
        "entries per step": [round(cell.verified_per_step) for cell in cells],
        "reported as": [", ".join(cell.reports) for cell in cells],
        "why out of reach": [cell.reason for cell in cells],
    }
    st.dataframe(
        table, key=key, hide_index=True, height=300, on_select=take, selection_mode="single-row",
        alt="Every cell of the matrix; select a row (Shift+Space) to replay one of its runs.",
    )  # fmt: skip


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{format_fraction(low)} to {format_fraction(high)}"


def _latency_and_cost(campaign: Campaign) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(
            "**How soon**",
            help="Share of all injected faults that were reported within so many forwards of the fault, or tokens that all requests computed "
            "from it on. Marks: half of what a configuration reports (open), nine in ten (filled). Steps say how "
            "long a server goes on; tokens how much was computed meanwhile.",
        )
        by_tokens = st.session_state.get("latency_unit", _STEPS) == _TOKENS
        curves = campaign.token_curves if by_tokens else campaign.curves
        text = charts.latency_summary(curves, by_tokens=by_tokens)
        figure = charts.latency(curves, state.theme(), by_tokens=by_tokens)
        st.plotly_chart(figure, key=f"latency.{campaign.run_id}.{by_tokens}", config=_CONFIG, alt=text)
        st.segmented_control(
            "Latency", [_STEPS, _TOKENS], default=_STEPS, required=True, key="latency_unit", label_visibility="collapsed",
            persist_state="session",
        )  # fmt: skip
        style.caption(text)
    with right:
        st.markdown(
            "**Cost against detection**",
            help="Filled marks are on the frontier: nothing else finds as many for less. Seconds were measured on this host, with whatever "
            "else ran there; entries are the same everywhere.",
        )
        text = charts.frontier_summary(campaign.costs)
        price = st.session_state.get("frontier_price", _SECONDS)
        figure = charts.frontier(campaign.costs, state.theme(), by_entries=price == _ENTRIES)
        st.plotly_chart(figure, key=f"frontier.{campaign.run_id}", config=_CONFIG, alt=text)
        st.segmented_control(
            "Cost", [_SECONDS, _ENTRIES], default=_SECONDS, required=True, key="frontier_price", label_visibility="collapsed",
            persist_state="session",
        )  # fmt: skip
        style.caption(text)
    with st.expander("Both as a table", key=f"costs.{campaign.run_id}"):
        table = costs_table(campaign.costs, campaign.curves)
        blocks.table(table.head, table.rows, numeric=table.numeric)


def _answer(campaign: Campaign) -> None:
    best = best_cost(campaign.plan, campaign.costs)
    if best is None:
        return
    names = [row.config for row in campaign.costs]
    chosen = st.selectbox(
        "What would I get with", names, index=names.index(best.config), key=f"answer.{campaign.run_id}", width=320,
        help="At first the configuration of SGLang itself that finds most.",
    )  # fmt: skip
    row = next(row for row in campaign.costs if row.config == chosen)
    config = campaign.plan.configs[row.config]
    style.verdict(answer(campaign.plan, row, campaign.cells), "note")
    st.code(launch_settings(config), language=None, wrap_lines=True)
    notes = []
    if config.strict:
        notes.append("The strict checks are kvcanary's own; SGLang 0.5.23 has no flag for them.")
    if config.write_input_assert:
        notes.append("The input check needs SGLang's token oracle, which makes up every reply: for the engine's own tests only.")
    blind = [cell for cell in campaign.cells if cell.config == row.config and not cell.visible]
    if notes:
        style.caption(" ".join(notes))
    if blind:
        with st.expander(f"What it can never see, and why ({len(blind)})", key=f"blind.{campaign.run_id}.{row.config}"):
            blocks.table(("fault", "why"), [(f"{cell.kind}.{cell.variant}", cell.reason) for cell in blind])


def replay_view(record: RunRecord | None) -> bool:
    """The replay that the address asks for; false when it asks for none, or when the campaign still runs."""
    wanted = fault_lab_address.cell()
    if wanted is None or record is None or record.state.active:
        return False
    st.title(markdown_text(fault_lab_replay.title(*wanted[:2])), anchor=False)
    try:
        campaign = fault_lab_data.load(record)
    except KvCanaryError as error:
        fault_lab_replay.back_button()
        style.verdict(f"The runs of this campaign cannot be shown: {error}", "error")
        return True
    cell = campaign.cell(wanted)
    if cell is None:
        fault_lab_replay.back_button()
        style.verdict(
            f"Campaign {record.id} has no cell {'.'.join(wanted[:2])[:60]} under {wanted[2][:60] or 'no configuration'}.", "warning"
        )
        return True
    fault_lab_replay.draw(campaign, cell)
    return True
