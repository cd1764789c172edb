"""The right side of the Plan page: the answer, the findings, the capacities, the memory, and one view of detail at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from kvcanary.charts import plan as charts
from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.findings import Severity, count_sentence
from kvcanary.config.geometry import Unknown
from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.memory import CANARY_PARTS, MemoryPlan, Verdict, memory_plan
from kvcanary.config.plan_report import cuts_pool, over_sentence
from kvcanary.config.remedies import canary_cost
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.ui import blocks, import_report, plan_choices, plan_findings, plan_lines, plan_log, plan_overflow, plan_solve, state, style
from kvcanary.units import format_bytes, format_count, format_fraction, group_digits

VIEW = "plan_view"
LOG_VIEW = "Log"
_CHART_CONFIG = {"displayModeBar": False}


@dataclass(frozen=True, slots=True)
class Planned:
    """The session's settings with their memory plan, or the sentence that says why there is none."""

    current: state.Current
    plan: MemoryPlan | None
    problem: str = ""


def planned(current: state.Current) -> Planned:
    """Plan the memory once per run; not from a default that stands where a field cannot be read."""
    if not current.readable:
        return Planned(current, None)
    try:
        return Planned(current, memory_plan(current.settings))
    except ConfigError as error:
        return Planned(current, None, str(error))


def verdict(given: Planned) -> None:
    """The answer in one sentence."""
    findings = given.current.findings
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    counted = count_sentence(finding.severity for finding in findings)
    if errors:
        head = "Will not start" if given.current.readable else "Not computed"
        style.verdict(f"{head}, {counted}: {errors[0].message.removeprefix('kv-canary: ').partition('; ')[0]}", "error")
    elif failed := import_report.failed_as_filled():
        style.verdict(f"Failed with these settings: {failed}", "error")
    elif given.plan is not None and given.plan.verdict is Verdict.OVER:
        style.verdict(over_sentence(given.plan), "warning" if cuts_pool(given.plan) else "error")
    else:
        worst = "warning" if any(finding.severity is Severity.WARNING for finding in findings) else "pass"
        style.verdict(f"Starts, with {counted}. {'' if given.plan is None else _cost_sentence(given.plan)}", worst)


def _cost_sentence(plan: MemoryPlan) -> str:
    if plan.settings.canary.mode == "none":
        return "The canary is off and costs nothing."
    workspace = plan.sum_of(line for line in plan.lines if line.part == "canary workspace")
    costs = canary_cost(plan)
    share = ""
    if not isinstance(costs, Unknown):
        cost = costs[2 if plan.settings.canary.verify_token_assert else 1]
        share = f", worth {format_count(cost.lost_slots)} slots or {format_fraction(cost.lost_fraction)} of the pool"
    return f"The canary takes {format_bytes(plan.canary_bytes)}{share}; {format_bytes(workspace)} of it only while a forward runs."


def draw(given: Planned) -> None:
    """Everything that follows from the form."""
    plan_findings.draw(given.current)
    if not given.current.readable:
        style.remark("Capacities and memory are computed once every field can be read.", "note")
        return
    _capacities(given.current)
    if given.plan is None:
        style.remark(f"Memory not computed: {given.problem}.", "note")
        return
    _memory(given.plan)
    plan_solve.draw_remedies(given.plan)
    # One view at a time: hidden tabs would be computed on every keystroke.
    view = st.segmented_control(
        "Details", list(_VIEWS), default="Solve", required=True, key=VIEW, persist_state="session",
        help="Solve and Frontier look for settings that fit, Lines shows how this plan adds up, Overflow when a forward goes unverified. Log "
        "compares it with a start-up log, Choices lists what SGLang sets by itself, and Flags writes the launch command.",
    )  # fmt: skip
    _VIEWS[view](given.plan, given.current)


def _capacities(current: state.Current) -> None:
    """The three figures with their formulas, one line each."""
    try:
        bounds = LaunchCapacities.from_settings(current.settings).bounds
    except ConfigError:
        style.remark("No launch capacities until the errors above are corrected.", "note")
        return
    rows = "".join(
        f'<tr title="{html_text(bound.source)}"><td>{html_text(bound.label)}</td><td class="n"><b>{format_count(bound.value)}</b></td>'
        f"<td><code>{html_text(group_digits(bound.text))}</code></td></tr>"
        for bound in bounds
    )
    st.html(f'<table class="kvc-table kvc-capacities"><tbody>{rows}</tbody></table>')


def _memory(plan: MemoryPlan) -> None:
    theme = state.theme()
    summary = charts.memory_summary(plan)
    items = charts.memory_key(plan, theme)
    key = blocks.key(item for item in items if item[0] not in CANARY_PARTS)
    canary_key = blocks.key(item for item in items if item[0] in CANARY_PARTS)
    for name, size, kind in (
        ("static share", plan.static_limit_bytes, "kvc-mark kvc-dots"),
        ("device", plan.budget_bytes, "kvc-mark"),
    ):
        if size is not None:
            key += f'<span><i class="{kind}"></i>{name} <b>{html_text(format_bytes(size))}</b></span>'
    st.html(f'<p class="kvc-finding"><b>Memory of one rank</b>: {html_text(plan.summary)}</p>')
    st.plotly_chart(charts.memory_bar(plan, theme), key="memory_bar", config=_CHART_CONFIG, alt=summary)
    st.html(f'<div class="kvc-key">{key}</div><div class="kvc-key">{canary_key}</div>')


def _flags(_plan: MemoryPlan, current: state.Current) -> None:
    st.code(sglang_flags(current.settings), language="shell", wrap_lines=True)


_VIEWS: dict[str, Callable[[MemoryPlan, state.Current], None]] = {
    "Solve": lambda plan, _: plan_solve.draw(plan),
    "Frontier": lambda plan, _: plan_solve.draw_frontier(plan),
    "Lines": lambda plan, _: plan_lines.draw(plan),
    "Overflow": lambda _, current: plan_overflow.draw(current.settings),
    LOG_VIEW: lambda _, current: plan_log.draw(current.settings),
    "Choices": lambda _, current: plan_choices.draw(current.settings),
    "Flags": _flags,
}
