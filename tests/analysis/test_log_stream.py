"""Files: compression, order, rotation names, progress and stop, and blocks that cut a message anywhere."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from kvcanary.analysis import log_stream
from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.analysis.log_stream import read_logs, read_stream, server_name
from kvcanary.errors import ImportTextError
from tests.analysis.rendering import Row, install, prefix, stats

NOISE = "Decode batch, #running-req: 4, #token: 9, token usage: 0.01\n"


def log_text(slots: range, day: int = 3) -> str:
    time = f"2027-02-{day:02d} 04:05:06"
    return "".join(
        (prefix("TP0", time) + NOISE) * 3 + prefix("TP0", time) + Row(slot=slot).message(total=slot, step=slot) + "\n" for slot in slots
    )


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            zipped.writestr("server.log", log_text(range(3)))
    else:
        with tarfile.open(fileobj=file, mode="w") as packed:
            packed.addfile(tarfile.TarInfo("server.log"))
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (archive("zip"), "a zip archive"), (archive("tar"), "a tar archive"), (gzip.compress(archive("tar")), "a tar archive"),
        (array(), "a numpy array"), (pickle.dumps({"a": 1}), "a Python pickle"), (log_text(range(3)).encode("utf-16"), "UTF-16 text"),
    ],
    ids=["zip", "tar", "tar.gz", "numpy", "pickle", "utf-16"],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused_and_not_taken_for_a_server_without_canary(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(data)
    for read in (lambda: read_logs([path]), lambda: read_stream(io.BytesIO(data), name="server.log")):
        with pytest.raises(ImportTextError, match=f"server.log is {kind} and no log"):
            read()


def test_a_log_with_zero_bytes_in_it_is_a_log() -> None:
    # What a rotation by copying leaves at the start of the file.
    assert len(read_stream(io.BytesIO(bytes(4096) + b"\n" + log_text(range(5)).encode()), name="x").violations) == 5


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_reads_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    data = log_text(range(1, 30)).encode()
    path = tmp_path / f"server.log{suffix}"
    path.write_bytes({"": data, ".gz": gzip.compress(data), ".zst": zstandard.compress(data)}[suffix])
    log = read_logs([path])
    assert [violation.slot_idx for violation in log.violations] == list(range(1, 30))
    assert log.bytes_read == len(data)
    assert log.lines == data.count(b"\n")
    assert log.complete
    with path.open("rb") as stream:
        assert len(read_stream(stream, name="upload").violations) == 29


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_cut_compression_keeps_what_came_before(tmp_path: Path, suffix: str) -> None:
    data = "".join(
        f"{prefix()}{Row(slot=slot, stored_hash=slot * 0x9E3779B97F4A7C15 % 2**64).message()}\n" for slot in range(1, 9000)
    ).encode()
    packed = gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
    path = tmp_path / f"server.log{suffix}"
    path.write_bytes(packed[: len(packed) // 2])
    log = read_logs([path])
    assert not log.complete
    assert "server.log" in log.notes[0]
    assert 0 < len(log.violations) < 8999


def test_several_members_of_a_gzip_file_are_all_read() -> None:
    packed = gzip.compress(log_text(range(1, 3)).encode()) + gzip.compress(log_text(range(3, 5)).encode())
    assert len(read_stream(io.BytesIO(packed), name="x").violations) == 4


def test_rotated_files_are_one_server_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(log_text(range(5, 7), day=4))
    (tmp_path / "engine.log.1").write_text(log_text(range(1, 5), day=3))
    log = read_logs([tmp_path / "engine.log", tmp_path / "engine.log.1"])
    assert [violation.slot_idx for violation in log.violations] == [1, 2, 3, 4, 5, 6]
    [report] = log.streams
    assert report.counter == 6


def test_logs_of_two_servers_add_up(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.log").write_text(f"{install()}\n{stats(100, 4)}\n")
    log = read_logs([tmp_path / "alpha.log", tmp_path / "beta.log"])
    assert [(report.stream.server, report.counter) for report in log.streams] == [("alpha.log", 4), ("beta.log", 4)]


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("server.log", "server.log"),
        ("server.log.12", "server.log"),
        ("server.log.2.gz", "server.log"),
        ("server-20270203.log.zst", "server.log"),
        ("server.log.2027-02-03", "server.log"),
        ("rank3.log", "rank3.log"),
        ("2027-02-03", "2027-02-03"),
    ],
)
def test_server_name(name: str, server: str) -> None:
    assert server_name(Path("logs") / name) == server


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportTextError, match=r"missing\.log cannot be read"):
        read_logs([tmp_path / "missing.log"])
    with pytest.raises(ImportTextError, match="readable file"):
        read_logs([tmp_path])


def test_progress_reaches_the_whole_and_stop_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream._read_all, "__defaults__", (1000,))
    path = tmp_path / "server.log"
    path.write_text(log_text(range(1, 40)))
    seen: list[tuple[int, int]] = []
    log = read_logs([path], progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert len(seen) > 5
    assert log.complete
    stopped = read_logs([path], stop=lambda: True)
    assert not stopped.complete
    assert 0 < len(stopped.violations) < 39
    assert "stopped in server.log" in stopped.notes[0]


@pytest.mark.parametrize("size", [1, 7, 64, 333])
def test_blocks_of_any_size_read_the_same(size: int) -> None:
    data = (log_text(range(1, 5)) + stats(100, 4) + "\n" + prefix() + Row(slot=9).line()[:150]).encode()

    def read(step: int) -> LogBuilder:
        builder = LogBuilder()
        reader = LogReader(builder, server="s", file="f")
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        reader.finish()
        return builder

    whole, pieces = read(len(data)), read(size)
    assert whole.violations.frame().equals(pieces.violations.frame())
    assert (whole.lines, whole.canary_lines, whole.build().streams) == (pieces.lines, pieces.canary_lines, pieces.build().streams)


def test_line_without_end_does_not_grow_for_ever() -> None:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    for _ in range(5):
        reader.feed(b"x" * (1 << 19))
    reader.feed(f"\n{prefix()}{Row(slot=5).message()}\n".encode())
    reader.finish()
    assert [violation.slot_idx for violation in builder.violations] == [5]
