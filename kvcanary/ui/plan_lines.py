"""The memory plan line by line: bytes, the formula with the operator's numbers, who pays, and where the rule or the number comes from."""

from __future__ import annotations

from kvcanary.config.formula import LineItem
from kvcanary.config.memory import MemoryPlan, PlanLine, Share
from kvcanary.escape import html_text
from kvcanary.ui import plan_table, state
from kvcanary.units import format_bytes, group_digits

_PAYS = {
    Share.STATIC: "static share",
    Share.SLACK: "outside the static share",
    Share.RESERVED: "taken off the pool",
}


def draw(plan: MemoryPlan) -> None:
    """Every line, then the sums against what there is."""
    plan_table.draw(("line", "bytes", "formula with your numbers"), [*(_row(line) for line in plan.lines), *_sums(plan)], numeric=(1,))


def _row(line: PlanLine) -> tuple[str, str, str]:
    label = f'{html_text(line.label)}<br><span class="kvc-quiet">{_PAYS[line.share]}</span>'
    if line.item is not None:
        return label, html_text(format_bytes(line.item.bytes)), _formula(line.item)
    unknown = line.unknown
    assert unknown is not None
    settle = f'<span class="kvc-quiet">settled by {html_text(unknown.settle)}</span>'
    return label, '<span class="kvc-warning">unknown</span>', f"{html_text(unknown.text)}<br>{settle}"


def _formula(item: LineItem) -> str:
    # A stated number has no rule; it comes from wherever the field was filled from.
    origin = next((state.sources()[name] for name in item.terms if name in state.sources()), "typed in the form")
    source = origin if item.source == "stated" else item.source
    quiet = " · ".join(text for text in (item.note.rstrip("."), source) if text)
    return f'<code>{html_text(group_digits(item.text))}</code><br><span class="kvc-quiet">{html_text(quiet)}</span>'


def _sums(plan: MemoryPlan) -> list[tuple[str, str, str]]:
    rows = [
        ("known lines", plan.known_bytes, "sum of the lines above" + ("; lines that are unknown come on top" if plan.unknown_lines else ""))
    ]
    if plan.static_limit_bytes is not None:
        rows.append(("static share", plan.static_limit_bytes, "mem_fraction_static of the memory of the device"))
        rows.append(("left in the static share", plan.static_left_bytes or 0, "negative: SGLang makes the pool smaller than asked for"))
    if plan.budget_bytes is not None:
        rows.append(("memory of the device", plan.budget_bytes, plan.budget_note))
        rows.append(("headroom", plan.headroom_bytes or 0, "what is left for activations and for lines that are unknown"))
    return [(f"<b>{name}</b>", f"<b>{html_text(format_bytes(size))}</b>", html_text(text)) for name, size, text in rows]
