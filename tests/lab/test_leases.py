"""Locks: who looks at one is neither taken for its holder nor keeps anybody from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvcanary.lab import leases


def test_a_lock_is_held_until_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "one.lock"
    assert not leases.is_held(path)
    assert not path.exists()
    held = leases.take(path)
    assert held is not None
    assert leases.is_held(path)
    assert leases.take(path) is None
    held.release()
    assert not leases.is_held(path)


@contextmanager
def looking(path: Path, lookers: int) -> Iterator[list[bool]]:
    over, seen = threading.Event(), list[bool]()

    def look() -> None:
        while not over.is_set():
            seen.append(leases.is_held(path))

    threads = [threading.Thread(target=look) for _ in range(lookers)]
    for thread in threads:
        thread.start()
    yield seen
    over.set()
    for thread in threads:
        thread.join()


def test_many_who_look_at_once_see_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    path.touch()
    with looking(path, 4) as seen:
        while len(seen) < 500:
            time.sleep(0.01)
    assert not any(seen)


def test_a_look_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    path.touch()
    with looking(path, 1):
        for _ in range(50):
            lease = leases.take(path)
            assert lease is not None
            lease.release()
