"""A log that was read, with everything that a page asks of it: diagnosis, rows by facet, the pools and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.crossfilter import Crossfilter
from kvcanary.analysis.diagnosis import Diagnosis, diagnose
from kvcanary.analysis.incidents import MAX_ROWS, ChainLinks, chain_links
from kvcanary.layout import SlotStatus

# A printed slot number may be damaged itself; a map of it must not take the machine's memory.
MAP_LIMIT = 1 << 26


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of slots. origin: where its size comes from."""

    name: str
    num_slots: int
    origin: str


class Inspected:
    """log and its diagnosis; cross holds the rows as they were when this was made, so a log that grows needs a new one.

    statuses: per pool and file, what offline verification of a snapshot says, uint8 [num_slots]; empty for a log.
    """

    def __init__(self, log: CanaryLog, statuses: dict[tuple[str, str], npt.NDArray[np.uint8]] | None = None) -> None:
        self.log, self.statuses = log, statuses or {}
        self.diagnosis: Diagnosis = diagnose(log)
        self.page_size = page_size_of(log)
        self.cross = Crossfilter(log.violations.frame(), self.diagnosis.incidents, page_size=self.page_size)

    @cached_property
    def links(self) -> ChainLinks:
        """Which reported record follows which."""
        return chain_links(self.log.violations.first(min(self.cross.count, MAX_ROWS)))

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that rows speak of, most rows first, and those of a snapshot."""
        names = dict.fromkeys((*self.cross.facets["pool"].labels, *(pool for pool, _ in self.statuses)))
        return tuple(self._pool(name) for name in names)

    def rows_of(self, pool: Pool) -> npt.NDArray[np.bool_]:
        """Rows that speak of a pool, bool [rows]."""
        facet = self.cross.facets["pool"]
        return np.append(facet.chosen((pool.name,)), False)[facet.codes]

    def explained(self, pool: Pool) -> dict[int, int | None]:
        """Each slot of a pool that an incident names: the slot whose record explains it, None for a cause. One rank is enough for a cause."""
        found: dict[int, int | None] = {}
        for incident in self.diagnosis.incidents:
            for finding in incident.findings:
                if finding.group == pool.name:
                    found[finding.slot] = None if finding.echo_of is None else found.get(finding.slot, finding.echo_of)
        return found

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
            if name == pool.name and (not rank or len(self.log.files) == 1 or rank.startswith(f"{file} ")):
                shown = known if kept.all() else np.where(known >= SlotStatus.INJECTED, SlotStatus.CLEAN, known).astype(np.uint8)
                status[: len(shown)] = np.maximum(status[: len(shown)], shown[: len(status)])
        inside = slots[slots < len(status)]
        status[inside] = SlotStatus.CORRUPTED
        return status, len(slots) - len(inside)

    def _pool(self, name: str) -> Pool:
        exact = [len(status) for (pool, _), status in self.statuses.items() if pool == name]
        if exact:
            return Pool(name, max(exact), "pool size from the snapshot")
        # A third of the verify capacity is the size of the full pool; the window pool's is in no line.
        known = max((report.pool_slots or 0 for report in self.log.streams), default=0) if name == "FULL" else 0
        facet = self.cross.facets["pool"]
        slots = self.cross.slots[facet.codes == facet.labels.index(name)]
        largest = int(slots.max(initial=-1)) + 1
        if known:
            # The padding page comes on top of the slots that the server counts.
            return Pool(name, min(known + (self.page_size or 1), MAP_LIMIT), "pool size from the log")
        return Pool(name, min(largest, MAP_LIMIT), "the log does not state the pool size, so the map ends at the largest slot seen")


def page_size_of(log: CanaryLog) -> int | None:
    """Slots per page where the server's arguments are in the log; None when they are not, or differ between servers."""
    sizes = {event.values.get("page_size") for event in log.events_of("server_args")}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
