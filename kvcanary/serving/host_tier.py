"""The host tier: KV of evicted nodes is copied to host memory and comes back when a prefix is asked for again."""

from __future__ import annotations

from kvcanary.serving.events import NO_REQUEST, Event, EventKind, KvMove, MoveKind
from kvcanary.serving.pool import EMPTY, Int64Array, SlotPool
from kvcanary.serving.radix_cache import Match, RadixCache
from kvcanary.serving.radix_node import LeastRecentlyUsed, RadixNode
from kvcanary.serving.window import WindowedSlotPool


class HostTier:
    """Write-back: a node is backed up when the device needs its slots. events and moves are those since they were last taken.

    Canary records do not travel with the bytes in SGLang; whether they do in an experiment is the executor's choice.
    """

    def __init__(self, tree: RadixCache, slot_count: int, page_size: int) -> None:
        self._tree = tree
        tree.give_up = self._give_up
        self.pool = SlotPool(slot_count, page_size)
        self.events: list[Event] = []
        self.moves: list[KvMove] = []
        self._leaves = LeastRecentlyUsed(lambda node: node.host is not None and node.slots is None and not node.children)

    def push_out(self, node: RadixNode) -> Int64Array:
        """Take a leaf off the device: back it up where the host has room, else forget it. Returns the freed device slots."""
        slots = node.device_slots
        if node.host is None and self._make_room(len(slots) // self.pool.page_size):
            node.host = self.pool.slots_of(self.pool.alloc_pages(len(slots) // self.pool.page_size))
            self._back_up(node, node.host)
        elif node.host is not None and node.has_window() and not node.host_window:
            # The copy was made without window KV, which a later request has computed again.
            self._back_up(node, node.host)
        if node.host is not None:
            self._tree.leave_device(node)
            self._leaves.offer(node)
            return slots
        for below in node.subtree():
            self._forget(below)
        parent = node.parent
        self._tree.drop(node)
        if parent is not None:
            self._leaves.offer(parent)
        return slots

    def load_back(self, match: Match, pages: Int64Array, rid: int) -> RadixNode:
        """Bring the host part of a match into device pages; returns the last node. The host copies stay."""
        slots = self._tree.pool.slots_of(pages)
        start = 0
        for node in match.host_nodes:
            part = slots[start : start + len(node.key)]
            assert node.host is not None, "a host-only node has a host copy"
            if not node.host_window and isinstance(self._tree.pool, WindowedSlotPool):
                self._tree.pool.release_window(part)
            self.moves.append(KvMove(MoveKind.RELOAD, rid, part, node.host, window_slots=self._window_slots(part)))
            self._tree.enter_device(node, part)
            start += len(node.key)
        self.events.append(Event(EventKind.RELOAD, rid, count=len(slots), slots=slots))
        return match.host_nodes[-1]

    def cached_slots(self) -> list[Int64Array]:
        """Host slots by node, for the accounting."""
        return [node.host for node in self._tree.nodes() if node.host is not None]

    def _back_up(self, node: RadixNode, host: Int64Array) -> None:
        slots = node.device_slots
        node.host_window = not node.tombstone
        self.moves.append(KvMove(MoveKind.BACKUP, NO_REQUEST, slots, host, window_slots=self._window_slots(slots)))
        self.events.append(Event(EventKind.BACKUP, count=len(slots), slots=slots))

    def _window_slots(self, slots: Int64Array) -> Int64Array:
        """Window slots as they are now, since they may have changed hands by the time of the move; empty where there are none."""
        pool = self._tree.pool
        return pool.full_to_swa[slots] if isinstance(pool, WindowedSlotPool) and pool.full_to_swa[slots[0]] else EMPTY

    def _give_up(self, node: RadixNode) -> None:
        """A leaf that lost its window slots stays where the host has them."""
        if node.host_window:
            self._tree.leave_device(node)
            self._leaves.offer(node)
            return
        parent = node.parent
        self._forget(node)
        self._tree.drop(node)
        if parent is not None:
            self._leaves.offer(parent)

    def _make_room(self, pages: int) -> bool:
        if pages > self.pool.num_pages:
            return False
        while self.pool.free_pages < pages:
            node = self._leaves.pop()
            if node is None:
                return False
            parent = node.parent
            assert parent is not None, "the root is never on the host"
            self.events.append(Event(EventKind.HOST_EVICT, count=len(node.key)))
            self._forget(node)
            self._tree.remove(node)
            self._leaves.offer(parent)
        return True

    def _forget(self, node: RadixNode) -> None:
        if node.host is not None:
            self.pool.release_slots(node.host)
            node.host, node.host_window = None, False
