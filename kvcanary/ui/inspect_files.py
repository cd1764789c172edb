"""Files on the server that Inspect may read: those in the folders that the operator named in KVCANARY_LOG_FOLDERS, and nothing else.

Several folders are separated as in PATH. A file that is reached through a symbolic link counts as where it really lies, so a link that
leads out of its folder is refused; so is anything that is no regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kvcanary.errors import ImportTextError

VARIABLE = "KVCANARY_LOG_FOLDERS"
LIST_LIMIT = 2000
_DEPTH = 4
_ENDINGS = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".gz", ".zst", ".zstd", ".safetensors")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that may be read. name: number of its folder, '/', path inside it; what the address carries."""

    name: str
    label: str
    size_bytes: int
    changed_s: float


def allowed_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The operator's folders, resolved; one that is not there is left out."""
    named = [Path(part).expanduser() for part in environment.get(VARIABLE, "").split(os.pathsep) if part.strip()]
    return tuple(path.resolve() for path in named if path.is_dir())


def list_logs(folders: tuple[Path, ...]) -> list[LogFile]:
    """Files that look like logs or snapshots, newest first, at most LIST_LIMIT."""
    found = []
    for number, folder in enumerate(folders):
        for path in _walk(folder, _DEPTH):
            try:
                real = _inside(folder, path)
                status = real.stat()
            except OSError:
                continue  # Gone meanwhile, or a link that leads out.
            if stat.S_ISREG(status.st_mode):
                inner = path.relative_to(folder).as_posix()
                label = inner if len(folders) == 1 else f"{folder.name}/{inner}"
                found.append(LogFile(f"{number}/{inner}", label, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: -file.changed_s)[:LIST_LIMIT]


def find(folders: tuple[Path, ...], name: str) -> Path:
    """The path of a listed name, in its folder; ImportTextError says why it may not be read."""
    number, slash, inner = name.partition("/")
    if not slash or number not in map(str, range(len(folders))):
        raise ImportTextError(f"log {name[:100]!r} is in none of the folders of {VARIABLE}; ask who runs this server to add its folder")
    path = folders[int(number)] / inner
    try:
        regular = stat.S_ISREG(_inside(folders[int(number)], path).stat().st_mode)
    # A name that no file can have, with a NUL in it or half a surrogate, is a ValueError.
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ImportTextError(f"log {name[:100]!r} cannot be read: {said}; choose one from the list") from error
    if not regular:
        raise ImportTextError(f"log {name[:100]!r} is no file; choose one from the list")
    return path


def open_inside(folders: tuple[Path, ...], path: Path) -> FileIO:
    """Open a file of an allowed folder for reading; PermissionError when it lies outside, or is no regular file.

    The real path is opened without following a last link, so that a link put in its place between look and opening is refused too.
    """
    folder = next((folder for folder in folders if path.is_relative_to(folder)), None)
    if folder is None:
        raise PermissionError(f"{path} lies outside of the folders of {VARIABLE}")
    descriptor = os.open(_inside(folder, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is no regular file")
    return FileIO(descriptor, closefd=True)


def _inside(folder: Path, path: Path) -> Path:
    """Where a path really lies; PermissionError when that is not in the folder."""
    real = path.resolve(strict=True)
    if not real.is_relative_to(folder):
        raise PermissionError(13, "a symbolic link leads out of the allowed folder")
    return real


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth > 1:
                yield from _walk(Path(entry.path), depth - 1)
        elif any(ending in entry.name.lower() for ending in _ENDINGS):
            yield Path(entry.path)
