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
    assert set(found) == {"launch_s", "chain_step_s", "read_bytes_per_s", "copy_bytes_per_s", "hashes_per_s"}
    assert all(value > 0 for value in found.values())
    assert len(calls) == 3


def test_the_roofs_do_the_work_that_they_stand_for() -> None:
    running = layout.CHAIN_START
    for position in range(5):
        running = layout.mix3(running, position, position)
    assert int(bounds_numba.walk(5)) == running
    assert int(bounds_numba.hash_all(2, 4)) == layout.mix3(2, 2, 2) ^ layout.mix3(3, 3, 3)
    assert bounds_numba.read(np.arange(10), 2, 5) == 2 + 3 + 4
