"""The radix prefix cache: runs of tokens whose KV is kept for later requests.

    request row:   | cached: slots of the tree, locked | owned: slots of the request alone | free |
                   0                             cached_len                           alloc_len

Insertion hands owned slots to the tree, or, where the tree already has the tokens, makes the request use the tree's slots and
frees its own. KV bytes of the two differ in a real engine, token, position and history do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kvcanary import layout
from kvcanary.errors import ServingError
from kvcanary.serving.pool import EMPTY, Int64Array, SlotPool, TokenKeys
from kvcanary.serving.radix_node import LeastRecentlyUsed, RadixNode, common_prefix
from kvcanary.serving.window import WindowedSlotPool


# Match and Lock are not frozen, as Step is not: every request makes several.
@dataclass(slots=True, eq=False)
class Match:
    """The longest known prefix: node and slots int64 [length] on the device, then host_nodes that could be loaded back.

    host_parent is the device node above the host nodes; with a window it may lie below node.
    """

    node: RadixNode
    slots: Int64Array
    host_nodes: tuple[RadixNode, ...] = ()
    host_parent: RadixNode | None = None

    @property
    def host_length(self) -> int:
        """Tokens that lie on the host behind the device part."""
        return sum(len(node.key) for node in self.host_nodes)


@dataclass(slots=True, eq=False)
class Lock:
    """A protected path. window_start is the first position whose node keeps its window slots for this lock."""

    node: RadixNode
    window_start: int


@dataclass(frozen=True, slots=True, eq=False)
class SweepEntries:
    """What SWEEP verifies, in the pool's index space: slots, positions, previous slots (-1 at a chain head), int64 [n] each."""

    slots: Int64Array
    positions: Int64Array
    prev_slots: Int64Array


class RadixCache:
    """Prefix tree over a slot pool. Nodes in use are locked and never evicted; the rest goes least recently used first."""

    def __init__(self, pool: SlotPool, window: int | None = None) -> None:
        self.pool, self.window = pool, window
        self.root = RadixNode(serial=0, key=np.zeros(0, dtype=np.int32), slots=EMPTY, parent=None, lock=1)
        self.evictable, self.protected = 0, 0
        self._clock, self._serial = 0, 0
        # What becomes of a leaf that lost its window slots; a host tier has another answer.
        self.give_up: Callable[[RadixNode], object] = self.drop
        self._leaves = LeastRecentlyUsed(lambda node: node.lock == 0 and node.parent is not None and node.is_device_leaf())

    def match(self, tokens: TokenKeys, namespace: int = 0) -> Match:
        """Longest cached prefix of tokens [n] (ids or pairs) in whole pages; splits a node that matches in part.

        With a window, the match ends where the last `window` tokens still own window slots.
        """
        path = self._walk(tokens, namespace)
        if self.window is not None:
            path = path[: _usable(path, self.window)]
        device = [node for node in path if node.slots is not None]
        host = tuple(path[len(device) :])
        host_parent = (device[-1] if device else self.root) if host else None
        if self.window is not None and host:
            device = device[: _usable(device, self.window)]
        node = device[-1] if device else self.root
        return Match(node, _slots_of(device), host, host_parent)

    def insert(self, tokens: TokenKeys, slots: Int64Array, namespace: int = 0, window_len: int = 0) -> Match:
        """Keep tokens [n] (ids or pairs) in slots int64 [n], n in whole pages; the leading window_len own no window slot.

        Returns the node and the slots that the tree now uses for these tokens. Where they differ from the given ones, the given ones
        are duplicates: the caller frees them and uses the tree's.
        """
        if len(tokens) % self.pool.page_size or len(tokens) != len(slots):
            raise ServingError(f"{len(tokens)} tokens with {len(slots)} slots are no whole pages of {self.pool.page_size}")
        path = self._walk(tokens, namespace, cut=window_len)
        start = 0
        for node in path:
            end = start + len(node.key)
            self._adopt(node, slots[start:end], owns_window=start >= window_len)
            start = end
        node = path[-1] if path else self.root
        for stop in (min(max(window_len, start), len(tokens)), len(tokens)):
            if stop > start:
                node = self._append(node, tokens[start:stop], slots[start:stop], namespace, tombstone=stop <= window_len)
                path.append(node)
                start = stop
        return Match(node, _slots_of(path))

    def lock(self, node: RadixNode) -> Lock:
        """Protect the path down to node; its last `window` tokens keep their window slots too."""
        path = node.path()
        for part in path:
            self._hold(part)
        if self.window is None:
            return Lock(node, 0)
        end = sum(len(part.key) for part in path)
        start, window_start = 0, end
        for part in path:
            if start + len(part.key) > end - self.window:
                part.window_lock += 1
                window_start = min(window_start, start)
            start += len(part.key)
        return Lock(node, window_start)

    def extend_lock(self, lock: Lock, node: RadixNode) -> Lock:
        """Move a lock down to a node below it: as locking the node and undoing the lock, for the price of the nodes between."""
        if self.window is not None:
            moved = self.lock(node)
            self.unlock(lock)
            return moved
        part = node
        while part is not lock.node:
            self._hold(part)
            assert part.parent is not None, "a lock is extended to a node below it"
            part = part.parent
        return Lock(node, 0)

    def unlock(self, lock: Lock) -> None:
        """Undo a lock. Splits since then do not matter: a part belongs to the lock by its place in the sequence."""
        start = 0
        for part in lock.node.path():
            if part.lock == 0:
                raise ServingError(f"node {part.serial} was unlocked more often than locked")
            part.lock -= 1
            if self.window is not None:
                part.window_lock -= start >= lock.window_start
                start += len(part.key)
            if part.lock == 0:
                size = len(part.device_slots)
                self.evictable += size
                self.protected -= size
                self._leaves.offer(part)

    def _hold(self, part: RadixNode) -> None:
        if part.lock == 0:
            size = len(part.device_slots)
            self.evictable -= size
            self.protected += size
        part.lock += 1

    def next_victim(self) -> RadixNode | None:
        """The node that eviction takes next, or None when everything is in use."""
        return self._leaves.pop()

    def drop(self, node: RadixNode) -> Int64Array:
        """Free the device slots of an unlocked leaf and forget the node; children on the host go with it. Returns the slots."""
        slots = self.leave_device(node)
        self.remove(node)
        return slots

    def remove(self, node: RadixNode) -> None:
        """Forget a node that holds nothing on the device."""
        assert node.parent is not None, "the root is never removed"
        assert node.slots is None, "device slots are freed first"
        del node.parent.children[self._edge(node)]
        self._leaves.offer(node.parent)

    def leave_device(self, node: RadixNode) -> Int64Array:
        """Free the device slots of an unlocked leaf but keep the node, whose KV must lie on the host. Returns the slots."""
        if node.lock or not node.is_device_leaf():
            raise ServingError(f"node {node.serial} must not be evicted: {node.lock} requests lock it, or children are on the device")
        slots = node.device_slots
        self.pool.release_slots(slots)
        self.evictable -= len(slots)
        node.slots = None
        assert node.parent is not None, "the root holds no slots"
        self._leaves.offer(node.parent)
        return slots

    def enter_device(self, node: RadixNode, slots: Int64Array) -> None:
        """Give a host-only node device slots int64 [len(key)]; it is evictable until it is locked. A window needs its slots mapped."""
        node.slots = slots
        if isinstance(self.pool, WindowedSlotPool):
            node.tombstone = not self.pool.full_to_swa[slots[0]]
        if node.lock:
            self.protected += len(slots)
        else:
            self.evictable += len(slots)
            self._leaves.offer(node)

    def evict_window(self, pages: int) -> list[Int64Array]:
        """Give back window slots of unlocked windows until `pages` pages are free; returns the slots that lost theirs, by node.

        An inner node becomes a tombstone; a leaf without window slots could never be matched again, so it is given up.
        """
        pool = self.pool
        assert isinstance(pool, WindowedSlotPool), "window eviction needs a window pool"
        candidates = [node for node in self.nodes() if not node.window_lock and not node.tombstone and node.slots is not None]
        lost = []
        for node in sorted(candidates, key=lambda node: (node.last_used, node.serial)):
            if pool.window_pool.free_pages >= pages:
                break
            if node.slots is None:
                continue
            lost.append(pool.release_window(node.slots))
            node.tombstone = True
            while node.parent is not None and node.tombstone and not node.children and node.lock == 0:
                parent = node.parent
                self.give_up(node)
                node = parent
        return lost

    def walk(self, *, resident_only: bool = False) -> SweepEntries:
        """Every device slot the tree holds, parents first, as the sweep verifies them; resident_only leaves tombstones out."""
        slots, positions, prev_slots = [EMPTY], [EMPTY], [EMPTY]
        ends: dict[int, tuple[int, int]] = {self.root.serial: (0, layout.CHAIN_HEAD)}
        for node in self.root.subtree():
            if node.parent is None or node.slots is None:
                continue
            start, before = ends[node.parent.serial]
            ends[node.serial] = (start + len(node.slots), int(node.slots[-1]))
            if resident_only and node.tombstone:
                continue
            slots.append(node.slots)
            positions.append(np.arange(start, start + len(node.slots)))
            prev_slots.append(np.concatenate([[before], node.slots[:-1]]))
        return SweepEntries(np.concatenate(slots), np.concatenate(positions), np.concatenate(prev_slots))

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root."""
        return (node for node in self.root.subtree() if node.parent is not None)

    def _edge(self, node: RadixNode) -> tuple[int, bytes]:
        return node.namespace, node.text[: self.pool.page_size * node.key.itemsize]

    def _walk(self, tokens: TokenKeys, namespace: int, cut: int = 0) -> list[RadixNode]:
        """Nodes of the longest common prefix, touched; the last one and the one across `cut` are split to fit."""
        self._clock += 1
        node, path, start = self.root, [], 0
        text, item = tokens.tobytes(), tokens.itemsize
        edge = self.pool.page_size * item
        while start < len(tokens):
            child = node.children.get((namespace, text[start * item : start * item + edge]))
            if child is None:
                break
            # Whole nodes are the rule, and bytes tell at once.
            whole = text.startswith(child.text, start * item)
            shared = len(child.key) if whole else common_prefix(child.key, tokens[start:], self.pool.page_size)
            if start < cut < start + shared:
                shared = cut - start
            partial = shared < len(child.key)
            if partial:
                child = self._split(child, shared)
            child.last_used = self._clock
            path.append(child)
            node, start = child, start + shared
            if partial and start != cut:
                break
        return path

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cut a node after `length` tokens; the new upper half is returned and shares the locks."""
        assert node.parent is not None, "the root is never split"
        self._serial += 1
        upper = RadixNode(
            serial=self._serial,
            key=node.key[:length],
            slots=None if node.slots is None else node.slots[:length],
            parent=node.parent,
            namespace=node.namespace,
            host=None if node.host is None else node.host[:length],
            host_window=node.host_window,
            lock=node.lock,
            window_lock=node.window_lock,
            tombstone=node.tombstone,
            last_used=node.last_used,
        )
        node.parent.children[self._edge(upper)] = upper
        node.key, node.text, node.parent = node.key[length:], node.text[length * node.key.itemsize :], upper
        node.slots = None if node.slots is None else node.slots[length:]
        node.host = None if node.host is None else node.host[length:]
        upper.children[self._edge(node)] = node
        return upper

    def _append(self, parent: RadixNode, key: TokenKeys, slots: Int64Array, namespace: int, *, tombstone: bool) -> RadixNode:
        self._serial += 1
        node = RadixNode(
            serial=self._serial,
            key=key.copy(),
            slots=slots.copy(),
            parent=parent,
            namespace=namespace,
            tombstone=tombstone,
            last_used=self._clock,
        )
        parent.children[self._edge(node)] = node
        self.evictable += len(slots)
        self._leaves.offer(node)
        return node

    def _adopt(self, node: RadixNode, slots: Int64Array, *, owns_window: bool) -> None:
        """Fill what the tree lacks from a request's own slots: device slots of a host-only node, window slots of a tombstone."""
        if node.slots is None:
            self.enter_device(node, slots.copy())
        elif node.tombstone and owns_window and slots[0] != node.slots[0] and isinstance(self.pool, WindowedSlotPool):
            self.pool.move_window(slots, node.slots)
            node.tombstone = False


def _slots_of(path: list[RadixNode]) -> Int64Array:
    """Device slots of a path, int64 [tokens]; nobody writes to them."""
    if len(path) == 1:
        return path[0].device_slots
    return np.concatenate([node.device_slots for node in path]) if path else EMPTY


def _usable(path: list[RadixNode], window: int) -> int:
    """How many nodes of a path may be matched: window KV of the last `window` tokens before the end must exist."""
    usable, live, whole = 0, 0, True
    for depth, node in enumerate(path, start=1):
        live = live + len(node.key) if node.has_window() else 0
        whole = whole and node.has_window()
        if whole or live >= window:
            usable = depth
    return usable
