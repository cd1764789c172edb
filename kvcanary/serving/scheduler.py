"""Which tokens the next forward computes: continuous batching with chunked prefill, decode, retraction.

Prefill goes first, as in SGLang; decode runs when nothing can be admitted. The scheduler decides and moves slots; it computes nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from kvcanary.serving.batch import Batch
from kvcanary.serving.decode_run import RUN_STEPS, DecodeRun
from kvcanary.serving.events import Event, EventKind
from kvcanary.serving.memory import KvMemory
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import EMPTY, Int64Array
from kvcanary.serving.radix_cache import Match
from kvcanary.serving.request import Request
from kvcanary.serving.speculation import Drafter


class Scheduler:
    """Queues and running rows of one rank.

    Table lengths of running rows may lag behind while a decode run is on; `settle` brings them up to date.
    """

    def __init__(self, options: ServingOptions, memory: KvMemory) -> None:
        self.options, self.memory = options, memory
        self.waiting: deque[Request] = deque()
        self.running: Int64Array = EMPTY
        self.chunked: Request | None = None
        self.by_row: dict[int, Request] = {}
        self._drafter = Drafter(options.tokens_per_decode, options.draft_acceptance, options.vocab_size, options.seed)
        self._run: DecodeRun | None = None
        # A prompt that found no room is tried again only when something was released, as the engine's batch_is_full has it.
        self._full = False
        # Pages that a mixed batch keeps for the requests that decode in it.
        self._spare_pages = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not len(self.running) and self.chunked is None

    def next_batch(self, quiet_steps: int) -> Batch | None:
        """The next prefill batch, else the next decode batch, else None. A decode instance never prefills.

        quiet_steps: how many steps no request arrives in, at least 1; a hint for how far decode steps are worth deciding ahead.
        """
        prefill = self.options.disaggregation_mode != "decode" and (self.chunked is not None or bool(self.waiting and not self._full))
        if self._run is not None and not prefill:
            return self._batch_of_run(self._run)
        self.end_run()
        batch = self._prefill_batch() if prefill else None
        return batch or self._decode_batch(quiet_steps)

    def complete(self, batch: Batch) -> list[Request]:
        """Take the results of a forward; returns the requests that are done here (on a prefill instance with the prompt, else with the

        whole output) and still hold their slots.
        """
        table = self.memory.table
        if self._run is not None:
            self._run.completed += 1
            if not self._run.over:
                return []
            self.end_run()
        else:
            table.kv_lens[batch.rows] += batch.accepted
            table.known_lens[batch.rows] = np.minimum(table.kv_lens[batch.rows] + 1, table.total_lens[batch.rows])
        # With overlap the end of a request is noticed one forward late, so it takes part in one more.
        reached = batch.prefix_lens if self.options.overlap else table.kv_lens[batch.rows]
        if batch.prefill_rows:
            self._complete_prefill(batch.rows[: batch.prefill_rows])
        if self.options.tokens_per_decode > 1 and not batch.prefill_rows:
            self._roll_back(batch)
        if self.options.sliding_window is not None:
            self.log_window(batch.rows)
        done = reached >= table.total_lens[batch.rows] - 1
        if self.options.disaggregation_mode == "prefill":
            done[:] = True
        if self.chunked is not None:
            done &= batch.rows != self.chunked.row
        if not np.count_nonzero(done):
            return []
        finished = batch.rows[done]
        self._leave(finished)
        return [self.by_row[row] for row in finished.tolist()]

    def settle(self) -> None:
        """Bring the table's lengths up to the steps of a decode run that were issued and completed."""
        if self._run is not None:
            self._run.settle()

    def end_run(self) -> None:
        """Give up what a decode run decided beyond its issued steps; needed before anything else moves slots."""
        self.settle()
        self._run = None

    def start_running(self, request: Request) -> None:
        """Let a request whose prompt is in its slots decode."""
        self.running = np.concatenate((self.running, (request.row,)))

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
        self._full = False

    def remove(self, request: Request) -> None:
        """Take a request out of every queue; its slots stay as they are."""
        if request in self.waiting:
            self.waiting.remove(request)
            self._full = False
        if self.chunked is request:
            self.chunked = None
        self._leave(np.array([request.row]))

    def _leave(self, rows: Int64Array) -> None:
        if len(rows) == 1:
            self.running = self.running[self.running != rows[0]]
            return
        stays = np.ones(self.memory.table.rows + 1, dtype=np.bool_)
        stays[rows] = False
        self.running = self.running[stays[self.running]]

    def _prefill_batch(self) -> Batch | None:
        """Chunk and prompts within the budget; with mixed chunk every running request takes one token of it and decodes along."""
        budget, mixed = self.options.prefill_budget, EMPTY
        if self.options.enable_mixed_chunk and len(self.running):
            mixed = self.running
            budget -= len(mixed)
            self._spare_pages = self._decode_pages()
            if budget <= 0 or not self.memory.make_room(self._spare_pages):
                return None
        rows, extends = self._fill(budget)
        self._spare_pages = 0
        if not rows:
            return None
        count = len(rows)
        if len(mixed):
            self.memory.grow(mixed, self.memory.table.kv_lens[mixed] + 1)
            rows, extends = rows + mixed.tolist(), extends + [1] * len(mixed)
        return self._batch(np.array(rows), np.array(extends), prefill_rows=count)

    def _fill(self, budget: int) -> tuple[list[int], list[int]]:
        """Rows that prefill now and how many tokens of each, slots included."""
        rows, extends = [], []
        if self.chunked is not None:
            extend = self._fit_chunk(self.chunked, int(self.memory.table.kv_lens[self.chunked.row]), budget)
            if not extend or not self._grow(self.chunked.row, extend):
                return [], []
            rows, extends, budget = [self.chunked.row], [extend], budget - extend
        # Running requests stay as they are while others are admitted.
        kept_pages = self._spare_pages + self.reserved_pages() if self.waiting and budget > 0 else 0
        while self.waiting and budget > 0:
            admitted = self._admit(self.waiting[0], budget, kept_pages, alone=not rows) if self.memory.table.free_rows else None
            if admitted is None:
                # A chunk that is under way may have left too little budget; that says nothing about memory.
                self._full = not rows
                break
            request = self.waiting.popleft()
            rows.append(request.row)
            extends.append(admitted)
            budget -= admitted
        return rows, extends

    def _admit(self, request: Request, budget: int, kept_pages: int, *, alone: bool) -> int | None:
        """Place a waiting request and give it slots; returns the tokens it computes now, or None when it has to wait.

        kept_pages: pages that must stay free beside what it gets.
        """
        memory = self.memory
        match = memory.match(request)
        if match is not None and match.host_nodes:
            match = self._load_back(match, request)
        prefix = len(match.slots) if match is not None else 0
        extend = self._fit_chunk(request, prefix, budget)
        # Without chunking one prompt above the budget may run, but only alone.
        if not extend and alone and self.options.chunked_prefill_size is None:
            extend = request.known_len - prefix
        if not extend:
            return None
        pages = memory.pages_for(extend) + kept_pages
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
        memory, table = self.memory, self.memory.table
        length = int(table.kv_lens[row]) + extend
        if not memory.make_room(memory.pages_for(length - int(table.alloc_lens[row])) + self._spare_pages):
            return False
        memory.grow_row(row, length)
        return True

    def _load_back(self, match: Match, request: Request) -> Match:
        """Bring the host part of a match to the device where there is room for it."""
        memory = self.memory
        pages = memory.pages_for(match.host_length)
        if memory.host is None or memory.tree is None or match.host_parent is None:
            return match
        lock = memory.tree.lock(match.host_parent)
        if memory.make_room(pages) and all(node.host is not None for node in match.host_nodes):
            memory.host.load_back(match, memory.pool.alloc_pages(pages), request.rid)
            match = memory.match(request) or match
        memory.tree.unlock(lock)
        return match

    def reserved_pages(self) -> int:
        """Pages kept free for the output of running requests, so that admission does not force a retraction at once."""
        table = self.memory.table
        missing = np.add.reduce(table.total_lens[self.running] - table.kv_lens[self.running])
        return self.memory.pages_for(int(missing * self.options.new_token_ratio))

    def _batch(self, rows: Int64Array, extends: Int64Array, *, prefill_rows: int) -> Batch:
        """The true tokens of rows behind their committed ones."""
        table = self.memory.table
        prefixes = table.kv_lens[rows]
        if len(rows) == 1:
            owner, positions = rows[0], np.arange(prefixes[0], prefixes[0] + extends[0])
        else:
            ends = extends.cumsum()
            owner, positions = rows.repeat(extends), np.arange(ends[-1]) + (prefixes - ends + extends).repeat(extends)
        return Batch(
            rows=rows,
            rids=table.rids[rows],
            prefix_lens=prefixes,
            extend_lens=extends,
            known_lens=table.known_lens[rows],
            tokens=table.token_ids[owner, positions].astype(np.int64),
            positions=positions,
            slots=table.req_to_token[owner, positions].astype(np.int64),
            accepted=extends,
            prefill_rows=prefill_rows,
            draft_tokens=table.token_ids[owner, positions + 1].astype(np.int64) if self.options.draft_pool else None,
        )

    def _batch_of_run(self, run: DecodeRun) -> Batch:
        index = run.take()
        positions, ones = run.positions[index], run.ones
        return Batch(run.rows, run.rids, positions, ones, run.known_lens[index], run.tokens[index], positions, run.slots[index], ones)

    def _complete_prefill(self, rows: Int64Array) -> None:
        table = self.memory.table
        self.chunked = None
        for row in rows.tolist():
            request = self.by_row[row]
            self.memory.cache(row, int(table.kv_lens[row]))
            if table.kv_lens[row] < request.known_len:
                self.chunked = request
                table.known_lens[row] = request.known_len
                self.memory.log(Event(EventKind.CHUNK, request.rid, count=int(table.kv_lens[row])))
                continue
            table.known_lens[row] = request.known_len + 1
            self.start_running(request)

    def _decode_batch(self, quiet_steps: int) -> Batch | None:
        if not self._make_decode_room():
            return None
        table, width = self.memory.table, self.options.tokens_per_decode
        if width == 1:
            # Window slots are given back after every step, and a half-done prompt is tried again before every step.
            limit = 1 if self.options.sliding_window is not None or self.chunked is not None else RUN_STEPS
            # While nothing more fits, an arrival interrupts nothing.
            limit = limit if self._full else min(limit, quiet_steps)
            self._run = DecodeRun(table, self.memory.pool, self.running, overlap=self.options.overlap, limit=limit)
            return self._batch_of_run(self._run)
        batch = self._speculate(self.running, width)
        # The last output token is sampled but never written; an overlapped step after the end writes one token more.
        room = np.maximum(table.total_lens[batch.rows] - 1 - batch.prefix_lens, 1)
        drafted, accepted = self._drafter.draft(batch.tokens.reshape(-1, width), room)
        following = None
        if batch.draft_tokens is not None:
            # Behind a rejected draft the draft model follows it astray.
            kept = np.arange(width) < accepted[:, None]
            following = np.where(kept, batch.draft_tokens.reshape(-1, width), drafted).ravel()
        return replace(batch, tokens=drafted.ravel(), accepted=accepted, draft_tokens=following)

    def _speculate(self, rows: Int64Array, width: int) -> Batch:
        self.memory.grow(rows, self.memory.table.kv_lens[rows] + width)
        return self._batch(rows, np.full(len(rows), width, dtype=np.int64), prefill_rows=0)

    def _make_decode_room(self) -> bool:
        """Free slots for one decode step, by eviction and then by sending requests back to the queue; False = nothing runs."""
        while len(self.running):
            if self.memory.make_room(self._decode_pages()):
                return True
            self._retract()
        return False

    def _decode_pages(self) -> int:
        """Pages that one decode step of the running rows takes."""
        table, page_size, width = self.memory.table, self.options.page_size, self.options.tokens_per_decode
        if page_size == width == 1:
            return len(self.running)
        wanted = -(-(table.kv_lens[self.running] + width) // page_size)
        return int(np.maximum(wanted - table.alloc_lens[self.running] // page_size, 0).sum())

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

    def _roll_back(self, batch: Batch) -> None:
        """Free the pages of rejected drafts."""
        slots = self.memory.shrink(batch.rows)
        rejected = int((batch.extend_lens - batch.accepted).sum())
        if rejected:
            self.memory.log(Event(EventKind.ROLLBACK, count=rejected, slots=slots))

    def log_window(self, rows: Int64Array) -> None:
        """Give back the window slots that rows need no longer, with an event."""
        slots = self.memory.leave_window(rows)
        if slots.size:
            self.memory.log(Event(EventKind.WINDOW_OUT, count=len(slots), slots=slots))
