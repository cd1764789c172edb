"""A node of the prefix tree and the order in which nodes may be given up."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvcanary.serving.pool import EMPTY, Int64Array, TokenKeys


@dataclass(slots=True, eq=False)
class RadixNode:
    """One run of tokens. slots is None while the KV lives on the host only; host is None while no copy lies there.

    host_window: whether the host copy holds window KV too. lock counts requests that use the node, window_lock those whose window still
    covers it; tombstone means that its window slots were given back. last_used orders eviction; serial breaks ties so that equal runs give
    equal trees. text: the bytes of key, which compare faster than arrays do.
    """

    serial: int
    key: TokenKeys
    slots: Int64Array | None
    parent: RadixNode | None = field(repr=False)
    namespace: int = 0
    host: Int64Array | None = None
    host_window: bool = False
    children: dict[tuple[int, bytes], RadixNode] = field(default_factory=dict, repr=False)
    lock: int = 0
    window_lock: int = 0
    tombstone: bool = False
    last_used: int = 0
    text: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.text = self.key.tobytes()

    @property
    def device_slots(self) -> Int64Array:
        """Slots on the device, empty while host-only."""
        return EMPTY if self.slots is None else self.slots

    def has_window(self) -> bool:
        """Whether window KV of its tokens exists: on the device, or on the host while it lives there only."""
        return self.host_window if self.slots is None else not self.tombstone

    def is_device_leaf(self) -> bool:
        """Whether it holds device slots and no child does."""
        if self.slots is None:
            return False
        return not self.children or all(child.slots is None for child in self.children.values())

    def path(self) -> list[RadixNode]:
        """Nodes from below the root down to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def subtree(self) -> Iterator[RadixNode]:
        """This node and everything below, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


class LeastRecentlyUsed:
    """Heap of eviction candidates whose stale entries are sorted out when they come up."""

    def __init__(self, may_go: Callable[[RadixNode], bool]) -> None:
        self._may_go = may_go
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._listed: dict[int, int] = {}

    def offer(self, node: RadixNode) -> None:
        """List a node that may be given up now."""
        if self._may_go(node) and self._listed.get(node.serial) != node.last_used:
            self._listed[node.serial] = node.last_used
            heapq.heappush(self._heap, (node.last_used, node.serial, node))

    def pop(self) -> RadixNode | None:
        """The least recently used node that may go, or None."""
        while self._heap:
            last_used, serial, node = heapq.heappop(self._heap)
            if self._listed.get(serial) == last_used:
                del self._listed[serial]
            if not self._may_go(node):
                continue
            if node.last_used == last_used:
                return node
            self.offer(node)
        return None


def common_prefix(left: TokenKeys, right: TokenKeys, page_size: int) -> int:
    """Length of the equal leading run, in whole pages."""
    shortest = min(len(left), len(right))
    differs = left[:shortest] != right[:shortest]
    first = int(differs.argmax()) if shortest else 0
    equal = first if shortest and differs[first] else shortest
    return equal // page_size * page_size
