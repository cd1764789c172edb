"""A stored plan as sections: findings with their fixes, capacities, memory, the plan solved backwards, the log beside it, the command.

Made from the document alone, which may be of another version or from elsewhere: what it does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kvcanary.charts.plan import PAYS, memory_bar, memory_key, memory_summary, memory_sums
from kvcanary.charts.report import Picture, Section, Table, cut
from kvcanary.config.findings import count_sentence
from kvcanary.config.remedies import CANARY_MODES
from kvcanary.config.stored_plan import StoredLine, read_memory
from kvcanary.typed import Loose
from kvcanary.units import INT64_MAX, format_bytes, format_count, format_fraction, group_digits

ROW_LIMIT = 500
_QUESTIONS = {
    "largest_pool": "largest pool for this memory",
    "smallest_fraction": "smallest static fraction for this pool",
    "longest_context_in_pool": "longest context in this pool",
    "longest_context_in_memory": "longest context with the pool that the memory allows",
}
_MODES = {mode: label for mode, _, label in CANARY_MODES}


def plan_sections(document: Mapping[str, Any]) -> list[Section]:
    """Everything that the document of a plan holds; no section where it holds nothing of it."""
    plan = Loose(document)
    parts = [_findings(plan), _capacities(plan), _memory(plan), _solved(plan), _log(plan), _command(plan)]
    return [part for part in parts if part is not None]


def _findings(plan: Loose) -> Section | None:
    findings, rules = plan.parts("findings"), plan.count("rules_checked")
    checked = f"{format_count(rules)} rules were checked." if rules else ""
    if not findings:
        return Section(heading="Findings", sentence=f"Nothing to report: all {checked}") if checked else None
    shown = findings[:ROW_LIMIT]
    # The fixes of a finding are alternatives, one below the other.
    rows = [row for finding in shown for row in _finding(finding)]
    counted = count_sentence(finding.text("severity") for finding in findings)
    head = ("finding", "severity", "why", "fix, one is enough", "as a flag")
    table = Table(head=head, rows=rows, caption=cut("findings", len(shown), len(findings)))
    return Section(heading="Findings", sentence=f"{counted.capitalize()}. {checked}".strip(), tables=(table,))


def _finding(finding: Loose) -> list[tuple[str, ...]]:
    said = (finding.text("message"), finding.text("severity"), finding.text("why"))
    fixes = [(_fix(fix), fix.text("flag")) for fix in finding.parts("fixes")] or [("", "")]
    return [(*said, *fixes[0]), *(("", "", "", *fix) for fix in fixes[1:])]


def _fix(fix: Loose) -> str:
    return fix.text("text") or f"change {fix.text('field')}"


def _capacities(plan: Loose) -> Section | None:
    rows = [
        (bound.text("label") or name.replace("_", " "), format_count(value), group_digits(bound.text("formula")), bound.text("source"))
        for name, bound in plan.named("capacities")[:ROW_LIMIT]
        if (value := bound.integer("value")) is not None
    ]
    table = Table(head=("capacity", "value", "formula with its numbers", "source"), rows=rows, numeric=(1,))
    return Section(heading="Launch capacities", tables=(table,)) if rows else None


def _memory(plan: Loose) -> Section | None:
    document = plan.part("memory")
    memory = read_memory(document)
    if not document:
        return None
    remedies = [(_fix(fix), fix.text("flag")) for fix in document.parts("remedies")[:ROW_LIMIT]]
    tables = [Table(head=("change after which it fits", "as a flag"), rows=remedies)] if remedies else []
    if not memory.lines:
        return Section(heading="Memory of one rank", sentence=memory.summary, tables=tables)
    caption = cut("lines", len(memory.lines), len(memory.lines) + memory.lines_left_out)
    head = ("line", "takes", "paid by", "formula with its numbers", "source")
    tables.append(Table(head=head, rows=[(*_line(line), line.source) for line in memory.lines], numeric=(1,), caption=caption))
    sums = [(name, format_bytes(size), text) for name, size, text in memory_sums(memory)]
    tables.append(Table(head=("sum", "amounts to", "what it is"), rows=sums, numeric=(1,)))
    picture = Picture(draw=partial(memory_bar, memory), alt=memory_summary(memory), key=partial(memory_key, memory))
    marks = [
        words
        for words, known in (("dotted line: the static share", memory.static_limit_bytes), ("solid line: the device", memory.budget_bytes))
        if known is not None
    ]
    return Section(
        heading="Memory of one rank", sentence=f"{'; '.join(marks)}.".capitalize() if marks else "", pictures=(picture,), tables=tables
    )


def _line(line: StoredLine) -> tuple[str, str, str, str]:
    size = "unknown" if line.bytes is None else format_bytes(line.bytes)
    return line.label, size, PAYS.get(line.share, line.share), group_digits(line.formula) or line.unknown


def _solved(plan: Loose) -> Section | None:
    solve = plan.part("solve")
    answers = [(question, _answer(solve.part(name))) for name, question in _QUESTIONS.items()]
    rows = [(question, answer) for question, answer in answers if answer]
    costs = [row for cost in solve.parts("canary_cost")[:ROW_LIMIT] if (row := _cost(cost)) is not None]
    tables = [Table(head=("question", "answer"), rows=rows)] if rows else []
    head = ("canary", "takes", "slots for the same bytes", "lost")
    tables += [Table(head=head, rows=costs, numeric=(1, 2, 3))] if costs else []
    return Section(heading="Solved backwards", tables=tables) if tables else None


def _answer(answer: Loose) -> str:
    if unknown := answer.text("unknown"):
        settle = answer.text("settle")
        return f"unknown, {unknown}{f'; settled by {settle}' if settle else ''}"
    context, requests = answer.count("context"), answer.count("concurrency")
    if answer.text("text") or context is None or requests is None:
        return answer.text("text")
    limit = answer.text("limit")
    at_once = f"{format_count(requests)} request{'' if requests == 1 else 's'} at once"
    return f"{format_count(context)} tokens for {at_once}{f'; limited by the {limit}' if limit else ''}"


def _cost(cost: Loose) -> tuple[str, str, str, str] | None:
    size, without, left = cost.count("canary_bytes"), cost.count("slots_without"), cost.count("slots_with")
    if size is None or without is None or left is None:
        return None
    mode = cost.text("mode")
    lost = format_fraction((without - left) / without if without else 0.0)
    return _MODES.get(mode, mode), format_bytes(size), f"{format_count(without)} -> {format_count(left)}", lost


def _log(plan: Loose) -> Section | None:
    log = plan.part("log")
    found = log.parts("rows")
    rows = [
        (
            row.text("label") or row.text("name").replace("_", " "), row.text("unit"), _number(row.number("log")),
            _number(row.number("plan")), row.text("status"), row.text("why"),
        )
        for row in found[:ROW_LIMIT]
    ]  # fmt: skip
    table = Table(
        head=("value", "unit", "log", "plan", "verdict", "why"), rows=rows, numeric=(2, 3), caption=cut("values", len(rows), len(found))
    )
    return Section(heading="Log beside the plan", sentence=log.text("summary"), tables=(table,) if rows else ()) if log else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return format_count(int(value)) if value == int(value) and abs(value) <= INT64_MAX else f"{value:.6g}"


def _command(plan: Loose) -> Section | None:
    command = plan.text("sglang_command")
    failed = "With these settings the server does not start, or its memory does not suffice; see the findings and the memory."
    sentence = failed if plan.flag("starts") is False else ""
    return Section(heading="As a launch command", sentence=sentence, code=command) if command else None
