"""From log files, compressed or not, to a CanaryLog: in big blocks, in order of time, with progress and stop."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from kvcanary.analysis.canary_log import CanaryLog, LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.errors import ImportTextError

BLOCK_BYTES = 4 << 20
# Small pieces bound what a hostile file can expand to at once: 512 bytes of zstd are at most 128 blocks of 128 KiB.
_PACKED_BYTES = 512
# Text of a log packs 10 to 50 times; what expands further than this, once it has become large, is no log.
MAX_EXPANSION, MAX_EXPANDED_BYTES = 300, 1 << 28
_DECODERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x28\xb5": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# How files begin that are taken for a log by mistake. Read as one they would say that a server has no canary.
_NO_LOG = {
    b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf": "a 7-Zip archive", b"BZh": "packed by bzip2", b"\xfd7zXZ": "packed by xz",
    b"\x93NUMPY": "a numpy array", b"\x80\x02": "a Python pickle", b"\x80\x03": "a Python pickle", b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle", b"\x7fELF": "a program", b"SQLite format 3": "a database", b"PAR1": "a Parquet table",
    b"%PDF": "a PDF", b"\x89PNG": "a picture", b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_TAR_AT = slice(257, 262)
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
# server.log.3, server.log.2026-09-14, server-20260914.log, server.log-20260914: rotated files of one server.
_ROTATION = re.compile(r"(?:[.\-_](?:\d{1,5}|\d{8}|\d{4}-\d\d-\d\d))+(?=\.(?:log|txt|out|err)$|$)")

Progress = Callable[[int, int], None]
Stop = Callable[[], bool]


def read_logs(paths: Sequence[Path], *, progress: Progress | None = None, stop: Stop | None = None) -> CanaryLog:
    """Read logs in order of their first time stamp; rotated files of one server count as one log.

    progress gets bytes done and bytes in all, of the files as they lie on disk; when stop answers True the reading ends and the log
    says that it is incomplete. ImportTextError names a file that cannot be read.
    """
    builder = LogBuilder()
    files = sorted((Path(path) for path in paths), key=first_time)
    parts = [(server_name(path), str(path), path.stat().st_size, _blocks(path, builder)) for path in files]
    return _read_in_turn(builder, parts, progress, stop)


def read_text(text: str, *, name: str = "text") -> CanaryLog:
    """Read pasted text."""
    builder = LogBuilder()
    reader = LogReader(builder, server=name, file=name)
    reader.feed(text.encode(errors="replace"))
    reader.finish()
    return builder.build()


def read_stream(stream: BinaryIO, *, name: str) -> CanaryLog:
    """Read an open binary stream to its end, such as an upload or standard input; compressed or not."""
    builder = LogBuilder()
    reader = LogReader(builder, server=name, file=name)
    for block in _read_all(stream, name, builder):
        reader.feed(block)
    reader.finish()
    return builder.build()


def read_streams(streams: Sequence[tuple[str, BinaryIO]], *, progress: Progress | None = None, stop: Stop | None = None) -> CanaryLog:
    """Read several named binary streams that can be rewound, such as uploads, as `read_logs` reads files: oldest first, rotated ones joined."""
    builder = LogBuilder()
    ordered = sorted(streams, key=_first_time_of)
    parts = [(server_name(Path(name)), name, _size(stream), _placed_blocks(stream, name, builder)) for name, stream in ordered]
    return _read_in_turn(builder, parts, progress, stop)


def _read_in_turn(
    builder: LogBuilder, parts: Sequence[tuple[str, str, int, Iterator[tuple[bytes, int]]]], progress: Progress | None, stop: Stop | None
) -> CanaryLog:
    """Parts: server, file, its bytes, and the blocks of its text, each with the place in the file behind it."""
    done, total = 0, sum(size for _, _, size, _ in parts)
    for server, file, size, blocks in parts:
        reader = LogReader(builder, server=server, file=file)
        for block, position in blocks:
            reader.feed(block)
            if progress:
                progress(done + position, total)
            if stop and stop():
                builder.complete = False
                builder.notes.append(f"reading was stopped in {Path(file).name}")
                break
        reader.finish()
        if not builder.complete and stop and stop():
            break
        done += size
    return builder.build()


def _size(stream: BinaryIO) -> int:
    size = stream.seek(0, 2)
    stream.seek(0)
    return size


def _first_time_of(named: tuple[str, BinaryIO]) -> bytes:
    name, stream = named
    match = _TIME.search(next(_read_all(stream, name, LogBuilder(), size=1 << 16), b""))
    stream.seek(0)
    return match[0].replace(b"T", b" ") if match else b""


def lines_around(
    stream: BinaryIO, *, line: int, before: int = 3, after: int = 8, marks: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, str]]:
    """Numbered lines (from 1) of a log around one of them, compressed or not; empty when the log has no such line.

    marks: (line number, byte) where lines of the plain text begin, in order; the reading begins at the last one that helps.
    """
    at, rest, found = 0, b"", []
    if marks and stream.read(2) not in _DECODERS:
        number, place = max((mark for mark in marks if mark[0] <= line - before), default=(1, 0))
        stream.seek(place)
        at = number - 1
        blocks = iter(lambda: stream.read(BLOCK_BYTES), b"")
    else:
        stream.seek(0)
        blocks = _read_all(stream, "", LogBuilder())
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        first, last = max(0, line - before - 1 - at), max(0, line + after - at)
        found += [(at + number, text.decode(errors="replace")) for number, text in enumerate(lines[first:last], start=first + 1)]
        at += len(lines)
        if at >= line + after:
            return found
    if rest and line - before <= at + 1 <= line + after:
        found.append((at + 1, rest.decode(errors="replace")))
    return found if found and found[-1][0] >= line else []


def first_time(path: Path) -> bytes:
    """First time stamp of a log as bytes that sort, empty when its beginning has none; ImportTextError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            head = next(_read_all(stream, path.name, LogBuilder(), size=1 << 16), b"")
    except OSError as error:
        raise ImportTextError(f"log {path} cannot be read: {error.strerror or error}; give the path of a readable file") from error
    match = _TIME.search(head)
    return match[0].replace(b"T", b" ") if match else b""


def server_name(path: Path) -> str:
    """Name of the log without compression and rotation suffixes: what rotated files of one server share."""
    name = path.name
    for suffix in (".gz", ".zst", ".zstd"):
        name = name.removesuffix(suffix)
    stem = _ROTATION.sub("", name)
    return stem if re.search("[A-Za-z]", stem) else name


def _blocks(path: Path, builder: LogBuilder) -> Iterator[tuple[bytes, int]]:
    try:
        with path.open("rb") as stream:
            yield from _placed_blocks(stream, path.name, builder)
    except OSError as error:
        raise ImportTextError(f"log {path} cannot be read: {error.strerror or error}; give the path of a readable file") from error


def _placed_blocks(stream: BinaryIO, name: str, builder: LogBuilder) -> Iterator[tuple[bytes, int]]:
    for block in _read_all(stream, name, builder):
        yield block, stream.tell()


def _read_all(stream: BinaryIO, name: str, builder: LogBuilder, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Blocks of the plain text, the first of which is no file of another kind: ImportTextError names the kind."""
    blocks = _plain_blocks(stream, name, builder, size)
    head = next(blocks, b"")
    kind = "a tar archive" if head[_TAR_AT] == b"ustar" else next((kind for mark, kind in _NO_LOG.items() if head.startswith(mark)), None)
    if kind is not None:
        raise ImportTextError(f"{name} is {kind} and no log; give the logs as UTF-8 text, each plain, .gz or .zst")
    yield head
    yield from blocks


def _plain_blocks(stream: BinaryIO, name: str, builder: LogBuilder, size: int) -> Iterator[bytes]:
    """A compressed file that ends early or is damaged yields what came before and leaves a note."""
    head = stream.read(max(size, 4))
    decoder = _DECODERS.get(head[:2])
    if decoder is None:
        while head:
            yield head
            head = stream.read(size)
        return
    packed = itertools.chain(_pieces(head), iter(lambda: stream.read(_PACKED_BYTES), b""))
    plain = bytearray()
    total = 0
    try:
        for part in _decompress(packed, decoder):
            plain += part
            total += len(part)
            if total > MAX_EXPANDED_BYTES and total > MAX_EXPANSION * stream.tell():
                builder.complete = False
                builder.notes.append(
                    f"{name} expands to more than {MAX_EXPANSION} times its size, as no log does; what came before was read"
                )
                break
            if len(plain) >= size:
                yield bytes(plain)
                plain.clear()
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        builder.complete = False
        builder.notes.append(f"{name} is cut or damaged inside its compression ({error}); what came before was read")
    yield bytes(plain)


def _pieces(block: bytes) -> Iterator[bytes]:
    return (block[at : at + _PACKED_BYTES] for at in range(0, len(block), _PACKED_BYTES))


def _decompress(packed: Iterator[bytes], new_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """Plain text of all members or frames; EOFError when the last one does not end."""
    decoder = new_decoder()
    for piece in packed:
        rest = piece
        while rest:
            if decoder.eof:
                decoder = new_decoder()
            yield decoder.decompress(rest)
            rest = decoder.unused_data if decoder.eof else b""
    if not decoder.eof:
        raise EOFError("it ends before its end mark")
