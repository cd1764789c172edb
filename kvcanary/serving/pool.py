"""Token-to-KV slots and the request table: who may use which slot.

Slots are handed out in whole pages. Page 0 is the padding page and belongs to nobody, so the first usable slot is page_size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcanary import layout
from kvcanary.errors import ServingError

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
# What a prefix tree compares: token ids, or pairs of them.
TokenKeys = Int32Array | Int64Array
EMPTY: Int64Array = np.zeros(0, dtype=np.int64)


class SlotPool:
    """Free list of pages, first freed first reused, as SGLang's allocator keeps it.

    slot_count excludes the padding page; num_slots, the rows of a KV or canary buffer, includes it. A page that is freed twice is
    not noticed here, as in the engine; `account` finds it.
    """

    def __init__(self, slot_count: int, page_size: int = 1) -> None:
        self.slot_count, self.page_size = slot_count, page_size
        self.num_slots = slot_count + page_size
        self.num_pages = slot_count // page_size
        # One entry more than there are pages lets one double free go unnoticed instead of overrunning the ring.
        self._ring: Int64Array = np.zeros(2 * self.num_pages, dtype=np.int64)
        self._ring[: self.num_pages] = np.arange(1, self.num_pages + 1)
        self._head, self._count = 0, self.num_pages

    @property
    def free_pages(self) -> int:
        """Pages on the free list."""
        return self._count

    def alloc_pages(self, count: int) -> Int64Array:
        """Take count pages, int64 [count]; ServingError when fewer are free."""
        if count > self._count:
            raise ServingError(
                f"{count} pages wanted, {self._count} of {self.num_pages} are free; evict or retract first, or raise pool_slot_count"
            )
        pages = self.peek_pages(count)
        self.skip_pages(count)
        return pages

    def peek_pages(self, count: int) -> Int64Array:
        """The pages that alloc_pages would hand out next, int64 [count]; nothing is taken."""
        end = self._head + count
        if end <= len(self._ring):
            return self._ring[self._head : end].copy()
        return np.concatenate([self._ring[self._head :], self._ring[: end - len(self._ring)]])

    def skip_pages(self, count: int) -> None:
        """Take count pages that were peeked at before."""
        self._head = (self._head + count) % len(self._ring)
        self._count -= count

    def release_pages(self, pages: Int64Array) -> None:
        """Put pages at the end of the free list."""
        if self._count + len(pages) > len(self._ring):
            raise ServingError(f"{self._count + len(pages)} free pages in a pool of {self.num_pages}; slots were freed more than once")
        start = (self._head + self._count) % len(self._ring)
        fitting = len(self._ring) - start
        if len(pages) <= fitting:
            self._ring[start : start + len(pages)] = pages
        else:
            self._ring[start:] = pages[:fitting]
            self._ring[: len(pages) - fitting] = pages[fitting:]
        self._count += len(pages)

    def release_slots(self, slots: Int64Array) -> None:
        """Put the pages of slots on the free list; slots come in whole pages, ascending inside a page."""
        self.release_pages(slots if self.page_size == 1 else slots[:: self.page_size] // self.page_size)

    def free_list(self) -> Int64Array:
        """Free pages in the order in which they will be handed out, a copy."""
        return self.peek_pages(self._count)

    def slots_of(self, pages: Int64Array) -> Int64Array:
        """All slots of pages, in order, int64 [len(pages) * page_size]."""
        if self.page_size == 1:
            return pages
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()


class RequestTable:
    """Rows of running requests. Row 0 is padding.

    req_to_token, token_ids: int32 [rows + 1, width], slot and token id by position; token_ids also holds the output still to come, which
    only the simulation knows. Per row, int64 [rows + 1]: kv_lens = tokens whose KV is committed, alloc_lens = positions that own a
    slot, cached_lens = leading positions whose slots belong to the prefix tree, known_lens = tokens the engine knows (prompt and
    output so far), total_lens = prompt plus whole output, window_lens = leading positions without a window slot.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.req_to_token: Int32Array = np.zeros((rows + 1, width), dtype=np.int32)
        self.token_ids: Int32Array = np.zeros((rows + 1, width), dtype=np.int32)
        self.rids: Int64Array = np.full(rows + 1, -1, dtype=np.int64)
        self.kv_lens, self.alloc_lens, self.cached_lens, self.known_lens, self.total_lens, self.window_lens = (
            np.zeros(rows + 1, dtype=np.int64) for _ in range(6)
        )
        self._free = list(range(rows, layout.PADDING_ROW, -1))

    @property
    def free_rows(self) -> int:
        """Rows nobody uses."""
        return len(self._free)

    def take(self, rid: int, token_ids: Int32Array, known_len: int) -> int:
        """Give a row to request rid. Old cells stay: nothing reads past alloc_lens, and the engine does not clear them either."""
        if not self._free:
            raise ServingError(f"all {self.rows} request rows are taken; raise req_to_token_pool_size")
        row = self._free.pop()
        self.rids[row] = rid
        self.token_ids[row, : len(token_ids)] = token_ids
        self.token_ids[row, len(token_ids) :] = 0
        self.kv_lens[row] = self.alloc_lens[row] = self.cached_lens[row] = self.window_lens[row] = 0
        self.known_lens[row], self.total_lens[row] = known_len, len(token_ids)
        return row

    def give_back(self, row: int) -> None:
        """Return a row; its slots must have been freed before."""
        self.rids[row] = -1
        self.kv_lens[row] = self.alloc_lens[row] = self.cached_lens[row] = self.known_lens[row] = 0
        self.total_lens[row] = self.window_lens[row] = 0
        self._free.append(row)

    def owned_slots(self, row: int) -> Int64Array:
        """Slots that only this row holds: allocated and not of the prefix tree."""
        return self.req_to_token[row, self.cached_lens[row] : self.alloc_lens[row]].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Slots by hand at one moment. total is the sum of the hands."""

    free: int
    held: int
    cached: int
    in_flight: int

    @property
    def total(self) -> int:
        """Sum of all hands."""
        return self.free + self.held + self.cached + self.in_flight


def account(pool: SlotPool, hands: Mapping[str, Sequence[Int64Array]], *, name: str = "pool") -> Ledger:
    """Check that every page of the pool is in exactly one hand; ServingError with the numbers otherwise.

    hands: 'held', 'cached' and 'in_flight', each a list of slot arrays in whole pages; the free list is the pool's own.
    """
    pages = {"free": pool.free_list()}
    for hand in ("held", "cached", "in_flight"):
        slots = np.concatenate([EMPTY, *hands.get(hand, ())])
        pages[hand] = slots[:: pool.page_size] // pool.page_size
    ledger = Ledger(**{hand: len(found) * pool.page_size for hand, found in pages.items()})
    everything = np.concatenate(list(pages.values()))
    numbers = (
        f"{name}: {ledger.free} free + {ledger.held} held + {ledger.cached} cached + {ledger.in_flight} in flight = {ledger.total} of "
        f"{pool.slot_count} slots"
    )
    outside = everything[(everything < 1) | (everything > pool.num_pages)]
    if outside.size:
        raise ServingError(f"{numbers}; slot {int(outside[0]) * pool.page_size} is not a slot of the pool")
    counts = np.bincount(everything, minlength=pool.num_pages + 1)[1:]
    doubled, missing = np.flatnonzero(counts > 1) + 1, np.flatnonzero(counts == 0) + 1
    if doubled.size:
        page = int(doubled[0])
        owners = [hand for hand, found in pages.items() for _ in range(int((found == page).sum()))]
        raise ServingError(f"{numbers}; slot {page * pool.page_size} is in {len(owners)} hands: {', '.join(owners)}")
    if missing.size:
        first = int(missing[0]) * pool.page_size
        raise ServingError(f"{numbers}; {missing.size * pool.page_size} slots are in no hand, the first is {first}")
    return ledger
