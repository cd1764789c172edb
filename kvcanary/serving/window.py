"""The sliding-window sub-pool: a smaller pool behind a translation table, with slots that leave the window given back early."""

from __future__ import annotations

import numpy as np

from kvcanary.errors import ServingError
from kvcanary.serving.pool import Int64Array, SlotPool


class WindowedSlotPool(SlotPool):
    """A full pool whose slots also own a slot of the window pool until they leave the window.

    full_to_swa: int64 [num_slots + 1], window slot of each full slot, 0 where it was given back, -1 at the end so that an index of -1
    passes through. Both pools use the same page size, so a page maps to a page.
    """

    def __init__(self, slot_count: int, window_slot_count: int, page_size: int = 1) -> None:
        super().__init__(slot_count, page_size)
        self.window_pool = SlotPool(window_slot_count, page_size)
        self.full_to_swa: Int64Array = np.zeros(self.num_slots + 1, dtype=np.int64)
        self.full_to_swa[-1] = -1

    def alloc_pages(self, count: int) -> Int64Array:
        """Take count pages of both pools and map them; ServingError when either has too few."""
        if count > self.window_pool.free_pages:
            raise ServingError(
                f"{count} window pages wanted, {self.window_pool.free_pages} of {self.window_pool.num_pages} are free; "
                "evict first, or raise swa_pool_slot_count"
            )
        return super().alloc_pages(count)

    def skip_pages(self, count: int) -> None:
        """Take count pages that were peeked at, and map them to window pages."""
        pages = self.peek_pages(count)
        super().skip_pages(count)
        self.full_to_swa[self.slots_of(pages)] = self.window_pool.slots_of(self.window_pool.alloc_pages(count))

    def release_slots(self, slots: Int64Array) -> None:
        """Free full slots and the window slots they still own."""
        self.release_window(slots)
        super().release_slots(slots)

    def release_window(self, slots: Int64Array) -> Int64Array:
        """Give back the window slots of full slots in whole pages; returns the full slots that owned one."""
        owned = slots[self.full_to_swa[slots] > 0]
        self.window_pool.release_slots(self.full_to_swa[owned])
        self.full_to_swa[owned] = 0
        return owned

    def move_window(self, source: Int64Array, target: Int64Array) -> None:
        """Hand the window slots of source to the full slots target, which own none; KV and records stay where they are."""
        self.full_to_swa[target] = self.full_to_swa[source]
        self.full_to_swa[source] = 0
