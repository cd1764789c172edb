"""Follow growing logs: what was appended since the last look, through rotation and truncation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

from kvcanary.analysis.canary_log import CanaryLog, LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.analysis.log_stream import BLOCK_BYTES, server_name

# A look ends after this many bytes of a file, so that a caller with a page or a metrics port stays responsive.
POLL_BYTES = 16 * BLOCK_BYTES
_SIGNATURE_BYTES = 256


class LogFollower:
    """Reads what is appended to logs; call poll() every second or so.

    A file that does not exist yet is waited for. A file replaced under its name (rotation) is read to its end first, then the new one
    from its start. A file that became shorter, or that begins with other bytes than before (copy and truncate), is read from its start.
    """

    def __init__(self, paths: Sequence[Path], *, from_end: bool = False, open_file: Callable[[Path], FileIO] | None = None) -> None:
        """open_file opens a path for reading, and raises OSError where that must not be or cannot be."""
        self.builder = LogBuilder()
        self._files = [_Followed(Path(path), self.builder, from_end, open_file or _open_plainly) for path in paths]

    def poll(self) -> int:
        """Read what is new; bytes read, 0 when the logs have not grown."""
        return sum(file.poll() for file in self._files)

    def log(self) -> CanaryLog:
        """Everything read so far."""
        return self.builder.build()

    @property
    def missing(self) -> list[Path]:
        """Files that are not there (yet)."""
        return [file.path for file in self._files if not file.is_open]

    @property
    def size_bytes(self) -> int:
        """Bytes of the open files as they are now."""
        return sum(file.progress()[1] for file in self._files)

    @property
    def behind_bytes(self) -> int:
        """Bytes that are there and not read yet."""
        return sum(size - at for at, size in (file.progress() for file in self._files))

    def close(self) -> None:
        """Settle unfinished lines and close the files."""
        for file in self._files:
            file.close()


def _open_plainly(path: Path) -> FileIO:
    return path.open("rb", buffering=0)


class _Followed:
    """One path; the log behind it may change."""

    def __init__(self, path: Path, builder: LogBuilder, from_end: bool, open_file: Callable[[Path], FileIO]) -> None:
        self.path = path
        self._open_file = open_file
        self._builder = builder
        self._from_end = from_end
        self._log: _OpenLog | None = None

    @property
    def is_open(self) -> bool:
        return self._log is not None

    def poll(self) -> int:
        log = self._log or self._open()
        if log is None:
            return 0
        done = log.read()
        if done < POLL_BYTES and self._was_replaced(log):
            # Nothing is left of the old file: go over to the new one.
            self.close()
            if (log := self._open()) is not None:
                done += log.read()
        return done

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes there of the file that is open; zeros when none is."""
        return self._log.progress() if self._log else (0, 0)

    def close(self) -> None:
        if self._log:
            self._log.close()
        self._log = None

    def _open(self) -> _OpenLog | None:
        try:
            stream = self._open_file(self.path)
        except OSError:
            return None
        self._log = _OpenLog(stream, self.path, self._builder)
        if self._from_end:
            stream.seek(0, os.SEEK_END)
        # Only the file that was there at the start is skipped; what comes after a rotation is new.
        self._from_end = False
        return self._log

    def _was_replaced(self, log: _OpenLog) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # Moved away, and the new file is not there yet: the old one may still grow.
        return (now.st_dev, now.st_ino) != log.identity


class _OpenLog:
    """An open file, where it was read to, and how it began."""

    def __init__(self, stream: FileIO, path: Path, builder: LogBuilder) -> None:
        self._stream, self._path, self._builder = stream, path, builder
        self._signature = b""
        self._reader = self._begin()

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self._stream.fileno())
        return status.st_dev, status.st_ino

    def progress(self) -> tuple[int, int]:
        size = os.fstat(self._stream.fileno()).st_size
        return min(self._stream.tell(), size), size

    def read(self) -> int:
        """Read what is new, from the start if the file was cut."""
        if os.fstat(self._stream.fileno()).st_size < self._stream.tell() or not self._head().startswith(self._signature):
            self._reader.finish()
            self._stream.seek(0)
            self._reader = self._begin()
        done = 0
        while done < POLL_BYTES and (block := self._stream.read(BLOCK_BYTES)):
            self._reader.feed(block)
            done += len(block)
        self._signature = self._head()
        return done

    def close(self) -> None:
        self._reader.finish()
        self._stream.close()

    def _begin(self) -> LogReader:
        self._signature = self._head()
        return LogReader(self._builder, server=server_name(self._path), file=str(self._path))

    def _head(self) -> bytes:
        return os.pread(self._stream.fileno(), _SIGNATURE_BYTES, 0)
