"""The machine's limits: measured, of the right kind, and consistent with each other."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary import layout
from kvcanary.kernels.backends import get_backend
from kvcanary.lab import bounds_numba, limits
from kvcanary.lab.limits import measure_limits


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_STREAM_BYTES", 1 << 20), ("_CHAIN_TOKENS", 2000), ("_HASHES", 20_000)):
        monkeypatch.setattr(limits, name, value)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_every_limit_of_a_cpu_is_there_and_positive(backend: str) -> None:
    calls: list[None] = []
    found = measure_limits(get_backend(backend), "cpu", 3, lambda: calls.append(None))
    assert set(found) == {"verify_launch_s", "stamp_launch_s", "chain_step_s", "read_bytes_per_s", "copy_bytes_per_s", "hashes_per_s"}
    assert all(value > 0 for value in found.values())
    assert len(calls) == 3


def test_the_roofs_do_the_work_that_they_stand_for() -> None:
    running = layout.CHAIN_START
    for position in range(5):
        running = layout.mix3(running, position, position)
    assert int(bounds_numba.walk(5)) == running
    assert int(bounds_numba.hash_all(2, 4)) == layout.mix3(2, 2, 2) ^ layout.mix3(3, 3, 3)
    assert bounds_numba.read(np.arange(10), 2, 5) == 2 + 3 + 4


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_bounds_read_and_write_what_the_kernels_do(shuffled: bool, count: int) -> None:
    rng = np.random.default_rng(5)
    fields, words = rng.integers(1, 1 << 60, (200, 4)), rng.integers(1, 1 << 60, (200, 5))
    slots = rng.permutation(np.arange(1, 200)) if shuffled else np.arange(1, 200)
    previous, positions = np.roll(slots, 1), rng.integers(0, 1 << 40, 199)
    part = slice(7, 150)
    hashed = np.bitwise_xor.reduce(words[slots[part], :count], axis=None)
    compared = np.bitwise_xor.reduce(fields[slots[part], 1:], axis=None) ^ np.bitwise_xor.reduce(positions[part])
    chained = np.bitwise_xor.reduce(fields[previous[part], :3], axis=None)
    assert bounds_numba.gather(fields, slots, previous, positions, words, count, 7, 150) == compared ^ chained ^ hashed

    stored, tokens = np.zeros_like(fields), rng.integers(0, 1 << 40, 199)
    bounds_numba.scatter(stored, slots, tokens, positions, words, count, 7, 150)
    folded = np.bitwise_xor.reduce(words[slots[part], :count], axis=1)
    assert np.array_equal(stored[slots[part]], np.stack([tokens[part], positions[part], tokens[part], folded], axis=1))
    assert np.count_nonzero(stored.any(axis=1)) == 143
