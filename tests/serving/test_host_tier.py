"""What goes to the host, what comes back, and what is forgotten."""

from __future__ import annotations

import numpy as np

from kvcanary.serving.events import EventKind, MoveKind
from kvcanary.serving.host_tier import HostTier
from kvcanary.serving.pool import Int32Array, SlotPool
from kvcanary.serving.radix_cache import RadixCache


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
