"""Decode steps of an unchanged batch, decided together: what one step costs in Python is paid once per run, not once per token.

A run ends where anything else may happen: a request finishes, a prompt is admitted, the free list runs dry. Its steps are those that
deciding one at a time gives, slot for slot.
"""

from __future__ import annotations

import numpy as np

from kvcanary.serving.pool import Int64Array, RequestTable, SlotPool

# Steps decided together at most; a longer run would only hold more memory.
RUN_STEPS = 64


class DecodeRun:
    """Step i of the run writes tokens[i] at positions[i] into slots[i], int64 [bs] each; known_lens[i] are the lengths it knows.

    rows: int64 [bs]. issued and completed count steps; table lengths are brought up to date by
    `settle`, not by each step.
    """

    def __init__(self, table: RequestTable, pool: SlotPool, rows: Int64Array, *, overlap: bool, limit: int) -> None:
        """Decide up to limit steps; at least one, for which the caller has made room. Rows hold the pages of their tokens and no more."""
        self.rows, self.issued, self.completed = rows, 0, 0
        self._table, self._pool = table, pool
        self._start, self._totals = table.kv_lens[rows], table.total_lens[rows]
        # With overlap the end of a request is noticed one step late.
        last = int(np.minimum.reduce(self._totals - self._start)) - (0 if overlap else 1)
        steps = max(1, min(limit, last))
        positions = self._start + np.arange(steps)[:, None]
        slots = self._slots_from_free_list(positions)
        self.steps = len(slots)
        positions = positions[: self.steps]
        # Lists of views: cheaper to take apart once than to index in every step.
        self.slots, self.positions = list(slots), list(positions)
        # A run ends before any request does, so each of these tokens is followed by another; the last one with overlap is the exception.
        self.known_lens = list(np.minimum(positions + 1, self._totals) if overlap else positions + 1)
        self.tokens = list(table.token_ids[rows, positions].astype(np.int64))
        self.rids = table.rids[rows]
        self.ones = np.ones(len(rows), dtype=np.int64)

    @property
    def over(self) -> bool:
        """Whether every step was completed."""
        return self.completed == self.steps

    def take(self) -> int:
        """Issue the next step: its pages leave the free list. Returns its index."""
        index = self.issued
        if pages := self._pages[index]:
            self._pool.skip_pages(pages)
        self.issued = index + 1
        return index

    def settle(self) -> None:
        """Bring the table's lengths up to the steps issued and completed."""
        table, rows, page_size = self._table, self.rows, self._pool.page_size
        table.kv_lens[rows] = self._start + self.completed
        table.known_lens[rows] = np.minimum(self._start + self.completed + 1, self._totals)
        table.alloc_lens[rows] = -(-(self._start + self.issued) // page_size) * page_size

    def _slots_from_free_list(self, positions: Int64Array) -> Int64Array:
        """Slots of positions int64 [steps, bs], cut to the steps that the free list holds; the cells of the table are set ahead."""
        pool, table = self._pool, self._table
        page_size, free = pool.page_size, pool.free_pages
        if page_size == 1:
            bs = len(self.rows)
            steps = min(len(positions), max(1, free // bs))
            slots = pool.peek_pages(steps * bs).reshape(steps, bs)
            table.req_to_token[self.rows, positions[:steps]] = slots
            self._pages = [bs] * steps
            return slots
        fresh = positions % page_size == 0
        taken = np.cumsum(fresh.sum(axis=1))
        steps = max(1, int(np.searchsorted(taken, free, side="right")))
        fresh, self._pages = fresh[:steps], np.diff(taken[:steps], prepend=0).tolist()
        first = pool.peek_pages(sum(self._pages))[:, None] * page_size + np.arange(page_size)
        step, column = np.nonzero(fresh)
        cells = positions[step, column][:, None] + np.arange(page_size)
        table.req_to_token[self.rows[column][:, None], cells] = first
        return table.req_to_token[self.rows, positions[:steps]].astype(np.int64)
