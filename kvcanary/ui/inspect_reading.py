"""Reading a log beside the page: a thread with progress and stop, and a follower that is asked again twice a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.log_stream import Progress, Stop

Source = Callable[[], BinaryIO]
Work = Callable[[Progress, Stop], Inspected]
# Building the answer of a long log takes a while; it is built anew after several times as long.
_REST = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What the page shows: the log and where its lines can be read again. name: in the address, '' for an upload."""

    inspected: Inspected
    sources: dict[str, Source]
    label: str
    name: str = ""


class Reading:
    """One reading in a thread of its own; the page looks at it until it is done."""

    def __init__(self, label: str, work: Work) -> None:
        self.label = label
        self.done_bytes, self.total_bytes = 0, 0
        self._stopped = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvcanary-inspect")
        self._future: Future[Inspected] = self._pool.submit(work, self._progress, lambda: self._stopped)
        self._pool.shutdown(wait=False)

    def _progress(self, done: int, total: int) -> None:
        self.done_bytes, self.total_bytes = done, total

    @property
    def finished(self) -> bool:
        """Whether there is a result, or a reason why there is none."""
        return self._future.done()

    @property
    def share(self) -> float:
        """How much of the bytes was read, from 0 to 1."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0

    def stop(self) -> None:
        """End after the block that is being read; what was read until then is the result."""
        self._stopped = True

    def wait(self, seconds: float) -> None:
        """Wait for a short log, so that it needs no progress bar."""
        until = time.monotonic() + seconds
        while not self.finished and time.monotonic() < until:
            time.sleep(0.01)

    def result(self) -> Inspected:
        """The log; raises what ended the reading."""
        return self._future.result()


@dataclass(slots=True, eq=False)
class Following:
    """A log that grows. The answer is built anew when something was reported, and at most every few seconds for a long log."""

    label: str
    name: str
    follower: LogFollower
    sources: dict[str, Source]
    _seen: tuple[int, int] = (0, 0)
    _built_s: float = field(default=0.0)
    _cost_s: float = field(default=0.0)

    def poll(self) -> Inspected | None:
        """Read what is new; the answer when it is due, else None."""
        self.follower.poll()
        builder = self.follower.builder
        now = (len(builder.violations), builder.canary_lines)
        if now == self._seen or time.monotonic() - self._built_s < _REST * self._cost_s:
            return None
        started = time.monotonic()
        inspected = Inspected(self.follower.log())
        self._seen, self._built_s = now, time.monotonic()
        self._cost_s = self._built_s - started
        return inspected

    @property
    def size_bytes(self) -> int:
        """Bytes of the files as they are now."""
        return self.follower.size_bytes

    @property
    def behind_bytes(self) -> int:
        """Bytes that are there and not read yet."""
        return self.follower.behind_bytes

    def words(self) -> str:
        """What was read so far, in one line."""
        builder = self.follower.builder
        steps = [state.now.last_step for state in builder.states.values() if state.now.last_step is not None]
        step = f", last step {max(steps)}" if steps else ""
        waiting = "; waiting for the file" if self.follower.missing else ""
        return f"{len(builder.violations)} violations in {builder.lines} lines{step}{waiting}"
