"""The memory side as one piece: pool, request table, prefix tree and host tier, and the moves between them."""

from __future__ import annotations

import numpy as np

from kvcanary.serving.events import Event, EventKind, KvMove
from kvcanary.serving.host_tier import HostTier
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int32Array, Int64Array, Ledger, RequestTable, SlotPool, TokenKeys, account
from kvcanary.serving.radix_cache import Lock, Match, RadixCache
from kvcanary.serving.request import Request
from kvcanary.serving.window import WindowedSlotPool


class KvMemory:
    """Owner of all slots. Every method leaves each slot in exactly one hand; `ledger` proves it."""

    def __init__(self, options: ServingOptions) -> None:
        self.options = options
        pool_sizes = options.pool_slot_count, options.page_size
        self.pool: SlotPool
        if options.swa_pool_slot_count is None:
            self.pool = SlotPool(*pool_sizes)
        else:
            self.pool = WindowedSlotPool(options.pool_slot_count, options.swa_pool_slot_count, options.page_size)
        # Drafts and an overlapped step may write past the end of a request.
        width = options.max_seq_len_per_req + options.tokens_per_decode + 1
        self.table = RequestTable(options.req_to_token_pool_size, -(-width // options.page_size) * options.page_size)
        self.tree = RadixCache(self.pool, options.sliding_window) if options.radix_cache else None
        self.host = HostTier(self.tree, options.host_slot_count, options.page_size) if self.tree and options.host_slot_count else None
        self._namespaces = np.zeros(options.req_to_token_pool_size + 1, dtype=np.int64)
        self._locks: dict[int, Lock] = {}
        self._events: list[Event] = []

    def log(self, event: Event) -> None:
        """Add an event to those of the next step."""
        if self.host is not None:
            self._drain_host()
        self._events.append(event)

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call."""
        if self.host is not None:
            self._drain_host()
        if not self._events:
            return ()
        events, self._events = tuple(self._events), []
        return events

    def take_moves(self) -> tuple[KvMove, ...]:
        """KV moves of the host tier since the last call."""
        if self.host is None:
            return ()
        moves, self.host.moves = tuple(self.host.moves), []
        return moves

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.pool.page_size)

    def may_fit(self, pages: int) -> bool:
        """Whether free and evictable pages of the full pool suffice; the window pool is only known after trying."""
        evictable = self.tree.evictable // self.options.page_size if self.tree else 0
        return self.pool.free_pages + evictable >= pages

    def make_room(self, pages: int) -> bool:
        """Evict until `pages` pages are free in every pool; False when too much is in use. Locked nodes are never touched."""
        while self.pool.free_pages < pages:
            if not self.evict_one():
                return False
        if not isinstance(self.pool, WindowedSlotPool):
            return True
        if self.tree and self.pool.window_pool.free_pages < pages:
            for slots in self.tree.evict_window(pages):
                self.log(Event(EventKind.WINDOW_EVICT, count=len(slots), slots=slots))
        return self.pool.window_pool.free_pages >= pages

    def evict_one(self) -> bool:
        """Evict the least recently used unlocked leaf; False when there is none."""
        node = self.tree.next_victim() if self.tree else None
        if node is None or self.tree is None:
            return False
        slots = self.host.push_out(node) if self.host else self.tree.drop(node)
        self.log(Event(EventKind.EVICT, count=len(slots), slots=slots))
        return True

    def match(self, request: Request) -> Match | None:
        """The longest cached prefix of a request that leaves one token to compute; None without a tree."""
        if self.tree is None:
            return None
        return self.tree.match(self._keys(request.token_ids, request.known_len)[: request.known_len - 1], request.namespace)

    def _keys(self, token_ids: Int32Array, length: int) -> TokenKeys:
        """What the tree compares of the leading tokens; with a draft pool pairs, since a draft slot depends on the next token too."""
        if not self.options.draft_pool:
            return token_ids[:length]
        left = token_ids[: length - 1].astype(np.int64)
        return (left << 32) | token_ids[1:length]

    def admit(self, rid: int, token_ids: Int32Array, known_len: int, namespace: int, match: Match | None) -> int:
        """Take a row for a request whose prefix is a locked match (or None); returns the row."""
        row = self.table.take(rid, token_ids, known_len)
        self._namespaces[row] = namespace
        if match is not None and self.tree is not None:
            length = len(match.slots)
            self.table.req_to_token[row, :length] = match.slots
            self.table.kv_lens[row] = self.table.alloc_lens[row] = self.table.cached_lens[row] = self.table.window_lens[row] = length
            self._locks[row] = self.tree.lock(match.node)
        return row

    def grow(self, rows: Int64Array, lengths: Int64Array) -> None:
        """Give rows int64 [n] slots for positions up to lengths int64 [n]; make room first."""
        page_size, table = self.options.page_size, self.table
        first = table.alloc_lens[rows] // page_size
        wanted = np.maximum(-(-lengths // page_size) - first, 0)
        pages = self.pool.alloc_pages(int(wanted.sum()))
        owner, page_index = _spread(rows, first, wanted)
        if page_size == 1:
            table.req_to_token[owner, page_index] = pages
        else:
            inside = np.arange(page_size)
            table.req_to_token[owner[:, None], page_index[:, None] * page_size + inside] = pages[:, None] * page_size + inside
        table.alloc_lens[rows] += wanted * page_size

    def grow_row(self, row: int, length: int) -> None:
        """Give one row slots for positions up to length; make room first."""
        table = self.table
        first = int(table.alloc_lens[row])
        slots = self.pool.slots_of(self.pool.alloc_pages(self.pages_for(length - first)))
        table.req_to_token[row, first : first + len(slots)] = slots
        table.alloc_lens[row] = first + len(slots)

    def shrink(self, rows: Int64Array) -> Int64Array:
        """Free whole pages behind the committed tokens of rows (rejected drafts); returns the freed slots."""
        page_size, table = self.options.page_size, self.table
        first = -(-table.kv_lens[rows] // page_size)
        surplus = table.alloc_lens[rows] // page_size - first
        owner, page_index = _spread(rows, first, surplus)
        slots = self._cells(owner, page_index)
        self.pool.release_slots(slots)
        table.alloc_lens[rows] -= surplus * page_size
        return slots

    def leave_window(self, rows: Int64Array) -> Int64Array:
        """Give back window slots of rows' own positions that no later token attends to; returns the full slots that owned them."""
        pool, window = self.pool, self.options.sliding_window
        if window is None or not isinstance(pool, WindowedSlotPool):
            return np.zeros(0, dtype=np.int64)
        page_size, table = self.options.page_size, self.table
        first = np.maximum(table.window_lens[rows], table.cached_lens[rows]) // page_size
        outside = np.maximum((table.kv_lens[rows] - window) // page_size, first)
        owner, page_index = _spread(rows, first, outside - first)
        table.window_lens[rows] = outside * page_size
        return pool.release_window(self._cells(owner, page_index))

    def cache(self, row: int, length: int) -> None:
        """Hand the KV of the row's leading `length` tokens (whole pages of it) to the tree and use the tree's slots instead."""
        table, tree = self.table, self.tree
        usable = length - 1 if self.options.draft_pool else length
        aligned = usable // self.options.page_size * self.options.page_size
        cached = int(table.cached_lens[row])
        if tree is None or aligned <= cached:
            return
        slots = table.req_to_token[row, :aligned].astype(np.int64)
        # Below cached_len the tree itself knows which window slots are gone.
        window_len = int(table.window_lens[row]) if table.window_lens[row] > cached else 0
        keys = self._keys(table.token_ids[row], length)[:aligned]
        kept = tree.insert(keys, slots, int(self._namespaces[row]), window_len)
        differs = kept.slots[cached:] != slots[cached:]
        if np.count_nonzero(differs):
            duplicates = slots[cached:][differs]
            self.pool.release_slots(duplicates)
            table.req_to_token[row, cached:aligned] = kept.slots[cached:]
            self.log(Event(EventKind.DEDUP, int(table.rids[row]), count=len(duplicates), slots=duplicates))
        before = self._locks.get(row)
        self._locks[row] = tree.lock(kept.node) if before is None else tree.extend_lock(before, kept.node)
        table.cached_lens[row] = aligned

    def release(self, row: int) -> None:
        """Free what the row owns, unlock its prefix and return the row."""
        self.pool.release_slots(self.table.owned_slots(row))
        lock = self._locks.pop(row, None)
        if lock is not None and self.tree is not None:
            self.tree.unlock(lock)
        self.table.give_back(row)

    def ledger(self, held_rows: Int64Array, in_flight: list[Int64Array]) -> Ledger:
        """The conservation law over every pool; ServingError with the numbers when a slot is lost or in two hands.

        held_rows: rows in use whose own slots are not in flight. Returns the ledger of the full pool.
        """
        held = [self.table.owned_slots(int(row)) for row in held_rows]
        cached = [node.device_slots for node in self.tree.nodes()] if self.tree else []
        hands = {"held": held, "cached": cached, "in_flight": in_flight}
        if isinstance(self.pool, WindowedSlotPool):
            mapping = self.pool.full_to_swa
            mapped = {hand: [mapping[slots][mapping[slots] > 0] for slots in found] for hand, found in hands.items()}
            account(self.pool.window_pool, mapped, name="window pool")
        if self.host is not None:
            account(self.host.pool, {"cached": self.host.cached_slots()}, name="host pool")
        return account(self.pool, hands)

    def _cells(self, rows: Int64Array, page_index: Int64Array) -> Int64Array:
        """Slots of table pages, int64 [n * page_size]."""
        inside = np.arange(self.options.page_size)
        cells: Int32Array = self.table.req_to_token[rows[:, None], page_index[:, None] * self.options.page_size + inside]
        return cells.ravel().astype(np.int64)

    def _drain_host(self) -> None:
        if self.host is not None and self.host.events:
            self._events.extend(self.host.events)
            self.host.events = []


def _spread(rows: Int64Array, first: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(row, index) for each of counts[i] indices from first[i] on, flat."""
    total = int(counts.sum())
    starts = np.cumsum(counts) - counts
    index = np.arange(total) - np.repeat(starts - first, counts)
    return np.repeat(rows, counts), index
