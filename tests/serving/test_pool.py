"""Slots, rows and the conservation law with its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.errors import ServingError
from kvcanary.serving.pool import Ledger, RequestTable, SlotPool, account
from kvcanary.serving.window import WindowedSlotPool


def test_the_padding_page_is_never_handed_out() -> None:
    pool = SlotPool(24, page_size=4)
    assert pool.num_slots == 28
    assert sorted(pool.slots_of(pool.alloc_pages(6)).tolist()) == list(range(4, 28))


def test_the_first_freed_is_the_first_reused() -> None:
    pool = SlotPool(4)
    taken = pool.alloc_pages(4)
    pool.release_slots(taken[[2, 0]])
    assert pool.alloc_pages(2).tolist() == [3, 1]


def test_asking_for_more_than_is_free_names_both_numbers() -> None:
    pool = SlotPool(4)
    pool.alloc_pages(3)
    with pytest.raises(ServingError, match="2 pages wanted, 1 of 4 are free"):
        pool.alloc_pages(2)


def test_a_free_list_far_beyond_the_pool_is_refused() -> None:
    pool = SlotPool(2)
    pool.release_pages(np.array([1, 2]))
    with pytest.raises(ServingError, match="5 free pages in a pool of 2"):
        pool.release_pages(np.array([1]))


def test_account_sums_the_hands() -> None:
    pool = SlotPool(12, page_size=2)
    pages = pool.alloc_pages(4)
    hands = {"held": [pool.slots_of(pages[:1])], "cached": [pool.slots_of(pages[1:3])], "in_flight": [pool.slots_of(pages[3:])]}
    assert account(pool, hands) == Ledger(free=4, held=2, cached=4, in_flight=2)


def test_account_names_a_leak() -> None:
    pool = SlotPool(10)
    taken = pool.alloc_pages(5)
    with pytest.raises(ServingError, match=r"pool: 5 free \+ 3 held \+ 0 cached \+ 0 in flight = 8 of 10 slots; 2 slots .* first is 4"):
        account(pool, {"held": [taken[:3]]})


def test_account_names_a_slot_in_two_hands() -> None:
    pool = SlotPool(10)
    taken = pool.alloc_pages(5)
    pool.release_slots(taken[4:])
    with pytest.raises(ServingError, match="= 11 of 10 slots; slot 5 is in 2 hands: free, cached"):
        account(pool, {"held": [taken[:4]], "cached": [taken[4:]]})


def test_account_refuses_a_slot_outside_the_pool() -> None:
    pool = SlotPool(3)
    taken = pool.alloc_pages(3)
    taken[0] = 0
    with pytest.raises(ServingError, match="slot 0 is not a slot of the pool"):
        account(pool, {"held": [taken]})


def test_rows_start_at_one_and_run_out_with_the_knob_named() -> None:
    table = RequestTable(2, 8)
    tokens = np.arange(5, dtype=np.int32)
    assert [table.take(rid, tokens, 3) for rid in (7, 8)] == [1, 2]
    assert table.rids.tolist() == [-1, 7, 8]
    with pytest.raises(ServingError, match="raise req_to_token_pool_size"):
        table.take(9, tokens, 3)
    table.give_back(1)
    assert table.take(9, tokens, 3) == 1


def test_a_row_owns_what_is_allocated_and_not_of_the_tree() -> None:
    table = RequestTable(1, 8)
    row = table.take(1, np.arange(6, dtype=np.int32), 6)
    table.req_to_token[row, :5] = [11, 12, 13, 14, 15]
    table.alloc_lens[row], table.cached_lens[row] = 4, 1
    assert table.owned_slots(row).tolist() == [12, 13, 14]


def test_window_slots_are_mapped_with_full_slots_and_leave_first() -> None:
    pool = WindowedSlotPool(8, 3)
    slots = pool.alloc_pages(3)
    assert pool.full_to_swa[slots].tolist() == [1, 2, 3]
    assert pool.full_to_swa[-1] == -1
    with pytest.raises(ServingError, match=r"1 window pages wanted, 0 of 3 .*swa_pool_slot_count"):
        pool.alloc_pages(1)
    assert pool.release_window(slots[:2]).tolist() == [1, 2]
    assert pool.release_window(slots[:2]).size == 0
    assert (pool.free_pages, pool.window_pool.free_pages) == (5, 2)
    pool.release_slots(slots)
    assert (pool.free_pages, pool.window_pool.free_pages) == (8, 3)


def test_a_moved_window_slot_keeps_its_number() -> None:
    pool = WindowedSlotPool(8, 4)
    old, new = pool.alloc_pages(2), pool.alloc_pages(2)
    kept = pool.full_to_swa[new].copy()
    pool.release_window(old)
    pool.move_window(new, old)
    assert pool.full_to_swa[old].tolist() == kept.tolist()
    assert pool.full_to_swa[new].tolist() == [0, 0]


def test_peeked_pages_are_those_that_come_next_also_across_the_end_of_the_list() -> None:
    pool = SlotPool(5)
    pool.release_pages(pool.alloc_pages(4))
    for count in (3, 2, 5):
        peeked = pool.peek_pages(count).tolist()
        assert pool.free_list().tolist()[:count] == peeked
        before = pool.free_pages
        assert pool.alloc_pages(count).tolist() == peeked
        assert pool.free_pages == before - count
        pool.release_pages(np.array(peeked))
