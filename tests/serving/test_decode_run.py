"""Steps that are decided together equal those that are decided one at a time, slot for slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvcanary.serving import scheduler
from kvcanary.serving.decode_run import DecodeRun
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import RequestTable, SlotPool
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.step import StepMode
from tests.serving.conftest import shared_prefixes


def steps(options: ServingOptions, seed: int) -> list[tuple[Any, ...]]:
    """What each step writes and knows, and who owns what after it."""
    engine = ServingEngine(options, shared_prefixes(30, seed))
    found = []
    for step in engine.steps():
        arrays = (step.req_pool_indices, step.prefix_lens, step.expected_valid_lens, step.tokens, step.positions, step.out_slots)
        found.append((step.mode, *(array.tolist() for array in arrays), step.free_slots, engine.owners().tolist()))
    return found


def test_a_run_equals_its_steps(mechanism: Callable[..., ServingOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    together = steps(mechanism(), 6)
    monkeypatch.setattr(scheduler, "RUN_STEPS", 1)
    assert steps(mechanism(), 6) == together


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_the_law_holds_inside_a_run(page_size: int) -> None:
    engine = ServingEngine(ServingOptions(pool_slot_count=200, page_size=page_size, max_seq_len_per_req=80), shared_prefixes(6, 3))
    inside = 0
    while engine.schedule() is not None:
        engine.check()
        engine.complete()
        ledger = engine.check()
        inside += engine.scheduler._run is not None
        assert ledger.total == 200
    assert inside > 10


def table_with(lengths: list[int], totals: list[int], page_size: int, pool: SlotPool) -> RequestTable:
    """Rows 1, 2 and so on with committed tokens in pages of their own."""
    table = RequestTable(len(lengths), 64)
    for rid, (length, total) in enumerate(zip(lengths, totals, strict=True), start=1):
        row = table.take(rid, np.arange(total, dtype=np.int32) + 100 * rid, length + 1)
        slots = pool.slots_of(pool.alloc_pages(-(-length // page_size)))
        table.req_to_token[row, : len(slots)] = slots
        table.kv_lens[row], table.alloc_lens[row] = length, len(slots)
    return table


@pytest.mark.parametrize(
    ("free", "page_size", "limit", "overlap", "expected"),
    [
        # The second request has 6 tokens, of which the last is never written: positions 3 and 4 are left.
        (40, 1, 64, False, 2),
        (40, 1, 64, True, 3),
        (40, 1, 1, False, 1),
        # Two slots are free after the prompts: one step.
        (2, 1, 64, True, 1),
        # Pages of 4: the second step takes one for position 4, the third one for position 8.
        (4, 4, 64, True, 2),
        (8, 4, 64, True, 3),
    ],
)
def test_a_run_is_as_long_as_nothing_happens(free: int, page_size: int, limit: int, overlap: bool, expected: int) -> None:
    held = sum(-(-length // page_size) * page_size for length in (6, 3))
    pool = SlotPool(held + free, page_size)
    table = table_with([6, 3], [20, 6], page_size, pool)
    run = DecodeRun(table, pool, np.array([1, 2]), overlap=overlap, limit=limit)
    assert run.steps == expected
    before = pool.free_pages
    for index in range(expected):
        assert run.take() == index
        run.completed += 1
    assert run.over
    run.settle()
    assert table.kv_lens[1:].tolist() == [6 + expected, 3 + expected]
    assert table.known_lens[1:].tolist() == [7 + expected, min(4 + expected, 6)]
    assert pool.free_pages == before - sum(-(-(length + expected) // page_size) - -(-length // page_size) for length in (6, 3))
    assert table.alloc_lens[1:].tolist() == [-(-(length + expected) // page_size) * page_size for length in (6, 3)]


def test_no_more_is_decided_than_is_quiet_until_the_next_arrival() -> None:
    """Steps of 0.25 s are exact in binary: the second request arrives with the fifth step."""
    first, second = (RequestSpec(prompt=np.arange(4, dtype=np.int32), output_len=30, arrival_s=at) for at in (0.0, 1.0))
    engine = ServingEngine(ServingOptions(step_s=0.25), [first, second])
    planned = []
    for _ in range(5):
        step = engine.schedule()
        assert step is not None
        planned.append((step.mode, engine.scheduler._run.steps if engine.scheduler._run else 0))
        engine.complete()
    # One step of slack: whether a step falls on an arrival is decided by the clock alone.
    assert planned == [(StepMode.EXTEND, 0), *[(StepMode.DECODE, 4)] * 3, (StepMode.EXTEND, 0)]
