"""The serving loop: requests go in, forwards come out, one at a time, in the shape the canary's plan reads.

    engine = ServingEngine(options, workload)
    while (step := engine.schedule()) is not None:
        ...                      # run the forward on step
        engine.complete()        # its results: finish, cache, free

Between schedule and complete the tables of the step are those the forward sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from kvcanary import layout
from kvcanary.errors import ServingError
from kvcanary.serving.batch import Batch
from kvcanary.serving.decode_run import RUN_STEPS
from kvcanary.serving.events import NO_REQUEST, Event, EventKind, KvMove, MoveKind
from kvcanary.serving.memory import KvMemory
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.padding import Padding
from kvcanary.serving.pool import EMPTY, Int64Array, Ledger
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.request import Request, RequestSpec
from kvcanary.serving.scheduler import Scheduler
from kvcanary.serving.step import Step, StepMode
from kvcanary.serving.transfer import Transfer, TransferQueue
from kvcanary.serving.window import WindowedSlotPool

OWNER_FREE, OWNER_CACHED, OWNER_IN_FLIGHT, OWNER_PADDING = -1, -2, -3, -4
_NOTHING = Batch(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, draft_tokens=EMPTY)


class ServingEngine:
    """One rank of a serving engine without the model. Deterministic: equal options and workload give equal steps."""

    def __init__(self, options: ServingOptions, workload: Iterable[RequestSpec] = ()) -> None:
        """workload: requests by arrival time; read only as far as the clock has come."""
        self.options = options
        self.memory = KvMemory(options)
        self.scheduler = Scheduler(options, self.memory)
        self.transfers = TransferQueue(options.transfer_delay_steps)
        self.step_index, self.clock_s, self.finished, self.rejected = 0, 0.0, 0, 0
        self._padding = Padding(options)
        self._workload = iter(workload)
        self._upcoming: RequestSpec | None = next(self._workload, None)
        self._next_rid = 1
        self._batch: Batch | None = None
        self._scheduled = False
        self._arrived_moves: list[KvMove] = []

    def submit(self, spec: RequestSpec) -> int:
        """Put a request in the queue now; returns its id. One that can never finish here is rejected, with an event that says why."""
        rid, self._next_rid = self._next_rid, self._next_rid + 1
        total, longest = len(spec.prompt) + spec.output_len, self.options.longest_request
        if total > longest:
            self.rejected += 1
            self.memory.log(Event(EventKind.REJECT, rid, count=total, detail=f"{total} tokens, at most {longest} fit"))
            return rid
        self.scheduler.waiting.append(Request.from_spec(rid, spec, self.options.vocab_size))
        self.memory.log(Event(EventKind.SUBMIT, rid, count=len(spec.prompt)))
        return rid

    def schedule(self) -> Step | None:
        """Decide the next forward; None when nothing is left to do. ServingError unless the last one was completed."""
        if self._scheduled:
            raise ServingError(f"step {self.step_index} is not completed yet; call complete() before schedule()")
        while True:
            self._take_arrivals()
            self._take_transfers()
            self._batch = self.scheduler.next_batch(self._quiet_steps())
            if self._batch is not None or self._rank_idles():
                break
            if not self._wait():
                return None
        self._scheduled = True
        return self._step(self._batch)

    def complete(self) -> None:
        """Take the results of the scheduled forward: commit tokens, finish, cache and free."""
        if not self._scheduled:
            raise ServingError("no step is scheduled; call schedule() first")
        if self._batch is not None:
            for request in self.scheduler.complete(self._batch):
                self._finish(request)
        self._batch, self._scheduled = None, False
        self.step_index += 1
        self.clock_s += self.options.step_s

    def steps(self) -> Iterator[Step]:
        """All forwards until nothing is left; each is completed when the next one is asked for."""
        while (step := self.schedule()) is not None:
            yield step
            self.complete()

    def abort(self, rid: int) -> bool:
        """Cancel a request between two steps; False when it is not here. Slots that a transfer still writes stay in flight."""
        if self._scheduled:
            raise ServingError(f"step {self.step_index} runs; call complete() before abort()")
        self.scheduler.end_run()
        waiting = {request.rid: request for request in self.scheduler.waiting}
        request = next((found for found in self.scheduler.by_row.values() if found.rid == rid), waiting.get(rid))
        if request is None:
            return False
        self.memory.log(Event(EventKind.ABORT, rid))
        sending = self.options.disaggregation_mode == "prefill" and any(transfer.rid == rid for transfer in self.transfers.pending)
        # A prompt that is being sent is let go when the sending ends, as without an abort.
        if sending:
            return True
        self.scheduler.remove(request)
        if self.transfers.abort(rid):
            # The slots belong to the transfer until it ends, no longer to the row.
            self.memory.table.alloc_lens[request.row] = 0
            self.scheduler.release(request)
        elif request.row:
            self._release(request)
        return True

    def check(self) -> Ledger:
        """The conservation law: free + held + cached + in flight = pool, no slot in two hands; ServingError with the numbers."""
        self.scheduler.settle()
        in_flight_rows = [transfer.row for transfer in self.transfers.pending]
        rows = [row for row in self.scheduler.by_row if row not in in_flight_rows]
        return self.memory.ledger(np.array(rows, dtype=np.int64), self.transfers.slots())

    def sweep_entries(self) -> SweepEntries:
        """What a sweep would verify now, in the full pool's index space; empty without a prefix tree."""
        return self.memory.tree.walk() if self.memory.tree else SweepEntries(EMPTY, EMPTY, EMPTY)

    def owners(self) -> Int64Array:
        """Who holds each slot, int64 [num_slots]: a request id, or OWNER_FREE, OWNER_CACHED, OWNER_IN_FLIGHT, OWNER_PADDING."""
        self.scheduler.settle()
        owners = np.full(self.memory.pool.num_slots, OWNER_FREE, dtype=np.int64)
        owners[: self.options.page_size] = OWNER_PADDING
        for node in self.memory.tree.nodes() if self.memory.tree else ():
            owners[node.device_slots] = OWNER_CACHED
        for row, request in self.scheduler.by_row.items():
            owners[self.memory.table.owned_slots(row)] = request.rid
        for slots in self.transfers.slots():
            owners[slots] = OWNER_IN_FLIGHT
        return owners

    def _take_arrivals(self) -> None:
        while self._upcoming is not None and self._upcoming.arrival_s <= self.clock_s:
            self.submit(self._upcoming)
            self._upcoming = next(self._workload, None)

    def _quiet_steps(self) -> int:
        """Steps until a request arrives, this one included; many when none will."""
        if self._upcoming is None:
            return RUN_STEPS
        return int(min(RUN_STEPS - 1, (self._upcoming.arrival_s - self.clock_s) / self.options.step_s)) + 1

    def _wait(self) -> bool:
        """Let time pass until something arrives; False when nothing ever will."""
        due = self.transfers.next_due()
        if due is not None:
            self.clock_s += (due - self.step_index) * self.options.step_s
            self.step_index = due
            return True
        if self._upcoming is None:
            return False
        self.clock_s = max(self.clock_s, self._upcoming.arrival_s)
        return True

    def _rank_idles(self) -> bool:
        """Whether the rank takes part in the other ranks' forward with padding rows only."""
        return self.options.dp_size > 1 and (self._upcoming is not None or bool(self.transfers.pending))

    def _take_transfers(self) -> None:
        if not self.transfers.pending and self.options.disaggregation_mode != "decode":
            return
        self.scheduler.end_run()
        for transfer in self.transfers.arrivals(self.step_index):
            if not transfer.row:
                self.memory.pool.release_slots(transfer.slots)
                continue
            request = self.scheduler.by_row[transfer.row]
            self.memory.log(Event(EventKind.TRANSFER_DONE, request.rid, count=len(transfer.slots), slots=transfer.slots))
            if self.options.disaggregation_mode == "prefill":
                self._release(request)
                self.finished += 1
            else:
                self._arrive(request, transfer)
        if self.options.disaggregation_mode == "decode":
            self._start_transfers()

    def _start_transfers(self) -> None:
        """Decode side: reserve slots for waiting prompts and let the prefill side fill them."""
        scheduler, memory = self.scheduler, self.memory
        while scheduler.waiting and memory.table.free_rows:
            request = scheduler.waiting[0]
            length = request.known_len
            if not memory.make_room(memory.pages_for(length) + scheduler.reserved_pages()):
                return
            scheduler.place(scheduler.waiting.popleft(), None)
            memory.grow(np.array([request.row]), np.array([length]))
            slots = memory.table.owned_slots(request.row)
            self.transfers.start(request.rid, request.row, slots, self.step_index)
            memory.log(Event(EventKind.TRANSFER_START, request.rid, count=length, slots=slots))

    def _arrive(self, request: Request, transfer: Transfer) -> None:
        """The prompt's KV and records are here, and its first sampled token came with them."""
        table, row, length = self.memory.table, request.row, request.known_len
        tokens = table.token_ids[row, :length].astype(np.int64)
        slots, pool = transfer.slots[:length], self.memory.pool
        table.kv_lens[row], table.known_lens[row] = length, length + 1
        self.scheduler.log_window(np.array([row]))
        window_slots = pool.full_to_swa[slots] if isinstance(pool, WindowedSlotPool) else EMPTY
        self._arrived_moves.append(KvMove(MoveKind.ARRIVAL, request.rid, slots, tokens=tokens, window_slots=window_slots))
        if length >= request.total_len - 1:
            self._finish(request)
        else:
            self.scheduler.start_running(request)

    def _finish(self, request: Request) -> None:
        self.memory.log(Event(EventKind.FINISH, request.rid, count=request.total_len - request.input_len))
        if self.options.disaggregation_mode == "prefill":
            slots = self.memory.table.owned_slots(request.row)
            self.transfers.start(request.rid, request.row, slots, self.step_index)
            self.memory.log(Event(EventKind.TRANSFER_START, request.rid, count=len(slots), slots=slots))
            return
        self._release(request)
        self.finished += 1

    def _release(self, request: Request) -> None:
        """Leave what is worth keeping in the tree, free the rest."""
        length = int(self.memory.table.kv_lens[request.row])
        # The last output token may have been written by an overlapped forward; the engine does not keep it.
        self.memory.cache(request.row, min(length, request.total_len - 1))
        self.scheduler.release(request)

    def _step(self, batch: Batch | None) -> Step:
        table, pool, mode = self.memory.table, self.memory.pool, self._mode(batch)
        batch = batch or _NOTHING
        pad_rows, pad_tokens = self._padding.of(batch)
        if pad_rows:
            batch = _padded(batch, pad_rows, self.options.tokens_per_decode)
        moves = self.memory.take_moves()
        if self._arrived_moves:
            moves, self._arrived_moves = (*moves, *self._arrived_moves), []
        return Step(
            index=self.step_index,
            mode=mode,
            req_pool_indices=batch.rows,
            prefix_lens=batch.prefix_lens,
            extend_seq_lens=batch.extend_lens,
            expected_valid_lens=batch.known_lens,
            rids=batch.rids,
            tokens=batch.tokens,
            positions=batch.positions,
            out_slots=batch.slots,
            req_to_token=table.req_to_token,
            expected_tokens=table.token_ids,
            full_to_swa=pool.full_to_swa if isinstance(pool, WindowedSlotPool) else None,
            window=self.options.sliding_window or 0,
            pad_tokens=pad_tokens,
            events=self.memory.take_events(),
            moves=moves,
            free_slots=pool.free_pages * pool.page_size,
            draft_tokens=batch.draft_tokens,
        )

    def _mode(self, batch: Batch | None) -> StepMode:
        if batch is None:
            return StepMode.IDLE
        if batch.prefill_rows:
            return StepMode.EXTEND if batch.prefill_rows == len(batch.rows) else StepMode.MIXED
        return StepMode.DECODE if self.options.speculative_num_draft_tokens is None else StepMode.TARGET_VERIFY


def _padded(batch: Batch, rows: int, width: int) -> Batch:
    """The batch with padding rows behind its own; what is per token stays."""

    def with_fill(values: Int64Array, fill: int) -> Int64Array:
        return np.concatenate([values, np.full(rows, fill, dtype=np.int64)])

    return replace(
        batch,
        rows=with_fill(batch.rows, layout.PADDING_ROW),
        rids=with_fill(batch.rids, NO_REQUEST),
        prefix_lens=with_fill(batch.prefix_lens, 0),
        extend_lens=with_fill(batch.extend_lens, width),
        known_lens=with_fill(batch.known_lens, 0),
    )
