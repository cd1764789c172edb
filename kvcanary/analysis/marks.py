"""The marks of one incident and what is known of the server: what the rules look at, and what they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvcanary.analysis.causes import Cause
from kvcanary.analysis.incidents import Finding, Incident
from kvcanary.analysis.violations import Violation
from kvcanary.layout import mix3


class Confidence(IntEnum):
    """How surely a cause is stated."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """One cause for one incident; others are causes that leave similar marks, in order."""

    cause: Cause
    confidence: Confidence
    evidence: tuple[str, ...]
    others: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the log tells about the server; None = not known."""

    disaggregation: str | None = None
    host_tier: bool | None = None
    page_size: int | None = None
    real_data: str | None = None
    sweep_interval: int | None = None
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of an incident's causes (not of its echoes)."""

    incident: Incident
    violations: Sequence[Violation]
    context: Context

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Findings that nothing else explains; all of them when each explains another."""
        return self.incident.causes or self.incident.findings

    @property
    def bits(self) -> int:
        """All reasons of the causes."""
        return _union(finding.bits for finding in self.causes)

    def at(self, place: str) -> int:
        """Reasons that one kind of launch reported."""
        return _union(finding.bits_at(place) for finding in self.causes)

    @property
    def rows(self) -> list[Violation]:
        """Rows of the causes."""
        return [self.violations[row] for finding in self.causes for row in finding.rows]

    @property
    def zero_slots(self) -> list[int]:
        """Slots whose record holds nothing but zeros: never written, or cleared."""
        return [finding.slot for finding in self.causes if (0, 0, 0) in finding.records]

    @property
    def in_run(self) -> bool:
        """The slots make one run of at least two neighbours."""
        pattern = self.incident.pattern
        return pattern.run_length >= 2 and pattern.run_length == len(pattern.slots)

    @property
    def chained(self) -> bool:
        """The records of the causes follow from each other: they are one stretch of a chain, wherever their slots are."""
        records = {record for finding in self.causes for record in finding.records}
        after = {mix3(*record) for record in records}
        return len(records) > 1 and sum(record[0] in after for record in records) >= len(records) - 1

    @property
    def rows_missing(self) -> bool:
        """The log lists fewer rows than a rank of this incident counted, or does not tell."""
        listed = Counter(row.stream for row in self.violations)
        streams = {row.stream for row in self.rows}
        totals = [(row.stream, row.total) for row in self.violations if row.stream in streams and row.total is not None]
        return streams > {stream for stream, _ in totals} or any(total > listed[stream] for stream, total in totals)


def _union(values: Iterable[int]) -> int:
    result = 0
    for value in values:
        result |= value
    return result
