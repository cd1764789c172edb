"""The prefix tree: what it finds, what it keeps, and that it never gives away what is in use."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.errors import ServingError
from kvcanary.serving.pool import Int32Array, Int64Array, SlotPool
from kvcanary.serving.radix_cache import RadixCache
from kvcanary.serving.window import WindowedSlotPool


def ids(*tokens: int) -> Int32Array:
    return np.array(tokens, dtype=np.int32)


def tree_with(pool: SlotPool, *keys: Int32Array, window: int | None = None) -> tuple[RadixCache, list[Int64Array]]:
    """A tree that holds the keys; slots of each as it was inserted, duplicates freed."""
    tree, slots = RadixCache(pool, window), []
    for key in keys:
        mine = pool.slots_of(pool.alloc_pages(len(key) // pool.page_size))
        kept = tree.insert(key, mine)
        pool.release_slots(mine[mine != kept.slots])
        slots.append(kept.slots)
    return tree, slots


def evict(tree: RadixCache) -> list[int] | None:
    node = tree.next_victim()
    return None if node is None else tree.drop(node).tolist()


def test_match_returns_the_slots_of_the_longest_prefix_and_splits_there() -> None:
    tree, (slots,) = tree_with(SlotPool(20), ids(5, 6, 7, 8, 9))
    match = tree.match(ids(5, 6, 7, 1))
    assert match.slots.tolist() == slots[:3].tolist()
    assert sorted(node.key.tolist() for node in tree.nodes()) == [[5, 6, 7], [8, 9]]
    assert tree.match(ids(6)).slots.size == 0
    assert tree.match(ids(5, 6, 7, 8, 9, 10)).slots.tolist() == slots.tolist()


def test_insert_keeps_the_first_slots_and_leaves_duplicates_to_the_caller() -> None:
    pool = SlotPool(20)
    tree, (first,) = tree_with(pool, ids(1, 2, 3))
    mine = pool.alloc_pages(5)
    kept = tree.insert(ids(1, 2, 3, 4, 5), mine)
    assert kept.slots.tolist() == [*first.tolist(), *mine[3:].tolist()]
    assert tree.evictable == 5


def test_pages_match_as_a_whole() -> None:
    tree, (slots,) = tree_with(SlotPool(24, 4), ids(1, 2, 3, 4, 5, 6, 7, 8))
    assert tree.match(ids(1, 2, 3, 4, 5, 6, 7, 0)).slots.tolist() == slots[:4].tolist()
    assert tree.match(ids(1, 2, 3)).slots.size == 0
    with pytest.raises(ServingError, match="3 tokens with 3 slots are no whole pages of 4"):
        tree.insert(ids(1, 2, 3), np.arange(3))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("split", [False, True])
def test_a_lock_moved_down_is_a_lock_anew(window: int | None, split: bool) -> None:
    """Also where a node above was split since the lock was taken."""
    trees = []
    for moved in (False, True):
        pool = WindowedSlotPool(40, 40) if window else SlotPool(40)
        tree, _ = tree_with(pool, ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5, 6), ids(1, 2, 3, 4, 5, 6, 7, 8), window=window)
        lock = tree.lock(tree.match(ids(1, 2, 3, 4)).node)
        if split:
            tree.match(ids(1, 2, 9))
        below = tree.match(ids(1, 2, 3, 4, 5, 6, 7, 8)).node
        if moved:
            last = tree.extend_lock(lock, below)
        else:
            last = tree.lock(below)
            tree.unlock(lock)
        held = [(node.key.tolist(), node.lock, node.window_lock) for node in tree.nodes()]
        tree.unlock(last)
        trees.append((held, tree.evictable, tree.protected, [node.lock for node in tree.nodes()]))
        freed = below.device_slots.tolist()
        assert evict(tree) == freed
    assert trees[0] == trees[1]
    assert {lock for _, lock, _ in trees[0][0]} == {1}


def test_namespaces_do_not_see_each_other() -> None:
    pool = SlotPool(20)
    tree, _ = tree_with(pool, ids(1, 2))
    tree.insert(ids(1, 2), pool.alloc_pages(2), namespace=3)
    assert len(tree.match(ids(1, 2), 3).slots) == 2
    assert tree.match(ids(1, 2), 4).slots.size == 0
    assert sum(1 for _ in tree.nodes()) == 2


def test_eviction_takes_leaves_in_the_order_of_their_last_use() -> None:
    tree, (a, b, c) = tree_with(SlotPool(20), ids(1, 2), ids(3, 4), ids(1, 2, 5))
    tree.match(ids(1, 2, 5))
    assert [evict(tree) for _ in range(4)] == [b.tolist(), c[2:].tolist(), a.tolist(), None]
    assert (tree.evictable, tree.protected) == (0, 0)


def test_a_node_that_was_used_again_moves_to_the_end() -> None:
    tree, (a, b) = tree_with(SlotPool(20), ids(1, 2), ids(3, 4))
    tree.match(ids(1, 2))
    assert [evict(tree), evict(tree)] == [b.tolist(), a.tolist()]


def test_locked_nodes_are_never_offered_and_cannot_be_dropped() -> None:
    tree, (_, b) = tree_with(SlotPool(20), ids(1, 2, 3), ids(3, 4))
    locked = tree.match(ids(1, 2)).node
    lock = tree.lock(locked)
    assert (tree.evictable, tree.protected) == (3, 2)
    assert [evict(tree) for _ in range(3)] == [[3], b.tolist(), None]
    with pytest.raises(ServingError, match="must not be evicted: 1 requests lock it"):
        tree.drop(locked)
    tree.unlock(lock)
    assert evict(tree) == [1, 2]
    with pytest.raises(ServingError, match="unlocked more often"):
        tree.unlock(lock)


def test_a_lock_survives_a_split() -> None:
    tree, _ = tree_with(SlotPool(20), ids(1, 2, 3, 4))
    lock = tree.lock(tree.match(ids(1, 2, 3, 4)).node)
    tree.match(ids(1, 2, 9))
    assert evict(tree) is None
    tree.unlock(lock)
    assert tree.evictable == 4
    assert [evict(tree), evict(tree)] == [[3, 4], [1, 2]]


def test_walk_links_each_slot_to_its_predecessor() -> None:
    tree, _ = tree_with(SlotPool(20), ids(1, 2, 3), ids(1, 2, 8))
    entries = tree.walk()
    rows = sorted(zip(entries.slots.tolist(), entries.positions.tolist(), entries.prev_slots.tolist(), strict=True))
    assert rows == [(1, 0, -1), (2, 1, 1), (3, 2, 2), (6, 2, 2)]


def windowed() -> tuple[WindowedSlotPool, RadixCache]:
    pool = WindowedSlotPool(30, 12)
    tree, _ = tree_with(pool, ids(1, 2, 3, 4, 5, 6), ids(1, 2, 3, 9, 9, 9), window=2)
    return pool, tree


def test_a_match_ends_where_the_window_is_still_there() -> None:
    pool, tree = windowed()
    tree.evict_window(9)
    assert tree.match(ids(1, 2, 3, 9, 9, 9)).slots.tolist() == [1, 2, 3, 10, 11, 12]
    assert len(tree.match(ids(1, 2, 3, 7)).slots) == 0
    assert pool.window_pool.free_pages == 9


def test_window_eviction_spares_the_window_of_a_lock_but_not_what_lies_before_it() -> None:
    pool, tree = windowed()
    lock = tree.lock(tree.match(ids(1, 2, 3, 4, 5, 6)).node)
    tree.evict_window(12)
    assert pool.full_to_swa[[4, 5, 6]].min() > 0
    assert pool.full_to_swa[[1, 2, 3]].max() == 0
    assert (tree.protected, pool.window_pool.free_pages) == (6, 9)
    tree.unlock(lock)
    tree.evict_window(12)
    assert (sum(1 for _ in tree.nodes()), pool.free_pages, pool.window_pool.free_pages) == (0, 30, 12)


def test_a_window_lock_is_undone_although_its_node_was_split() -> None:
    _, tree = windowed()
    lock = tree.lock(tree.match(ids(1, 2, 3, 4, 5, 6)).node)
    tree.match(ids(1, 2, 3, 4, 7))
    tree.unlock(lock)
    assert {node.window_lock for node in tree.nodes()} == {0}


def test_a_tombstone_takes_over_the_window_slots_of_a_request_that_computed_it_again() -> None:
    pool, tree = windowed()
    lock = tree.lock(tree.match(ids(1, 2, 3, 4, 5, 6)).node)
    tree.evict_window(12)
    mine = pool.alloc_pages(6)
    window_slots = pool.full_to_swa[mine].tolist()
    kept = tree.insert(ids(1, 2, 3, 8, 8, 8), mine)
    assert kept.slots.tolist() == [1, 2, 3, *mine[3:].tolist()]
    assert pool.full_to_swa[[1, 2, 3]].tolist() == window_slots[:3]
    assert not any(node.tombstone for node in tree.nodes())
    tree.unlock(lock)


def test_what_left_the_window_before_insertion_becomes_a_tombstone() -> None:
    pool = WindowedSlotPool(30, 12)
    tree = RadixCache(pool, window=2)
    slots = pool.alloc_pages(6)
    pool.release_window(slots[:4])
    tree.insert(ids(1, 2, 3, 4, 5, 6), slots, window_len=4)
    assert [(node.key.tolist(), node.tombstone) for node in tree.nodes()] == [([1, 2, 3, 4], True), ([5, 6], False)]
    assert tree.walk(resident_only=True).slots.tolist() == slots[4:].tolist()
    assert len(tree.match(ids(1, 2, 3, 4, 5)).slots) == 0
    assert len(tree.match(ids(1, 2, 3, 4, 5, 6)).slots) == 6
