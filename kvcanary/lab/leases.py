"""Locks that end with the process that holds them, however it ends: one per device, so that it runs one job at a time, and one per worker."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from filelock import FileLock, Timeout

LOCKS_FOLDER = "locks"


def take(path: Path) -> FileLock | None:
    """The lock, to be kept as long as it is needed; None when somebody else has it. Its file stays behind when it is given back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock; not by its file, which outlives its holder."""
    lock = take(path)
    if lock is None:
        return True
    lock.release()
    return False


def device_lock(root: Path, device: str) -> Path:
    """The lock of a device of this host under a data folder, which other hosts may share."""
    return root / LOCKS_FOLDER / f"{_plain(platform.node())}.{_plain(device)}.lock"


def _plain(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z.-]", "_", name)[:100]
