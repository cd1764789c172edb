"""The right side of the Plan page: the answer, the findings, the capacities, the memory, the flags."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from kvcanary.charts import plan as charts
from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.findings import Severity
from kvcanary.config.geometry import Unknown
from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.remedies import canary_cost, remedies
from kvcanary.config.rules import RULES
from kvcanary.config.settings import Settings
from kvcanary.config.solve import FractionAnswer, PoolAnswer, frontier, largest_pool, smallest_fraction
from kvcanary.errors import ConfigError
from kvcanary.escape import markdown_text
from kvcanary.ui import blocks, state, style
from kvcanary.units import format_bytes, format_count

CHART_CONFIG = {"displayModeBar": False}


def draw(current: state.Current) -> None:
    """Everything that follows from the form."""
    settings = current.settings
    with st.container(height=300, border=False, key="findings"):
        blocks.findings_list(current.findings)
        if not current.findings:
            style.caption(f"Nothing to report: all {len(RULES)} rules were checked.")
        if state.unknown_parameters():
            st.button("Drop what is unknown in the link", on_click=state.forget_unknown, key="forget_unknown")
    _capacities(settings)
    _memory(current)


def verdict(current: state.Current) -> None:
    """The answer in one sentence."""
    errors = [finding for finding in current.findings if finding.severity is Severity.ERROR]
    counted = blocks.count_sentence(current.findings)
    if errors:
        head = "Will not start" if current.readable else "Not computed"
        style.verdict(f"{head}, {counted}: {errors[0].message.removeprefix('kv-canary: ').partition('; accepted forms')[0]}", "error")
        return
    worst = "warning" if any(finding.severity is Severity.WARNING for finding in current.findings) else "pass"
    style.verdict(f"Starts, with {counted}. {_cost_sentence(current.settings)}", worst)


def _cost_sentence(settings: Settings) -> str:
    if settings.canary.mode == "none":
        return "The canary is off and costs nothing."
    plan = memory_plan(settings)
    workspace = plan.sum_of(line for line in plan.lines if line.part == "canary workspace")
    return f"The canary takes {format_bytes(plan.canary_bytes)} of memory, {format_bytes(workspace)} of it as workspace of a forward."


def _capacities(settings: Settings) -> None:
    st.markdown("**Launch capacities**", help="What one forward may hold. SGLang fixes these when it installs the canary.")
    try:
        capacities = LaunchCapacities.from_settings(settings)
    except ConfigError as error:
        style.line(f"not computed: {error}", "note")
        return
    for column, bound in zip(st.columns(3, gap="small"), capacities.bounds, strict=True):
        with column:
            blocks.figure(bound.label, format_count(bound.value), bound)


def _memory(current: state.Current) -> None:
    st.markdown("**Memory of one rank**", help="Weights, KV pool, canary and tables of one accelerator.")
    try:
        plan = memory_plan(current.settings)
    except ConfigError as error:
        style.line(f"not computed: {error}", "note")
        return
    summary = charts.memory_summary(plan)
    st.plotly_chart(charts.memory_bar(plan, state.theme()), key="memory_bar", config=CHART_CONFIG, alt=summary)
    style.caption(summary)
    # One view at a time: hidden tabs would be computed on every keystroke.
    view = st.segmented_control(
        "Details", list(_VIEWS), default="Limits", key="plan_view", label_visibility="collapsed", persist_state="session"
    )
    if view is not None:
        _VIEWS[view](plan, current)


def _lines(plan: MemoryPlan, _current: state.Current) -> None:
    blocks.table(("part", "bytes", "formula with your numbers", "source"), charts.part_rows(plan), numeric=(1,))


def _limits(plan: MemoryPlan, _current: state.Current) -> None:
    for number, fix in enumerate(remedies(plan)):
        st.button(
            markdown_text(fix.text),
            key=f"remedy.{number}.{fix.field}",
            on_click=state.set_value,
            args=(fix.field, fix.value),
            help=f"As a flag: {markdown_text(fix.flag)}",
        )
    rows = [
        ("largest pool for this memory", _said(largest_pool(plan))),
        ("smallest static fraction for this pool", _said(smallest_fraction(plan))),
    ]
    costs = canary_cost(plan)
    rows += (
        [(f"canary {cost.label}", cost.text) for cost in costs] if isinstance(costs, tuple) else [("canary cost in slots", _said(costs))]
    )
    blocks.table(("question", "answer"), rows)


def _said(answer: PoolAnswer | FractionAnswer | Unknown) -> str:
    return f"unknown: {answer.text}; would be settled by {answer.settle}" if isinstance(answer, Unknown) else answer.text


def _frontier(plan: MemoryPlan, _current: state.Current) -> None:
    found = frontier(plan)
    if isinstance(found, Unknown):
        style.caption(f"The frontier is {_said(found)}.")
        return
    summary = charts.frontier_summary(found)
    st.plotly_chart(charts.frontier_chart(found, state.theme()), key="frontier", config=CHART_CONFIG, alt=summary)
    style.caption(summary)
    rows = [(format_count(p.concurrency), format_count(p.context), format_count(p.pool_slots), p.limit) for p in found.points]
    blocks.table(("requests at once", "longest context", "pool slots", "limited by"), rows, numeric=(0, 1, 2))


def _flags(_plan: MemoryPlan, current: state.Current) -> None:
    if not current.readable:
        style.line("some fields hold no value; correct them first", "note")
        return
    st.code(sglang_flags(current.settings), language="shell", wrap_lines=True)


_VIEWS: dict[str, Callable[[MemoryPlan, state.Current], None]] = {
    "Limits": _limits,
    "Frontier": _frontier,
    "Line by line": _lines,
    "SGLang flags": _flags,
}
