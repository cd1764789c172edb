"""What goes to the host, what comes back, and what is forgotten."""

from __future__ import annotations

import numpy as np

from kvcanary.serving.events import EventKind, MoveKind
from kvcanary.serving.host_tier import HostTier
from kvcanary.serving.pool import Int32Array, SlotPool
from kvcanary.serving.radix_cache import RadixCache
from kvcanary.serving.window import WindowedSlotPool


def tokens(first: int, count: int) -> Int32Array:
    return np.arange(first, first + count, dtype=np.int32)


def tier(host_slots: int, *keys: Int32Array) -> tuple[SlotPool, RadixCache, HostTier]:
    pool = SlotPool(40)
    tree = RadixCache(pool)
    for key in keys:
        known = tree.match(key)
        fresh = pool.alloc_pages(len(key) - len(known.slots))
        tree.insert(key, np.concatenate([known.slots, fresh]))
    return pool, tree, HostTier(tree, host_slots, 1)


def push(tree: RadixCache, host: HostTier) -> list[int]:
    node = tree.next_victim()
    assert node is not None
    return host.push_out(node).tolist()


def test_a_backup_keeps_the_node_and_frees_its_device_slots() -> None:
    pool, tree, host = tier(10, tokens(0, 6))
    assert push(tree, host) == [1, 2, 3, 4, 5, 6]
    assert (pool.free_pages, host.pool.free_pages) == (40, 4)
    match = tree.match(tokens(0, 5))
    assert (match.slots.size, match.host_length) == (0, 5)
    (move,) = host.moves
    assert (move.kind, move.device_slots.tolist(), move.host_slots.tolist()) == (MoveKind.BACKUP, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])


def test_a_reload_puts_the_same_host_slots_into_new_device_slots_and_keeps_the_copy() -> None:
    pool, tree, host = tier(10, tokens(0, 6))
    push(tree, host)
    match = tree.match(tokens(0, 4))
    host.load_back(match, pool.alloc_pages(4), rid=9)
    reload = host.moves[-1]
    assert (reload.kind, reload.rid, reload.device_slots.tolist(), reload.host_slots.tolist()) == (
        MoveKind.RELOAD,
        9,
        [7, 8, 9, 10],
        [1, 2, 3, 4],
    )
    again = tree.match(tokens(0, 6))
    assert (again.slots.tolist(), again.host_length) == ([7, 8, 9, 10], 2)
    assert tree.evictable == 4
    assert push(tree, host) == [7, 8, 9, 10]
    assert sum(move.kind is MoveKind.BACKUP for move in host.moves) == 1


def test_a_full_host_gives_up_its_least_recently_used_leaf() -> None:
    _, tree, host = tier(8, tokens(0, 4), tokens(100, 4), tokens(200, 4))
    for _ in range(3):
        push(tree, host)
    assert [len(tree.match(tokens(first, 4)).host_nodes) for first in (0, 100, 200)] == [0, 1, 1]
    assert [event.kind for event in host.events] == [EventKind.BACKUP, EventKind.BACKUP, EventKind.HOST_EVICT, EventKind.BACKUP]


def test_a_node_too_large_for_the_host_is_forgotten_with_all_below_it() -> None:
    pool, tree, host = tier(8, tokens(0, 12), tokens(0, 16))
    push(tree, host)
    assert host.pool.free_pages == 4
    push(tree, host)
    assert (pool.free_pages, host.pool.free_pages, sum(1 for _ in tree.nodes())) == (40, 8, 0)


def windowed_tier() -> tuple[WindowedSlotPool, RadixCache, HostTier]:
    """Six tokens under a window of two; the first four have lost their window slots."""
    pool = WindowedSlotPool(40, 20)
    tree = RadixCache(pool, window=2)
    slots = pool.alloc_pages(6)
    pool.release_window(slots[:4])
    tree.insert(tokens(0, 6), slots, window_len=4)
    return pool, tree, HostTier(tree, 10, 1)


def test_window_kv_goes_to_the_host_and_comes_back_as_far_as_it_was_there() -> None:
    pool, tree, host = windowed_tier()
    assert [push(tree, host), push(tree, host)] == [[5, 6], [1, 2, 3, 4]]
    assert [(move.host_slots.tolist(), move.window_slots.tolist()) for move in host.moves] == [([1, 2], [5, 6]), ([3, 4, 5, 6], [])]
    assert (pool.free_pages, pool.window_pool.free_pages) == (40, 20)

    host.moves = []
    host.load_back(tree.match(tokens(0, 6)), pool.alloc_pages(6), rid=3)
    first, last = host.moves
    assert (first.device_slots.tolist(), first.window_slots.size) == ([7, 8, 9, 10], 0)
    assert last.device_slots.tolist() == [11, 12]
    assert last.window_slots.tolist() == pool.full_to_swa[[11, 12]].tolist()
    assert (last.window_slots > 0).all()
    assert pool.window_pool.free_pages == 18
    assert tree.match(tokens(0, 6)).slots.tolist() == [7, 8, 9, 10, 11, 12]
    assert tree.match(tokens(0, 4)).slots.size == 0


def test_a_prefix_whose_window_kv_is_nowhere_is_not_loaded_back() -> None:
    _, tree, host = windowed_tier()
    push(tree, host), push(tree, host)
    assert tree.match(tokens(0, 4)).host_length == 0
    assert tree.match(tokens(0, 6)).host_length == 6


def test_window_kv_that_was_computed_again_is_backed_up_again() -> None:
    pool, tree, host = windowed_tier()
    push(tree, host), push(tree, host)
    host.load_back(tree.match(tokens(0, 6)), pool.alloc_pages(6), rid=3)
    again = pool.alloc_pages(6)
    kept = tree.insert(tokens(0, 6), again)
    pool.release_slots(again)
    assert (pool.full_to_swa[kept.slots] > 0).all()
    host.moves = []
    push(tree, host), push(tree, host)
    (move,) = host.moves
    assert (move.kind, move.host_slots.tolist()) == (MoveKind.BACKUP, [3, 4, 5, 6])
    assert (move.window_slots > 0).all()
    assert tree.match(tokens(0, 4)).host_length == 4


def test_a_leaf_that_loses_its_window_slots_stays_on_the_host_where_they_are_kept() -> None:
    pool, tree, host = windowed_tier()
    push(tree, host), push(tree, host)
    host.load_back(tree.match(tokens(0, 6)), pool.alloc_pages(6), rid=3)
    tree.evict_window(20)
    assert pool.window_pool.free_pages == 20
    match = tree.match(tokens(0, 6))
    assert (match.host_length, len(match.slots), host.pool.free_pages) == (2, 0, 4)
    assert match.host_parent is not None
    assert match.host_parent.device_slots.tolist() == [7, 8, 9, 10]
