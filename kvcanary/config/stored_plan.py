"""The memory part of a plan's document, read back for the same figure and sums as the plan itself.

The document may be of another version or from elsewhere: what is missing, negative or of another type counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcanary.config.memory import CANARY_PARTS, Share
from kvcanary.typed import Loose

LINE_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One line of a stored plan. bytes: None where unknown, and then `unknown` says why; share is a text, for others than ours."""

    label: str
    part: str
    share: str
    bytes: int | None
    formula: str
    source: str
    unknown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMemory:
    """Memory of one rank as it was stored. The sums are those of the lines, as in MemoryPlan, so that figure and table agree."""

    summary: str
    lines: tuple[StoredLine, ...]
    lines_left_out: int
    budget_bytes: int | None
    budget_note: str
    static_left_bytes: int | None

    @property
    def known_bytes(self) -> int:
        """Sum of all lines whose bytes are known."""
        return _sum(self.lines)

    @property
    def canary_bytes(self) -> int:
        """All lines that exist only because the canary is on."""
        return _sum(line for line in self.lines if line.part in CANARY_PARTS)

    @property
    def headroom_bytes(self) -> int | None:
        """Budget less the known lines; negative is over budget."""
        return None if self.budget_bytes is None else self.budget_bytes - self.known_bytes

    @property
    def static_limit_bytes(self) -> int | None:
        """The static share: what is left of it and the lines that it pays."""
        if self.static_left_bytes is None:
            return None
        return self.static_left_bytes + _sum(line for line in self.lines if line.share != Share.SLACK)

    @property
    def unknown_lines(self) -> tuple[StoredLine, ...]:
        """Lines that count towards the total but whose bytes are not known."""
        return tuple(line for line in self.lines if line.bytes is None)


def read_memory(document: Loose) -> StoredMemory:
    """The value of 'memory' in a plan's document; at most LINE_LIMIT of its lines."""
    lines = document.parts("lines")
    return StoredMemory(
        summary=document.text("summary"),
        lines=tuple(_line(line) for line in lines[:LINE_LIMIT]),
        lines_left_out=max(0, len(lines) - LINE_LIMIT),
        budget_bytes=document.count("budget_bytes"),
        budget_note=document.text("budget_note"),
        static_left_bytes=document.integer("static_left_bytes"),
    )


def _line(line: Loose) -> StoredLine:
    # Documents had no labels at first.
    label = line.text("label") or line.text("name").replace("_", " ") or "without a name"
    return StoredLine(
        label=label, part=line.text("part") or "other", share=line.text("share"), bytes=line.count("bytes"),
        formula=line.text("formula"), source=line.text("source"), unknown=line.text("unknown"),
    )  # fmt: skip


def _sum(lines: Iterable[StoredLine]) -> int:
    return sum(line.bytes or 0 for line in lines)
