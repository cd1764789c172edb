"""The memory plan line by line: bytes, the formula with the operator's numbers, who pays, and where the rule or the number comes from."""

from __future__ import annotations

from kvcanary.charts.plan import PAYS, memory_sums
from kvcanary.config.formula import LineItem
from kvcanary.config.memory import MemoryPlan, PlanLine
from kvcanary.escape import html_text
from kvcanary.ui import blocks, state
from kvcanary.units import format_bytes, group_digits


def draw(plan: MemoryPlan) -> None:
    """Every line, then the sums against what there is."""
    rows = [*(_row(line) for line in plan.lines), *(_sum(*row) for row in memory_sums(plan))]
    blocks.html_table(("line", "bytes", "formula with your numbers"), rows, numeric=(1,))


def _row(line: PlanLine) -> tuple[str, str, str]:
    label = f'{html_text(line.label)}<br><span class="kvc-quiet">{PAYS[line.share]}</span>'
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


def _sum(name: str, size: int, text: str) -> tuple[str, str, str]:
    return f"<b>{name}</b>", f"<b>{html_text(format_bytes(size))}</b>", html_text(text)
