"""How far a sweep is, for whoever looks at the data folder that it was called with: a file that its call keeps, and the wish to stop it.

The call holds a lock as long as it lives, so that one that was killed is told from one that goes on. What has run is in the store either way.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvcanary.errors import StoreError
from kvcanary.lab import leases
from kvcanary.lab.records import RunState, Verdict
from kvcanary.lab.sweep import Sweep, sweep_label
from kvcanary.units import format_count

SWEEPS_FOLDER = "sweeps"
# A sweep that is over stays in sight for so long.
SHOWN_S = 3600.0
_LOOK_S = 0.3
_COUNTS = ("points", "found", "done", "failed", "stopped", "failed_verdicts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """Points of one call of a sweep: found finished by an earlier call, done by this one, stopped with the sweep, failed otherwise.

    failed_verdicts counts those of the first two whose verdict is fail. ended_s is None while the call goes on, and stays so when it is
    killed; alive tells the two apart.
    """

    id: str
    name: str
    points: int
    found: int = 0
    done: int = 0
    failed: int = 0
    stopped: int = 0
    failed_verdicts: int = 0
    started_s: float = 0.0
    ended_s: float | None = None
    alive: bool = False
    stopping: bool = False

    @property
    def label(self) -> str:
        """The label of its runs in the store."""
        return sweep_label(self.name)

    @property
    def left(self) -> int:
        """Points that have no outcome yet."""
        return self.points - self.found - self.done - self.failed - self.stopped

    @property
    def sentence(self) -> str:
        """How far it is, in words."""
        done = f"{format_count(self.found + self.done)} of {format_count(self.points)} points done"
        parts = [done + (f" ({format_count(self.found)} by an earlier call)" if self.found else "")]
        parts += [
            f"{format_count(count)} {word}"
            for count, word in ((self.failed, "failed"), (self.stopped, "stopped"), (self.left, "left"))
            if count
        ]
        verdicts = f" {format_count(self.failed_verdicts)} with the verdict fail." if self.failed_verdicts else ""
        text = f"Sweep {self.name}: {', '.join(parts)}.{verdicts}"
        if self.alive or self.ended_s is not None:
            return text
        return f"{text} Its call was killed; the same call again runs what is missing."


class SweepReport:
    """The file of one call. `stop` is set when somebody wants the sweep to end."""

    def __init__(self, file: Path, sweep: Sweep) -> None:
        self.stop = threading.Event()
        self._file = file
        self._now = SweepProgress(id=file.stem, name=sweep.name, points=len(sweep.points), started_s=time.time())
        self._write()

    def add(self, state: str, verdict: str, *, found: bool) -> None:
        """One point has this outcome."""
        count = "found" if found else state if state in (RunState.DONE, RunState.STOPPED) else "failed"
        verdicts = self._now.failed_verdicts + (verdict == Verdict.FAIL)
        self._now = replace(self._now, **{count: getattr(self._now, count) + 1, "failed_verdicts": verdicts})
        self._write()

    def end(self) -> None:
        """The call is over."""
        self._now = replace(self._now, ended_s=time.time())
        self._write()

    def watch(self, over: threading.Event) -> None:
        """Look for the wish to stop until the call is over."""
        wish = self._file.with_suffix(".stop")
        while not over.wait(_LOOK_S):
            if wish.exists():
                self.stop.set()
                return

    def _write(self) -> None:
        kept = {name: getattr(self._now, name) for name in ("name", *_COUNTS, "started_s", "ended_s")}
        fresh = self._file.with_suffix(f".{os.getpid()}")
        # A full disk ends points, each with its sentence; the sweep itself goes on without telling how far it is.
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(kept), encoding="utf-8")
            os.replace(fresh, self._file)


@contextmanager
def reporting(home: Path, sweep: Sweep) -> Iterator[SweepReport]:
    """Report a call of a sweep under a data folder. What earlier calls of the same sweep left behind is taken away. StoreError: not writable."""
    file = home / SWEEPS_FOLDER / f"{sweep.name}-{secrets.token_hex(4)}.json"
    try:
        # Before the file is there to be seen, so that nobody takes the call for a killed one.
        lease = leases.take(file.with_suffix(".lock"))
    except OSError as error:
        raise StoreError(f"data folder {home} cannot be written: {error.strerror}; choose another one with KVCANARY_HOME") from error
    for earlier in all_sweeps(home):
        if earlier.name == sweep.name and not earlier.alive:
            put_away(home, earlier.id)
    report, over = SweepReport(file, sweep), threading.Event()
    watcher = threading.Thread(target=report.watch, args=(over,), name="kvcanary-sweep-stop", daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        over.set()
        watcher.join()
        report.end()
        if lease is not None:
            lease.release()


def all_sweeps(home: Path) -> list[SweepProgress]:
    """Every call that has a file, newest first; a file that cannot be read is passed over, as it holds nothing that is not in the store."""
    found = []
    for path in (home / SWEEPS_FOLDER).glob("*.json"):
        try:
            # Before the file is read: a call writes its end and then lets go.
            held = leases.is_held(path.with_suffix(".lock"))
            values = json.loads(path.read_text(encoding="utf-8"))
            ended_s = None if values["ended_s"] is None else float(values["ended_s"])
            found.append(
                SweepProgress(
                    id=path.stem, name=str(values["name"]), **{name: int(values[name]) for name in _COUNTS},
                    started_s=float(values["started_s"]), ended_s=ended_s,
                    alive=ended_s is None and held, stopping=path.with_suffix(".stop").exists(),
                )
            )  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return sorted(found, key=lambda sweep: sweep.started_s, reverse=True)


def shown_sweeps(home: Path) -> list[SweepProgress]:
    """Those that go on, that were killed, or that ended within the last hour."""
    since = time.time() - SHOWN_S
    return [sweep for sweep in all_sweeps(home) if sweep.ended_s is None or sweep.ended_s >= since]


def ask_to_stop(home: Path, sweep_id: str) -> None:
    """Have a call end: the points that run are stopped, the others do not begin. StoreError when there is none of that id that goes on."""
    if sweep_id not in {sweep.id for sweep in all_sweeps(home) if sweep.alive}:
        raise StoreError(f"no sweep {sweep_id[:80]!r} goes on under {home}")
    (home / SWEEPS_FOLDER / f"{sweep_id}.stop").touch()


def put_away(home: Path, sweep_id: str) -> None:
    """Forget a call that is over; its runs stay."""
    if sweep_id in {sweep.id for sweep in all_sweeps(home) if not sweep.alive}:
        for ending in (".json", ".lock", ".stop"):
            (home / SWEEPS_FOLDER / f"{sweep_id}{ending}").unlink(missing_ok=True)
