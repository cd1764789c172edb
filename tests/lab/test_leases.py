"""Locks: who looks at one is neither taken for its holder nor keeps anybody from it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

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


def test_who_looks_is_not_taken_for_a_holder(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    path.touch()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not leases.is_held(path)


def test_a_look_keeps_nobody_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes it waits for the look to be over; much longer here, so that a busy machine is late for nothing."""
    monkeypatch.setattr(leases, "_LOOK_S", 20.0)
    path = tmp_path / "one.lock"
    path.touch()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        over = threading.Timer(0.05, fcntl.flock, (other, fcntl.LOCK_UN))
        over.start()
        lease = leases.take(path)
        over.join()
    assert lease is not None
    lease.release()
