"""The size of a benchmark pool, known before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.layout import RealKvHashMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneShape:
    """Size of a scene. `requests` chains of `length` tokens in a pool of `num_slots` rows, slot 0 padding; row_bytes of KV per slot."""

    num_slots: int
    requests: int
    length: int
    shuffled: bool = False
    page_size: int = 1
    row_bytes: int = 0
    hash_mode: RealKvHashMode = RealKvHashMode.NONE
    ring_capacity: int = layout.DEFAULT_RING_CAPACITY

    def __post_init__(self) -> None:
        if self.requests * self.length > self.num_slots - self.first_slot:
            raise ConfigError(
                f"{self.requests} requests of {self.length} tokens need {self.requests * self.length} slots, "
                f"the pool has {self.num_slots - self.first_slot}"
            )

    @property
    def first_slot(self) -> int:
        """Slots below it are the padding page."""
        return self.page_size

    @property
    def used(self) -> int:
        """Slots that hold a token."""
        return self.requests * self.length


def scene_bytes(shape: SceneShape) -> int:
    """Memory that a Scene of this shape takes, in bytes: records, KV rows, plan, tokens and table."""
    per_token = 3 * 8 + 4 + 4 * 8
    return (
        shape.num_slots * (layout.SLOT_BYTES + shape.row_bytes + 1) + shape.used * per_token + shape.ring_capacity * layout.RING_ROW_BYTES
    )
