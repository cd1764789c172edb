"""plan, stamp and verify on the CPU with numba: the product path where there is no GPU.

The compiled loops (numba_ops) release the GIL; this module splits a launch into chunks, runs them on a thread pool when there is enough
work for more than one thread, and does the rest serially. A launch that finds nothing wrong never takes a lock. Rows go to the ring in
the order of the reference, whatever the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvcanary import layout
from kvcanary.errors import ContractError
from kvcanary.kernels import contract
from kvcanary.kernels.numba_ops import hashing
from kvcanary.kernels.numba_ops import plan as plan_op
from kvcanary.kernels.numba_ops import stamp as stamp_op
from kvcanary.kernels.numba_ops import verify as verify_op
from kvcanary.kernels.types import (
    COVERAGE_FIELDS,
    Availability,
    Coverage,
    Launch,
    PlanInputs,
    RealKvSource,
    RunCounters,
    StampInputs,
    VerifyPlan,
    ViolationRing,
    WritePlan,
)
from kvcanary.layout import RealKvHashMode

Int64Array = npt.NDArray[np.int64]

CHUNK_WORK = 16_384
"""Least work for one chunk, in entries without real KV: 45 us to verify, 65 us to stamp (one core of a 3 GHz Xeon with AVX-512)."""

CHUNKS_PER_THREAD = 4
WORDS_PER_ENTRY_WORK = 8
"""Real-KV words whose fold takes about as long as one entry."""

_NO_INT64: Int64Array = np.empty(0, dtype=np.int64)
_NO_UINT8 = np.empty(0, dtype=np.uint8)
_NO_TABLE = np.empty((0, 0), dtype=np.int32)


class NumbaBackend:
    """Compiled loops over CPU tensors; see Backend for the contract of each method.

    threads: None follows torch.get_num_threads() at each launch. chunk_work: see CHUNK_WORK; a small value makes tests use threads.
    """

    name = "numba"

    def __init__(self, *, threads: int | None = None, chunk_work: int = CHUNK_WORK) -> None:
        self._threads = threads
        self._chunk_work = chunk_work

    def available(self) -> Availability:
        """Always, once this module could be imported."""
        return Availability(ok=True, reason=f"compiled loops on {self.threads} CPU threads")

    @property
    def threads(self) -> int:
        """Threads that a large launch uses."""
        return torch.get_num_threads() if self._threads is None else self._threads

    def prepare(self) -> None:
        """Compile every loop, or load it from numba's disk cache: seconds the first time on a machine, well under one later."""
        _exercise(NumbaBackend(threads=2, chunk_work=1))
        _exercise(NumbaBackend(threads=1))

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans; the entries of requests are independent once the offsets are known."""
        contract.check_plan(inputs, verify_plan, write_plan)
        _require_cpu(verify_plan.slot_indices)
        rows, prefix, table = inputs.req_pool_indices.numpy(), inputs.prefix_lens.numpy(), inputs.req_to_token.numpy()
        expected = _NO_TABLE if inputs.expected_tokens is None else inputs.expected_tokens.numpy()
        lut, valid_lens, offsets = _int64(inputs.full_to_swa), _int64(inputs.expected_valid_lens), write_plan.offsets.numpy()
        window, token_offset, batch = int(inputs.swa_window), int(inputs.token_offset), rows.shape[0]
        starts = np.empty(batch + 1, dtype=np.int64)
        scratch = np.empty_like(offsets)
        extend = inputs.extend_seq_lens.numpy()
        fits = plan_op.measure(rows, prefix, extend, table.shape, window, valid_lens, expected.shape[1], token_offset, starts, scratch)
        if fits and inputs.full_to_swa is not None:
            fits = plan_op.cells_fit(rows, prefix, table, window, lut.shape[0], 0, batch)
        if not fits:
            _raise_from(contract.check_plan_values, inputs)
        offsets[:] = scratch
        total, capacity = int(starts[-1]), verify_plan.slot_indices.shape[0]
        verify_plan.num_valid.numpy()[0] = min(total, capacity)
        verify_plan.enable.numpy()[0] = total <= capacity
        if total <= capacity:
            columns = (
                verify_plan.slot_indices.numpy(),
                verify_plan.expected_tokens.numpy(),
                verify_plan.expected_positions.numpy(),
                verify_plan.prev_slot_indices.numpy(),
            )
            arguments = rows, prefix, table, lut, expected, valid_lens, token_offset, starts
            self._run(lambda first, last: plan_op.fill_entries(*arguments, first, last, *columns), self._split_by(starts))
        plan_op.fill_seeds(rows, prefix, table, lut, offsets, write_plan.seed_slot_indices.numpy())
        write_plan.num_valid_reqs.numpy()[0] = batch

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Write the records of this forward, with threads when no two requests can meet at a slot that the contract defines."""
        contract.check_stamp(launch, plan, inputs)
        _require_cpu(launch.buffer)
        num_requests = contract.active_count(plan.num_valid_reqs, plan.seed_slot_indices)
        offsets, seeds = plan.offsets.numpy()[: num_requests + 1], plan.seed_slot_indices.numpy()[:num_requests]
        columns = inputs.tokens.numpy(), inputs.positions.numpy(), inputs.slots.numpy()
        expected = _int64(inputs.expected_tokens), _int64(inputs.expected_positions)
        buffer, stride, num_slots = launch.buffer.data_ptr(), launch.buffer.shape[1], launch.buffer.shape[0]
        if not stamp_op.offsets_fit(offsets, seeds, columns[0].shape[0], num_slots):
            _raise_from(contract.check_stamp_values, launch, plan, inputs)
        first, last = int(offsets[0]) if num_requests else 0, int(offsets[-1]) if num_requests else 0
        chunks = self._split(first, last, 1.0)
        looks = self._run(lambda a, b: stamp_op.inspect_tokens(columns[2], num_slots, *columns[:2], *expected, a, b), chunks)
        outside, at_padding, negative, unexpected = (sum(column) for column in zip(*looks, strict=True)) if looks else (0, 0, 0, 0)
        if outside:
            _raise_from(contract.check_stamp_values, launch, plan, inputs)
        check_next = inputs.position_assert is not None and bool(inputs.position_assert.numpy()[0])
        sources = _source_table(launch)
        jumps = stamp_op.count_jumps(buffer, stride, offsets, seeds, *columns[1:], 0, num_requests) if check_next else 0
        if len(chunks) < 2:
            # One thread could follow the reference's order in everything, so where order shows it does.
            in_order = bool(chunks) and stamp_op.slots_meet(columns[2], offsets, seeds)
        else:
            in_order = at_padding > 0 and _order_matters(offsets, seeds, columns[2])
        if unexpected or jumps or in_order:
            stamp_op.stamp_in_order(
                buffer, stride, offsets, seeds, *columns, *expected, check_next, sources, int(launch.tag), *_sinks(launch)
            )  # fmt: skip
        else:
            self._stamp_side_by_side(buffer, stride, offsets, seeds, columns, sources, compact=negative > 0)
        stamped = last - first - negative
        launch.counters.kernel_runs.numpy()[launch.tag] += 1
        launch.counters.slot_runs.numpy()[launch.tag] += stamped
        _cover(launch.coverage, stamped=stamped, skipped_negative=negative)

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check the active entries; reads the buffer and never writes it."""
        contract.check_verify(launch, plan)
        _require_cpu(launch.buffer)
        active = contract.active_count(plan.num_valid, plan.slot_indices)
        kernel_runs, slot_runs = launch.counters.kernel_runs.numpy(), launch.counters.slot_runs.numpy()
        if plan.enable.numpy()[0] == 0:
            kernel_runs[launch.tag] += 1
            _cover(launch.coverage, skipped_disabled=active)
            return
        buffer, stride, num_slots = launch.buffer.data_ptr(), launch.buffer.shape[1], launch.buffer.shape[0]
        sources = _source_table(launch)
        columns = (
            plan.slot_indices.numpy(),
            plan.expected_tokens.numpy(),
            plan.expected_positions.numpy(),
            plan.prev_slot_indices.numpy(),
        )
        rest = *columns, bool(check_tokens), sources
        chunks = self._split(0, active, _work_per_entry(sources))
        count = _counter(sources)
        counts = self._run(lambda a, b: count(buffer, stride, num_slots, *rest, a, b), chunks)
        if any(wrong < 0 for wrong, _, _ in counts):
            _raise_from(contract.check_verify_values, launch, plan)
        for (first, last), (wrong, _, _) in zip(chunks, counts, strict=True):
            if wrong:
                verify_op.report_range(buffer, stride, *rest, first, last, int(launch.tag), *_sinks(launch))
        padding, unlinked = sum(count[1] for count in counts), sum(count[2] for count in counts)
        kernel_runs[launch.tag] += 1
        slot_runs[launch.tag] += active
        _cover(launch.coverage, verified=active - padding, skipped_padding=padding, unlinked=unlinked)

    def _stamp_side_by_side(
        self,
        buffer: int,
        stride: int,
        offsets: Int64Array,
        seeds: Int64Array,
        columns: tuple[Int64Array, ...],
        sources: Int64Array,
        *,
        compact: bool,
    ) -> None:
        if compact:
            kept = columns[2] >= 0
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            columns = tuple(column[kept] for column in columns)
        real, hashed = np.zeros(1, dtype=np.uint64), sources.shape[0] > 0
        if hashed:
            first, last = int(offsets[0]), int(offsets[-1])
            real = np.empty(last - first, dtype=np.uint64)
            by_token = self._split(first, last, _work_per_entry(sources))
            self._run(lambda a, b: stamp_op.fold_tokens(sources, columns[2], first, a, b, real), by_token)
        chains = buffer, stride, offsets, seeds, *columns, real, hashed
        self._run(lambda a, b: stamp_op.stamp_chains(*chains, a, b), self._split_by(offsets))

    def _split(self, first: int, last: int, work_per_item: float) -> list[tuple[int, int]]:
        """Even ranges of [first, last), each with enough work for a thread; none when there is nothing to do."""
        if last <= first:
            return []
        count = self._num_chunks((last - first) * work_per_item)
        if count == 1:
            return [(first, last)]
        bounds = [first + (last - first) * index // count for index in range(count + 1)]
        return list(pairwise(bounds))

    def _split_by(self, offsets: Int64Array) -> list[tuple[int, int]]:
        """Ranges of requests with about the same number of tokens; offsets int64 [requests + 1]."""
        total = int(offsets[-1] - offsets[0])
        if total == 0:
            return []
        count = self._num_chunks(total)
        if count == 1:
            return [(0, offsets.shape[0] - 1)]
        targets = int(offsets[0]) + np.arange(1, count) * total // count
        bounds = [0, *np.searchsorted(offsets, targets).tolist(), offsets.shape[0] - 1]
        return [(first, last) for first, last in pairwise(bounds) if first < last]

    def _num_chunks(self, work: float) -> int:
        return max(1, min(self.threads * CHUNKS_PER_THREAD, int(work // self._chunk_work))) if self.threads > 1 else 1

    def _run(self, function: Callable[[int, int], Any], ranges: list[tuple[int, int]]) -> list[Any]:
        """Results of the function over the ranges, in order. This thread and its helpers take the next range whenever they are free."""
        if len(ranges) < 2:
            return [function(*bounds) for bounds in ranges]
        results: list[Any] = [None] * len(ranges)
        tickets = iter(range(len(ranges)))

        def work() -> None:
            for index in tickets:
                results[index] = function(*ranges[index])

        helpers: list[Future[None]] = []
        try:
            helpers.extend(_pool(self.threads, os.getpid()).submit(work) for _ in range(min(self.threads, len(ranges)) - 1))
            work()
        finally:
            # Also after an interrupt: helpers work on addresses, and the caller may free what is there.
            for helper in helpers:
                # One that has not started yet would find nothing to do: on a busy machine, waiting for it costs more than the launch.
                if not helper.cancel():
                    helper.result()
        return results


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Worker threads of this process; a forked child has none of its parent's, hence the second key."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"kvcanary-numba-{process}")


def _require_cpu(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ContractError(f"kv-canary: the numba backend works on cpu tensors, got {tensor.device}; choose backend 'torch' or 'auto'")


def _raise_from(check: Callable[..., None], *arguments: object) -> None:
    """Let the value check that all backends share name what a compiled loop found out of bounds."""
    check(*arguments)
    raise AssertionError(f"{check.__name__} accepts what a compiled loop refused")


def _order_matters(offsets: Int64Array, seeds: Int64Array, slots: Int64Array) -> bool:
    """Whether slot 0, where the SWA table sends evicted tokens of any request, makes the order of the requests visible."""
    at_padding = np.flatnonzero(slots[offsets[0] : offsets[-1]] == layout.PADDING_SLOT) + offsets[0]
    owners = np.searchsorted(offsets, at_padding, side="right") - 1
    return bool(owners[0] != owners[-1] or (seeds == layout.PADDING_SLOT).any())


def _int64(tensor: torch.Tensor | None) -> Int64Array:
    return _NO_INT64 if tensor is None else tensor.numpy()


def _sinks(launch: Launch) -> tuple[npt.NDArray[Any], ...]:
    """Where report() writes: ring rows, write index, slot flags (empty when there is no map)."""
    flags = None if launch.coverage is None else launch.coverage.slot_flags
    return launch.ring.rows.numpy(), launch.ring.write_index.numpy(), _NO_UINT8 if flags is None else flags.numpy()


def _source_table(launch: Launch) -> Int64Array:
    """int64 [number of hashed sources, len(SOURCE_FIELDS)]; empty when nothing is hashed."""
    hashed = () if launch.hash_mode == RealKvHashMode.NONE else launch.sources
    table = np.empty((len(hashed), len(hashing.SOURCE_FIELDS)), dtype=np.int64)
    for row, source in zip(table, hashed, strict=True):
        num_bytes = layout.PARTIAL_BYTES if launch.hash_mode == RealKvHashMode.PARTIAL else source.read_bytes
        is_power_of_two = source.page_size & (source.page_size - 1) == 0
        row[:] = (
            source.tensor.data_ptr(),
            source.tensor.stride(0),
            source.page_size,
            source.page_size.bit_length() - 1 if is_power_of_two else -1,
            source.num_bytes_per_token,
            num_bytes // 8,
        )
    return table


def _counter(sources: Int64Array) -> Callable[..., tuple[int, int, int]]:
    """The counting loop for this real KV; all of them take the same arguments."""
    counter: Callable[..., tuple[int, int, int]] = verify_op.count_plain
    if sources.shape[0]:
        counter = verify_op.count_two_words if hashing.folds_two_words(sources) else verify_op.count_folded
    return counter


def _work_per_entry(sources: Int64Array) -> float:
    num_words: list[int] = sources[:, -1].tolist()
    return 1.0 + sum(num_words) / WORDS_PER_ENTRY_WORK


def _cover(coverage: Coverage | None, **counts: int) -> None:
    if coverage is not None:
        values = coverage.counts.numpy()
        for name, count in counts.items():
            values[COVERAGE_FIELDS.index(name)] += count


def _exercise(backend: NumbaBackend) -> None:
    """Two requests through every loop, one of them with a wrong position, so that everything is compiled."""
    one = torch.ones(1, dtype=torch.int32)
    verify_plan, write_plan = VerifyPlan.allocate(8), WritePlan.allocate(2)
    cells = torch.tensor([[0, 0, 0], [1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    batch = PlanInputs(
        req_pool_indices=torch.tensor([1, 2]),
        prefix_lens=torch.tensor([3, 3]),
        extend_seq_lens=torch.tensor([2, 2]),
        req_to_token=cells,
        swa_window=3,
        full_to_swa=torch.arange(7),
        expected_tokens=cells,
        expected_valid_lens=torch.tensor([3, 3]),
    )
    backend.plan(batch, verify_plan, write_plan)
    source = RealKvSource(tensor=torch.zeros(7, 32, dtype=torch.uint8), page_size=1, num_bytes_per_token=32, read_bytes=32)
    launch = Launch(
        buffer=torch.zeros(7, layout.SLOT_BYTES, dtype=torch.uint8),
        tag=layout.LaunchTag.TAIL_K_FULL,
        ring=ViolationRing.allocate(1),
        counters=RunCounters.allocate(),
        sources=(source,),
        hash_mode=RealKvHashMode.ALL,
        coverage=Coverage.allocate(7),
    )
    tokens = torch.arange(4)
    for positions, armed in ((torch.tensor([1, 2, 1, 2]), one), (torch.zeros(4, dtype=torch.int64), one)):
        inputs = StampInputs(
            tokens=tokens,
            positions=positions,
            slots=torch.arange(1, 5),
            expected_tokens=tokens,
            expected_positions=positions,
            position_assert=armed,
        )
        backend.stamp(launch, write_plan, inputs)
    for mode in RealKvHashMode:
        backend.verify(replace(launch, hash_mode=mode), verify_plan, check_tokens=True)
