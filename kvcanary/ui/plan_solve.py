"""The plan solved backwards: largest pool, smallest fraction, longest context, slots lost to the canary, and the frontier as a chart."""

from __future__ import annotations

import streamlit as st

from kvcanary.charts import plan as charts
from kvcanary.config.findings import Fix, Severity
from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import MemoryPlan
from kvcanary.config.remedies import canary_cost, remedies
from kvcanary.config.settings import flag_text, format_field
from kvcanary.config.solve import FractionAnswer, FrontierPoint, PoolAnswer, frontier, largest_context, largest_pool, smallest_fraction
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.ui import blocks, plan_findings, state, style
from kvcanary.units import format_bytes, format_count, format_fraction, parse_integer

CHART_CONFIG = {"displayModeBar": False}
_CONCURRENCY = "solve.concurrency"


def draw_remedies(plan: MemoryPlan) -> None:
    """Changes that make a plan over budget fit, each with its numbers; nothing where it fits."""
    found = remedies(plan)
    if found:
        with st.container(horizontal=True, gap="small", key="remedies"):
            for number, fix in enumerate(found):
                _button(f"remedy.{number}.{fix.field}", fix)


def draw(plan: MemoryPlan) -> None:
    """Each question with its answer and, where it is a setting, a button that takes it over."""
    pool, fraction = largest_pool(plan), smallest_fraction(plan)
    current = plan.settings
    with st.container(gap="xsmall", key="solved"):
        if isinstance(pool, Unknown):
            style.caption(f"Largest pool, smallest fraction and longest context: {_said(pool)}.")
            _longest_context(plan)
            _cost_table(plan)
            return
        value = pool.slots if isinstance(pool, PoolAnswer) and 0 < pool.slots != current.pool.pool_slot_count else None
        _answer("Largest pool for this memory", _said(pool), "pool_slot_count", value)
        share = (
            fraction.fraction if isinstance(fraction, FractionAnswer) and fraction.fraction != current.memory.mem_fraction_static else None
        )
        _answer("Smallest static fraction for this pool", _said(fraction), "mem_fraction_static", share)
        _longest_context(plan)
    _cost_table(plan)


def draw_frontier(plan: MemoryPlan) -> None:
    """Longest context by concurrency at this memory, with the settings' own point, as a chart and as a table."""
    found = frontier(plan)
    if isinstance(found, Unknown):
        style.caption(f"No frontier yet: {_said(found)}.")
        return
    summary = charts.frontier_summary(found)
    style.caption(summary)
    st.plotly_chart(charts.frontier_chart(found, state.theme()), key="frontier", config=CHART_CONFIG, alt=summary)
    rows = [(format_count(p.concurrency), format_count(p.context), format_count(p.pool_slots), p.limit) for p in found.points]
    blocks.table(("requests at once", "longest context", "pool slots", "limited by"), rows, numeric=(0, 1, 2))


def _answer(question: str, answer: str, field: str, value: int | float | None) -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.html(f'<p class="kvc-finding">{html_text(question)}: <b>{html_text(answer)}</b></p>', width="stretch")
        if value is not None:
            shown = format_count(value) if isinstance(value, int) else format_field(field, value)
            _button(f"solved.{field}", Fix(field=field, value=value, flag=flag_text(field, value), text=f"use {shown}"))


def _button(key: str, fix: Fix) -> None:
    plan_findings.fix_button(key, fix.text, fix.field, fix.value, fix.flag, Severity.NOTE)


def _longest_context(plan: MemoryPlan) -> None:
    """One question that needs a number of its own."""
    left, right = st.columns([2, 5], gap="small", vertical_alignment="bottom")
    default = str(max(1, plan.settings.pool.req_to_token_pool_size))
    with left:
        text = st.text_input(
            # Not a value: that would stay when the request rows change.
            "Requests at once", placeholder=default, key=_CONCURRENCY, live="200ms", autocomplete="off", persist_state="session",
            help="How many requests are to reach the longest context at the same time, without counting on shared prefixes; empty: as many "
            "as there are request rows.",
        )  # fmt: skip
    with right:
        try:
            concurrency = parse_integer(text or default)
            if concurrency < 1:
                raise ConfigError(f"must be at least 1, got {concurrency}")
        except ConfigError as error:
            style.line(str(error), "error")
            return
        by_memory, by_pool = largest_context(plan, concurrency), largest_context(plan, concurrency, fixed="pool")
        lines = [("Longest context in this pool", by_pool, ""), ("with the pool that the memory allows", by_memory, "slots")]
        st.html(
            '<p class="kvc-finding">'
            + "<br>".join(
                f"{question}: <b>{format_count(point.context)} tokens</b>" + (f" ({format_count(point.pool_slots)} slots)" if extra else "")
                for question, point, extra in lines
                if isinstance(point, FrontierPoint)
            )
            + "</p>"
        )


def _cost_table(plan: MemoryPlan) -> None:
    costs = canary_cost(plan)
    if isinstance(costs, Unknown):
        style.caption(f"Slots lost to the canary: {_said(costs)}.")
        return
    rows = [
        (
            cost.label,
            format_bytes(cost.canary_bytes),
            f"{format_count(cost.slots_without)} -> {format_count(cost.slots_with)}",
            format_fraction(cost.lost_fraction),
        )
        for cost in costs
    ]
    blocks.table(("canary", "takes", "slots for the same bytes", "lost"), rows, numeric=(1, 2, 3))


def _said(answer: PoolAnswer | FractionAnswer | Unknown) -> str:
    return f"unknown, {answer.text}; settled by {answer.settle}" if isinstance(answer, Unknown) else answer.text
