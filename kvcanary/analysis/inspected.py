"""A log that was read, with everything that a page asks of it: diagnosis, rows by facet, the pools and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary.analysis import slot_map
from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.crossfilter import Crossfilter
from kvcanary.analysis.diagnosis import Diagnosis, diagnose
from kvcanary.analysis.incidents import MAX_ROWS, ChainLinks, chain_links
from kvcanary.layout import SlotStatus
from kvcanary.units import format_count, format_fraction

# A printed slot number may be damaged itself; a map of it must take neither the machine's memory nor a second. No pool is near this.
MAP_LIMIT = 1 << 25


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of slots. origin: where its size comes from."""

    name: str
    num_slots: int
    origin: str

    @property
    def title(self) -> str:
        """The name in words."""
        return {"FULL": "full pool", "SWA": "window pool"}.get(self.name, f"pool {self.name}")


class ReportedRows:
    """Violations by facet, with the pools that they speak of: what a log, a snapshot and a stored inspection have in common.

    pool_slots: slots of the full pool as the server counts them, 0 where that is not known. findings: (pool, slot, the slot whose record
    explains it or None for a cause) of the incidents. statuses: per pool and file, what offline verification of a snapshot says, uint8
    [num_slots]; empty for a log.
    """

    def __init__(
        self,
        cross: Crossfilter,
        *,
        pool_slots: int,
        page_size: int | None,
        findings: Sequence[tuple[str, int, int | None]] = (),
        files: Sequence[str] = (),
        statuses: dict[tuple[str, str], npt.NDArray[np.uint8]] | None = None,
    ) -> None:
        self.cross, self.page_size, self.statuses = cross, page_size, statuses or {}
        self._pool_slots, self._findings, self._files = pool_slots, findings, files

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that rows speak of, most rows first, and those of a snapshot."""
        names = dict.fromkeys((*self.cross.facets["pool"].labels, *(pool for pool, _ in self.statuses)))
        return tuple(self._pool(name) for name in names)

    def rows_of(self, pool: Pool) -> npt.NDArray[np.bool_]:
        """Rows that speak of a pool, bool [rows]."""
        facet = self.cross.facets["pool"]
        return np.append(facet.chosen((pool.name,)), False)[facet.codes]

    def slots_of(self, pool: Pool) -> int:
        """Slots of a pool as its operator counts them: the padding page is none of them, also where it is reported."""
        return max(1, pool.num_slots - (self.page_size or 1))

    def explained(self, pool: Pool) -> dict[int, int | None]:
        """Each slot of a pool that an incident names: the slot whose record explains it, None for a cause. One rank is enough for a cause."""
        found: dict[int, int | None] = {}
        for name, slot, echo_of in self._findings:
            if name == pool.name:
                found[slot] = None if echo_of is None else found.get(slot, echo_of)
        return found

    def most_reported(self, pool: Pool, kept: npt.NDArray[np.bool_], limit: int) -> tuple[list[tuple[int, int, str]], int]:
        """(slot, rows, role) of a pool under a choice of rows, most rows first, at most `limit` of them; and how many slots there are.

        role: 'cause', 'echo of 7', or '' where no incident names the slot.
        """
        slots, counts = self.cross.slot_rows(kept & self.rows_of(pool))
        if not len(slots):
            return [], 0
        least = np.partition(counts, -limit)[-limit] if len(counts) > limit else 0
        often, explained = np.flatnonzero(counts >= least), self.explained(pool)
        echo = np.array([explained.get(slot) is not None for slot in slots[often].tolist()], dtype=np.bool_)
        # Of slots with equally many rows a cause comes before what only echoes one.
        order = often[np.lexsort((slots[often], echo, -counts[often]))][:limit]
        rows = zip(slots[order].tolist(), counts[order].tolist(), strict=True)
        return [(slot, count, _role(explained, slot)) for slot, count in rows], len(slots)

    def status(self, pool: Pool, kept: npt.NDArray[np.bool_], rank: str = "") -> tuple[npt.NDArray[np.uint8], int]:
        """Status uint8 [num_slots] of a pool under a choice of rows, of one rank where it is named; and slots that lie outside the map.

        Free where a log lists nothing, but for the padding page: that says nothing about what was checked. A snapshot knows each slot.
        """
        ranks = self.cross.facets["rank"]
        mine = kept & self.rows_of(pool)
        if rank:
            mine &= ranks.codes == ranks.labels.index(rank)
        slots, _ = self.cross.slot_rows(mine)
        status = np.full(max(pool.num_slots, 1), SlotStatus.FREE, dtype=np.uint8)
        if not self.statuses:
            status[: self.page_size or 1] = SlotStatus.RESERVED
        for (name, file), known in self.statuses.items():
            # A rank is named by its file where there are several.
            if name == pool.name and (not rank or len(self._files) == 1 or rank.startswith(f"{file} ")):
                shown = known if kept.all() else np.where(known >= SlotStatus.INJECTED, SlotStatus.CLEAN, known).astype(np.uint8)
                status[: len(shown)] = np.maximum(status[: len(shown)], shown[: len(status)])
        inside = slots[slots < len(status)]
        status[inside] = SlotStatus.CORRUPTED
        return status, len(slots) - len(inside)

    def summary(self, pool: Pool, status: npt.NDArray[np.uint8], outside: int) -> str:
        """What `status` gave, in a sentence: of a log what it reports, of a snapshot also what was checked."""
        if self.statuses:
            return f"{slot_map.summary_line(status)} {pool.origin.capitalize()}."
        bad, slots = slot_map.count_statuses(status)[SlotStatus.CORRUPTED], self.slots_of(pool)
        pages = f"; pages of {self.page_size}" if self.page_size and self.page_size > 1 else ""
        text = f"{format_count(bad)} of {format_count(slots)} slots reported ({format_fraction(bad / slots)}); {pool.origin}{pages}."
        return f"{text} {format_count(outside)} reported slot numbers lie outside the map." if outside else text

    def _pool(self, name: str) -> Pool:
        exact = [len(status) for (pool, _), status in self.statuses.items() if pool == name]
        if exact:
            return Pool(name, max(exact), "pool size from the snapshot")
        # A third of the verify capacity is the size of the full pool; the window pool's is in no line.
        known = self._pool_slots if name == "FULL" else 0
        facet = self.cross.facets["pool"]
        slots = self.cross.slots[facet.codes == facet.labels.index(name)]
        largest = int(slots.max(initial=-1)) + 1
        # The padding page comes on top of the slots that the server counts.
        size = known + (self.page_size or 1) if known else largest
        origin = "pool size from the log" if known else "the log does not state the pool size, so the map ends at the largest slot seen"
        cut = f"; no map is larger than {format_count(MAP_LIMIT)} slots" if size > MAP_LIMIT else ""
        return Pool(name, min(size, MAP_LIMIT), f"{origin}{cut}")


class Inspected(ReportedRows):
    """log and its diagnosis; cross holds the rows as they were when this was made, so a log that grows needs a new one."""

    def __init__(self, log: CanaryLog, statuses: dict[tuple[str, str], npt.NDArray[np.uint8]] | None = None) -> None:
        self.log = log
        self.diagnosis: Diagnosis = diagnose(log)
        incidents, page_size = self.diagnosis.incidents, page_size_of(log)
        super().__init__(
            Crossfilter(log.violations.frame(), incidents, page_size=page_size),
            pool_slots=max((report.pool_slots or 0 for report in log.streams), default=0),
            page_size=page_size,
            findings=[(finding.group, finding.slot, finding.echo_of) for incident in incidents for finding in incident.findings],
            files=log.files,
            statuses=statuses,
        )

    @cached_property
    def links(self) -> ChainLinks:
        """Which reported record follows which."""
        return chain_links(self.log.violations.first(min(self.cross.count, MAX_ROWS)))


def _role(explained: Mapping[int, int | None], slot: int) -> str:
    if slot not in explained:
        return ""
    source = explained[slot]
    return "cause" if source is None else f"echo of {source}"


def page_size_of(log: CanaryLog) -> int | None:
    """Slots per page where the server's arguments are in the log; None when they are not, or differ between servers."""
    return stated_page_size([event.values.get("page_size") for event in log.events_of("server_args")])


def stated_page_size(values: Sequence[Any]) -> int | None:
    """The page size that the arguments of all servers agree on, else None."""
    size = values[0] if values and all(value == values[0] for value in values) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
