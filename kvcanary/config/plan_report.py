"""Everything there is to say about one set of settings, and its JSON document: what `kvcanary plan` prints and what a kept plan holds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.findings import Finding, Severity, count_sentence, worst_first
from kvcanary.config.geometry import Unknown
from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.memory import MemoryPlan, Verdict, memory_plan
from kvcanary.config.reconcile import plan_to_compare, reconcile
from kvcanary.config.reconciliation import Reconciliation
from kvcanary.config.remedies import canary_cost, remedies
from kvcanary.config.rules import RULES, validate
from kvcanary.config.settings import Settings
from kvcanary.config.solve import PoolAnswer, largest_context, largest_pool, smallest_fraction, within_budget
from kvcanary.errors import ConfigError
from kvcanary.units import format_bytes, format_count

SCHEMA, VERSION = "kvcanary.plan", 1


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Settings with their findings, and with capacities, memory and a log beside the plan where these could be computed."""

    settings: Settings
    findings: Sequence[Finding]
    capacities: LaunchCapacities | None
    plan: MemoryPlan | None
    log: Reconciliation | None

    @property
    def verdict(self) -> Literal["pass", "partial", "fail"]:
        """fail: a rule forbids it, or the memory does not hold it. partial: it starts, with a smaller pool than asked for."""
        if self._errors:
            return "fail"
        if self.plan is None or self.plan.verdict is not Verdict.OVER:
            return "pass"
        return "partial" if cuts_pool(self.plan) else "fail"

    @property
    def starts(self) -> bool:
        """Whether no rule forbids it and the memory suffices, if need be with a smaller pool than asked for."""
        return self.verdict != "fail"

    @property
    def head(self) -> str:
        """The verdict in words."""
        if self._errors:
            return "Will not start"
        return {"pass": "Starts", "partial": "Starts with a smaller pool", "fail": "Does not fit"}[self.verdict]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        head = f"{self.head}, {count_sentence(finding.severity for finding in self.findings)} from {len(RULES)} rules"
        if self._errors:
            return f"{head}: {self._errors[0]}"
        if self.plan is None:
            return f"{head}."
        over = f" {over_sentence(self.plan)}" if self.plan.verdict is Verdict.OVER else ""
        return f"{head}.{over} Memory of one rank: {self.plan.summary}."

    @property
    def _errors(self) -> list[str]:
        return [finding.message for finding in self.findings if finding.severity is Severity.ERROR]


def plan_report(settings: Settings, observed: Mapping[str, Any] | None = None) -> PlanReport:
    """What can be computed; the findings say why the rest cannot. observed: what a start-up log says, to lay beside the plan."""
    capacities, plan, beside = None, None, None
    with contextlib.suppress(ConfigError):
        capacities = LaunchCapacities.from_settings(settings)
    with contextlib.suppress(ConfigError):
        plan = memory_plan(settings)
        if observed is not None:
            beside = reconcile(plan_to_compare(settings), observed)
    return PlanReport(settings, worst_first(validate(settings)), capacities, plan, beside)


def cuts_pool(plan: MemoryPlan) -> bool:
    """Whether SGLang makes the pool of a plan over budget smaller by itself, to one that the device then holds."""
    if plan.static_left_bytes is None or plan.static_left_bytes >= 0:
        return False
    own = largest_pool(plan, static_only=True)
    return isinstance(own, PoolAnswer) and own.slots > 0 and within_budget(own.plan)


def over_sentence(plan: MemoryPlan) -> str:
    """What a plan over budget lacks, and how many slots fit instead."""
    pool = largest_pool(plan)
    slots = (
        f"{format_count(plan.settings.pool.pool_slot_count)} -> {format_count(pool.slots)} slots fit"
        if isinstance(pool, PoolAnswer) and pool.slots > 0
        else ""
    )
    if plan.static_left_bytes is not None and plan.static_left_bytes < 0:
        own = "and SGLang cuts the pool by itself" if cuts_pool(plan) else "but SGLang cuts the pool to more than the device holds"
        return f"Over budget: {format_bytes(-plan.static_left_bytes)} more than the static share{f': {slots}, {own}' if slots else ''}."
    over = format_bytes(-(plan.headroom_bytes or 0))
    return f"Over budget: {over} more than the device has, so it runs out of memory{f': {slots}' if slots else ''}."


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The versioned JSON document."""
    plan = report.plan
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": report.verdict,
        "starts": report.starts,
        "rules_checked": len(RULES),
        "settings": report.settings.to_flat(),
        "findings": [finding.to_dict() for finding in report.findings],
        "capacities": None
        if report.capacities is None
        else {
            bound.name: {"label": bound.label, "value": bound.value, "formula": bound.text, "source": bound.source}
            for bound in report.capacities.bounds
        },
        "memory": None if plan is None else _memory_document(plan),
        "solve": None if plan is None else _solve_document(plan),
        "log": None
        if report.log is None
        else {
            "summary": report.log.text,
            "rows": [
                {
                    "name": row.name,
                    "label": row.label,
                    "unit": row.unit,
                    "log": row.observed,
                    "plan": row.planned,
                    "status": row.status,
                    "why": row.why,
                }
                for row in report.log.rows
            ],
        },
        "sglang_command": sglang_flags(report.settings),
    }


def _memory_document(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "summary": plan.summary,
        "verdict": plan.verdict,
        "known_bytes": plan.known_bytes,
        "canary_bytes": plan.canary_bytes,
        "budget_bytes": plan.budget_bytes,
        "budget_note": plan.budget_note,
        "headroom_bytes": plan.headroom_bytes,
        "static_left_bytes": plan.static_left_bytes,
        "remedies": [{"field": fix.field, "value": fix.value, "flag": fix.flag, "text": fix.text} for fix in remedies(plan)],
        "lines": [
            {
                "name": line.name,
                "label": line.label,
                "part": line.part,
                "share": line.share,
                "bytes": line.bytes,
                "formula": line.item.text if line.item else None,
                "source": line.item.source if line.item else None,
                "unknown": line.unknown.text if line.unknown else None,
                "settle": line.unknown.settle if line.unknown else None,
            }
            for line in plan.lines
        ],
    }


def _solve_document(plan: MemoryPlan) -> dict[str, Any]:
    """Answers by question; an answer that is not known says what would settle it."""
    costs = canary_cost(plan)
    return {
        **{question: _answer(answer) for question, answer in answers(plan)},
        "canary_cost": [
            {"mode": cost.mode, "canary_bytes": cost.canary_bytes, "slots_without": cost.slots_without, "slots_with": cost.slots_with}
            for cost in (costs if isinstance(costs, tuple) else ())
        ],
    }


def answers(plan: MemoryPlan) -> list[tuple[str, Any]]:
    """The plan solved backwards: what fits, each by its question."""
    rows = max(1, plan.settings.pool.req_to_token_pool_size)
    return [
        ("largest_pool", largest_pool(plan)),
        ("smallest_fraction", smallest_fraction(plan)),
        ("longest_context_in_pool", largest_context(plan, rows, fixed="pool")),
        ("longest_context_in_memory", largest_context(plan, rows)),
    ]


def _answer(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Unknown):
        return {"unknown": answer.text, "settle": answer.settle}
    names = ("slots", "fraction", "concurrency", "context", "pool_slots", "limit", "text")
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}
