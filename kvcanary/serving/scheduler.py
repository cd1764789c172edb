"""Which tokens the next forward computes: continuous batching with chunked prefill, decode, retraction.

Prefill goes first, as in SGLang; decode runs when nothing can be admitted. The scheduler decides and moves slots; it computes nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from kvcanary.serving.events import Event, EventKind
from kvcanary.serving.memory import KvMemory
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import EMPTY, Int64Array
from kvcanary.serving.radix_cache import Match
from kvcanary.serving.request import Request
from kvcanary.serving.speculation import Drafter


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one forward with the tokens they write: rows, prefix_lens, extend_lens int64 [bs]; tokens int64 [sum of extend_lens].

    accepted: int64 [bs], tokens of each row that stay; equal to extend_lens without speculation.
    """

    rows: Int64Array
    prefix_lens: Int64Array
    extend_lens: Int64Array
    tokens: Int64Array
    accepted: Int64Array
    decode: bool


class Scheduler:
    """Queues and running rows of one rank."""

    def __init__(self, options: ServingOptions, memory: KvMemory) -> None:
        self.options, self.memory = options, memory
        self.waiting: deque[Request] = deque()
        self.running: Int64Array = EMPTY
        self.chunked: Request | None = None
        self.by_row: dict[int, Request] = {}
        self._drafter = Drafter(options.tokens_per_decode, options.draft_acceptance, options.vocab_size, options.seed)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not len(self.running) and self.chunked is None

    def next_batch(self) -> Batch | None:
        """The next prefill batch, else the next decode batch, else None. A decode instance never prefills."""
        batch = self._prefill_batch() if self.options.disaggregation_mode != "decode" else None
        return batch or self._decode_batch()

    def complete(self, batch: Batch) -> list[Request]:
        """Take the results of a forward; returns the requests that are done here (on a prefill instance with the prompt, else with the

        whole output) and still hold their slots.
        """
        table = self.memory.table
        table.kv_lens[batch.rows] += batch.accepted
        # With overlap the end of a request is noticed one forward late, so it takes part in one more.
        reached = batch.prefix_lens if self.options.overlap else table.kv_lens[batch.rows]
        if batch.decode:
            self._complete_decode(batch)
        else:
            self._complete_prefill(batch)
        done = reached >= table.total_lens[batch.rows] - 1
        if self.options.disaggregation_mode == "prefill":
            done[:] = True
        if self.chunked is not None:
            done &= batch.rows != self.chunked.row
        if not done.any():
            return []
        finished = batch.rows[done]
        self.running = self.running[~np.isin(self.running, finished)]
        return [self.by_row[row] for row in finished.tolist()]

    def start_running(self, request: Request) -> None:
        """Let a request whose prompt is in its slots decode."""
        self.running = np.append(self.running, request.row)

    def place(self, request: Request, match: Match | None) -> None:
        """Give a request a row, with its matched prefix."""
        request.row = self.memory.admit(request.rid, request.token_ids, request.known_len, request.namespace, match)
        self.by_row[request.row] = request

    def release(self, request: Request) -> None:
        """Free a request's slots and row; what it has sampled so far stays known."""
        request.known_len = int(self.memory.table.known_lens[request.row])
        del self.by_row[request.row]
        self.memory.release(request.row)
        request.row = 0

    def remove(self, request: Request) -> None:
        """Take a request out of every queue; its slots stay as they are."""
        if request in self.waiting:
            self.waiting.remove(request)
        if self.chunked is request:
            self.chunked = None
        self.running = self.running[self.running != request.row]

    def _prefill_batch(self) -> Batch | None:
        budget, rows, extends = self.options.prefill_budget, [], []
        if self.chunked is not None:
            extend = self._fit_chunk(self.chunked, int(self.memory.table.kv_lens[self.chunked.row]), budget)
            if not extend or not self._grow(self.chunked.row, extend):
                return None
            rows, extends, budget = [self.chunked.row], [extend], budget - extend
        while self.waiting and budget > 0 and self.memory.table.free_rows:
            admitted = self._admit(self.waiting[0], budget, alone=not rows)
            if admitted is None:
                break
            request = self.waiting.popleft()
            rows.append(request.row)
            extends.append(admitted)
            budget -= admitted
        return self._batch(rows, extends) if rows else None

    def _admit(self, request: Request, budget: int, *, alone: bool) -> int | None:
        """Place a waiting request and give it slots; returns the tokens it computes now, or None when it has to wait."""
        memory = self.memory
        match = memory.tree.match(request.token_ids[: request.known_len - 1], request.namespace) if memory.tree else None
        if match is not None and match.host_nodes:
            match = self._load_back(match, request)
        prefix = len(match.slots) if match is not None else 0
        extend = self._fit_chunk(request, prefix, budget)
        # Without chunking one prompt above the budget may run, but only alone.
        if not extend and alone and self.options.chunked_prefill_size is None:
            extend = request.known_len - prefix
        if not extend:
            return None
        pages = memory.pages_for(extend) + self.reserved_pages()
        if not memory.may_fit(pages):
            return None
        self.place(request, match)
        # The matched prefix counted as evictable until it was locked.
        if not memory.may_fit(pages) or not self._grow(request.row, extend):
            self.release(request)
            return None
        memory.log(Event(EventKind.ADMIT, request.rid, count=extend, detail=f"{prefix} cached"))
        return extend

    def _fit_chunk(self, request: Request, prefix: int, budget: int) -> int:
        """Tokens of a prompt that fit the budget: all that is missing, or with chunking a piece in whole pages; 0 = none."""
        missing = request.known_len - prefix
        if missing <= budget:
            return missing
        return 0 if self.options.chunked_prefill_size is None else budget // self.options.page_size * self.options.page_size

    def _grow(self, row: int, extend: int) -> bool:
        memory, rows = self.memory, np.array([row])
        lengths = memory.table.kv_lens[rows] + extend
        if not memory.make_room(memory.pages_for(int(lengths[0] - memory.table.alloc_lens[row]))):
            return False
        memory.grow(rows, lengths)
        return True

    def _load_back(self, match: Match, request: Request) -> Match:
        """Bring the host part of a match to the device where there is room for it."""
        memory = self.memory
        pages = memory.pages_for(match.host_length)
        if memory.host is None or memory.tree is None:
            return match
        lock = memory.tree.lock(match.node)
        if memory.make_room(pages) and all(node.host is not None for node in match.host_nodes):
            memory.host.load_back(match, memory.pool.alloc_pages(pages), request.rid)
            match = memory.tree.match(request.token_ids[: request.known_len - 1], request.namespace)
        memory.tree.unlock(lock)
        return match

    def reserved_pages(self) -> int:
        """Pages kept free for the output of running requests, so that admission does not force a retraction at once."""
        table = self.memory.table
        missing = (table.total_lens[self.running] - table.kv_lens[self.running]).sum()
        return self.memory.pages_for(int(missing * self.options.new_token_ratio))

    def _batch(self, rows: list[int], extends: list[int]) -> Batch:
        table = self.memory.table
        prefixes = [int(table.kv_lens[row]) for row in rows]
        tokens = np.concatenate([table.token_ids[row, p : p + e] for row, p, e in zip(rows, prefixes, extends, strict=True)])
        extend_lens = np.array(extends, dtype=np.int64)
        return Batch(np.array(rows), np.array(prefixes), extend_lens, tokens.astype(np.int64), extend_lens, decode=False)

    def _complete_prefill(self, batch: Batch) -> None:
        table = self.memory.table
        self.chunked = None
        for row in batch.rows.tolist():
            request = self.by_row[row]
            self.memory.cache(row, int(table.kv_lens[row]))
            if table.kv_lens[row] < request.known_len:
                self.chunked = request
                self.memory.log(Event(EventKind.CHUNK, request.rid, count=int(table.kv_lens[row])))
                continue
            table.known_lens[row] = request.known_len + 1
            self.start_running(request)
        self._log_window(batch.rows)

    def _decode_batch(self) -> Batch | None:
        if not self._make_decode_room():
            return None
        rows, table, width = self.running, self.memory.table, self.options.tokens_per_decode
        prefix_lens = table.kv_lens[rows]
        self.memory.grow(rows, prefix_lens + width)
        truth = table.token_ids[rows[:, None], prefix_lens[:, None] + np.arange(width)].astype(np.int64)
        extend_lens = np.full(len(rows), width, dtype=np.int64)
        if width == 1:
            return Batch(rows, prefix_lens, extend_lens, truth.ravel(), extend_lens, decode=True)
        # The last output token is sampled but never written; an overlapped step after the end writes one token more.
        room = np.maximum(table.total_lens[rows] - 1 - prefix_lens, 1)
        drafted, accepted = self._drafter.draft(truth, room)
        return Batch(rows, prefix_lens, extend_lens, drafted.ravel(), accepted, decode=True)

    def _make_decode_room(self) -> bool:
        """Free slots for one decode step, by eviction and then by sending requests back to the queue; False = nothing runs."""
        memory, table, page_size = self.memory, self.memory.table, self.options.page_size
        while len(self.running):
            wanted = -(-(table.kv_lens[self.running] + self.options.tokens_per_decode) // page_size)
            pages = int(np.maximum(wanted - table.alloc_lens[self.running] // page_size, 0).sum())
            if memory.make_room(pages):
                return True
            self._retract()
        return False

    def _retract(self) -> None:
        """Send back the request with the least output (the longest prompt among equals), or the half-done prefill when one runs alone."""
        requests = [self.by_row[int(row)] for row in self.running]
        if len(requests) == 1 and self.chunked is not None:
            victim = self.chunked
        else:
            known = self.memory.table.known_lens
            victim = min(requests, key=lambda request: (int(known[request.row]) - request.input_len, -request.input_len, request.rid))
        self.remove(victim)
        self.memory.log(Event(EventKind.RETRACT, victim.rid, count=int(self.memory.table.kv_lens[victim.row])))
        self.release(victim)
        self.waiting.appendleft(victim)

    def _complete_decode(self, batch: Batch) -> None:
        table = self.memory.table
        table.known_lens[batch.rows] = np.minimum(table.kv_lens[batch.rows] + 1, table.total_lens[batch.rows])
        if self.options.tokens_per_decode > 1:
            slots = self.memory.shrink(batch.rows)
            rejected = int((batch.extend_lens - batch.accepted).sum())
            if rejected:
                self.memory.log(Event(EventKind.ROLLBACK, count=rejected, slots=slots))
        self._log_window(batch.rows)

    def _log_window(self, rows: Int64Array) -> None:
        slots = self.memory.leave_window(rows)
        if slots.size:
            self.memory.log(Event(EventKind.WINDOW_OUT, count=len(slots), slots=slots))
