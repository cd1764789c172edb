"""Locks that end with the process that holds them, however it ends: one per device, so that it runs one job at a time, and one per worker."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from filelock import FileLock, Timeout

LOCKS_FOLDER = "locks"
# A look at a lock keeps its taker out for a moment, and is no holder.
_LOOK_S, _AGAIN_S = 0.2, 0.005


def take(path: Path) -> FileLock | None:
    """The lock, to be kept as long as it is needed; None when somebody else has it. Its file stays behind when it is given back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=_LOOK_S, poll_interval=_AGAIN_S)
    except Timeout:
        return None
    return lock


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock; not by its file, which outlives its holder. Lookers share it, so that none takes another for a holder."""
    if not path.exists():
        return False
    if sys.platform != "win32":
        import fcntl

        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            # A file system without such locks, where filelock has another kind.
            pass
    lock = take(path)
    if lock is not None:
        lock.release()
    return lock is None


def device_lock(root: Path, device: str) -> Path:
    """The lock of a device of this host under a data folder, which other hosts may share."""
    return root / LOCKS_FOLDER / f"{_plain(platform.node())}.{_plain(device)}.lock"


def _plain(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z.-]", "_", name)[:100]
