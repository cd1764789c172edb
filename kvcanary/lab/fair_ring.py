"""A violation log that stays useful after it is full: a fair sample of every launch tag instead of the first rows of the loudest."""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.serving.pool import Int64Array


class FairRing:
    """Keeps at most capacity rows; every tag that reported has an equal share of them, filled by a uniform sample of its rows.

    A tag that needs less than its share leaves the rest to the others. seen counts all rows by tag.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        if capacity < layout.NUM_TAGS:
            raise ConfigError(f"ring_capacity must be at least {layout.NUM_TAGS} for a fair ring, one row per launch tag, got {capacity}")
        self.capacity = capacity
        self.seen: dict[int, int] = {}
        self._rng = np.random.default_rng([seed, 5])
        # A reservoir of the whole capacity per tag; shares are cut from it, since the number of loud tags is only known at the end.
        self._kept: dict[int, list[list[int]]] = {}

    def add(self, rows: Int64Array) -> None:
        """Offer rows int64 [n, 8] in the order of layout.RING_FIELDS."""
        for row in rows.tolist():
            tag = row[0]
            seen, kept = self.seen.get(tag, 0), self._kept.setdefault(tag, [])
            self.seen[tag] = seen + 1
            if len(kept) < self.capacity:
                kept.append(row)
            elif (place := int(self._rng.integers(seen + 1))) < self.capacity:
                kept[place] = row

    def rows(self) -> Int64Array:
        """The sample, int64 [at most capacity, 8], tags ascending."""
        shares = _shares({tag: len(kept) for tag, kept in self._kept.items()}, self.capacity)
        rows = [self._kept[tag][place] for tag, share in sorted(shares.items()) for place in self._choice(len(self._kept[tag]), share)]
        return np.array(rows, dtype=np.int64).reshape(-1, len(layout.RING_FIELDS))

    def _choice(self, count: int, share: int) -> list[int]:
        return sorted(np.random.default_rng([count, share]).choice(count, size=share, replace=False).tolist())


def _shares(counts: dict[int, int], capacity: int) -> dict[int, int]:
    """How many rows each tag may keep: equal parts, and what a quiet tag leaves goes to the loud ones."""
    shares: dict[int, int] = {}
    left = capacity
    for place, (tag, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        shares[tag] = min(count, left // (len(counts) - place))
        left -= shares[tag]
    return shares
