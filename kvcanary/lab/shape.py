"""The size of a benchmark pool, known before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.layout import RealKvHashMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneShape:
    """Size of a scene. `requests` chains of `length` tokens in a pool of `num_slots` rows, page 0 padding; row_bytes of KV per slot.

    A request starts at a page, so the last page of each may hold fewer tokens. Raises ConfigError when the pool is too small.
    """

    num_slots: int
    requests: int
    length: int
    shuffled: bool = False
    page_size: int = 1
    row_bytes: int = 0
    hash_mode: RealKvHashMode = RealKvHashMode.NONE
    ring_capacity: int = layout.DEFAULT_RING_CAPACITY

    def __post_init__(self) -> None:
        if self.requests * self.pages_per_request > self.pages:
            raise ConfigError(
                f"{self.requests} requests of {self.length} tokens need {self.requests * self.pages_per_request} pages of "
                f"{self.page_size} slots, the pool has {self.pages}"
            )

    @property
    def first_slot(self) -> int:
        """Slots below it are the padding page."""
        return self.page_size

    @property
    def pages(self) -> int:
        """Whole pages that can hold tokens."""
        return self.num_slots // self.page_size - 1

    @property
    def pool_slot_count(self) -> int:
        """Slots that can hold tokens: the pool as its operator counts it, without the padding page."""
        return self.pages * self.page_size

    @property
    def pages_per_request(self) -> int:
        """Pages that a request occupies."""
        return -(-self.length // self.page_size)

    @property
    def used(self) -> int:
        """Slots that hold a token."""
        return self.requests * self.length


def scene_bytes(shape: SceneShape) -> int:
    """Peak memory that measuring a scene of this shape takes, in bytes: records, flags, KV rows, plan, tokens, table and bound."""
    hashed = shape.hash_mode is not RealKvHashMode.NONE
    buffers = 2 if hashed else 1
    per_slot = (buffers + 1) * layout.SLOT_BYTES + 1 + (shape.row_bytes if hashed else 0)
    per_token = 2 * 3 * 8 + 4 + 5 * 8
    return shape.num_slots * per_slot + shape.used * per_token + shape.ring_capacity * layout.RING_ROW_BYTES
