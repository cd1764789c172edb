"""The fair ring: quiet tags keep their rows however loud the others are, and loud tags keep a uniform sample."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.fair_ring import FairRing
from kvcanary.serving.pool import Int64Array


def rows(tag: int, slots: range) -> Int64Array:
    found = np.zeros((len(slots), 8), dtype=np.int64)
    found[:, 0], found[:, 1] = tag, list(slots)
    return found


def test_below_the_capacity_every_row_is_kept() -> None:
    ring = FairRing(40)
    ring.add(rows(2, range(25)))
    ring.add(rows(0, range(15)))
    assert ring.rows()[:, 0].tolist() == [0] * 15 + [2] * 25
    assert ring.seen == {2: 25, 0: 15}


def test_a_quiet_tag_keeps_all_its_rows_after_the_ring_is_full() -> None:
    ring = FairRing(24)
    ring.add(rows(0, range(5000)))
    ring.add(rows(2, range(300)))
    ring.add(rows(4, range(3)))
    tags, counts = np.unique(ring.rows()[:, 0], return_counts=True)
    # 3 of 24 go to the sweep's rows; the two loud tags share the rest.
    assert dict(zip(tags.tolist(), counts.tolist(), strict=True)) == {0: 10, 2: 11, 4: 3}
    assert ring.seen == {0: 5000, 2: 300, 4: 3}


def test_the_sample_is_uniform_over_time() -> None:
    ring = FairRing(1000, seed=3)
    for start in range(0, 20_000, 100):
        ring.add(rows(1, range(start, start + 100)))
    slots = ring.rows()[:, 1]
    assert len(set(slots.tolist())) == 1000
    # Each quarter of the time gets about 250 of 1000; six standard deviations are 82.
    quarters = np.histogram(slots, bins=4, range=(0, 20_000))[0]
    assert (abs(quarters - 250) < 82).all()


def test_a_capacity_below_one_row_per_tag_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 12 for a fair ring, one row per launch tag, got 11"):
        FairRing(11)
