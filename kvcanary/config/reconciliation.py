"""What comes of laying a start-up log beside a plan: rows with a verdict each, and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """agrees: within the rounding of the log · explained: differs for a stated reason · unexplained · not planned: no figure to compare."""

    AGREES = "agrees"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    NOT_PLANNED = "not planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of the log beside the plan's. `unit` is tokens, requests, entries, GiB or bytes/token; `why` is one sentence or empty."""

    name: str
    label: str
    unit: str
    observed: float
    planned: float | None
    status: Status
    why: str = ""

    @property
    def difference(self) -> float | None:
        """Observed less planned, in the unit of the row."""
        return None if self.planned is None else self.observed - self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """All rows in the order of a start-up, and one sentence."""

    rows: tuple[Row, ...]

    @property
    def unexplained(self) -> tuple[Row, ...]:
        """Rows that differ without a stated reason."""
        return tuple(row for row in self.rows if row.status is Status.UNEXPLAINED)

    @property
    def text(self) -> str:
        """'7 of 9 values agree, 1 is explained, 1 is not: K size'."""
        if not self.rows:
            return "the log states nothing that the plan has"
        count = {status: sum(row.status is status for row in self.rows) for status in Status}
        open_rows = f": {', '.join(row.label for row in self.unexplained)}" if self.unexplained else ""
        return (
            f"{count[Status.AGREES]} of {len(self.rows)} values agree, {count[Status.EXPLAINED]} differ for a stated reason, "
            f"{count[Status.NOT_PLANNED]} have no figure in the plan, {count[Status.UNEXPLAINED]} unexplained{open_rows}"
        )
