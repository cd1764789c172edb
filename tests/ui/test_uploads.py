"""Hostile uploads: bombs, forged types, deep or huge documents, pickles. Each ends soon, in a sentence, and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from kvcanary.analysis import log_stream
from kvcanary.analysis.log_stream import read_streams
from kvcanary.errors import ImportTextError, KvCanaryError
from kvcanary.importers.detect import read_bytes
from kvcanary.importers.result import ImportResult
from tests.analysis.rendering import Row, prefix

LINE = f"{prefix()}{Row().message()}\n".encode()


def read(data: bytes, name: str) -> tuple[ImportResult | None, str]:
    """What was read, or the sentence that says why not."""
    try:
        return read_bytes(data, name), ""
    except ImportTextError as error:
        return None, str(error)


def gzip_bomb(mebibytes: int) -> bytes:
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=9) as file:
        file.write(LINE)
        for _ in range(mebibytes):
            file.write(bytes(1 << 20))
    return target.getvalue()


def zstd_bomb(mebibytes: int) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(LINE) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(mebibytes)) + packer.flush()


@pytest.mark.parametrize(("name", "bomb"), [("server.log.gz", gzip_bomb), ("server.log.zst", zstd_bomb)])
def test_a_bomb_is_not_read_to_its_end(name: str, bomb: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "MAX_EXPANDED_BYTES", 8 << 20)
    log = read_streams([(name, io.BytesIO(bomb(64)))])
    assert not log.complete
    assert any("expands to more than" in note and name in note for note in log.notes)
    assert len(log.violations) == 1, "what came before the end is kept"
    assert log.bytes_read < 40 << 20


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "server.log.zst"
    path.write_bytes(zstd_bomb(1024))
    code = (
        "import resource, sys; from pathlib import Path; from kvcanary.analysis.log_stream import read_logs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "log = read_logs([Path(sys.argv[1])])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, log.complete)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    mebibytes, complete = result.stdout.split()
    assert complete == "False"
    assert int(mebibytes) < 200


def test_a_log_that_packs_well_is_read_whole() -> None:
    plain = LINE * 20_000
    log = read_streams([("server.log.gz", io.BytesIO(gzip.compress(plain)))])
    assert log.complete
    assert log.bytes_read == len(plain)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"model_path": "x"}),
        pickle.dumps(np.arange(3)),
        b"PK\x03\x04" + bytes(64),
        b"\x7fELF" + bytes(64),
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        bytes(range(256)) * 16,
        b"\xff\xfe" + "model_path".encode("utf-16-le"),
        b"",
        json.dumps({"a": 1}).encode().ljust(100, b"\0"),
    ],
    ids=["pickle", "array", "zip", "elf", "png", "bytes", "utf16", "empty", "padded"],
)
@pytest.mark.parametrize("name", ["config.json", "server.log", "launch.sh", "../../etc/passwd", "x\x00y"])
def test_what_is_no_text_is_refused_or_read_as_nothing(data: bytes, name: str) -> None:
    result, sentence = read(data, name)
    assert "\n" not in sentence
    assert result is None or not result.fields


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a":' * 200_000, "a: &a [*a, *a]\n" * 1000, "x: [" * 50_000, "(" * 100_000 + ")" * 100_000,
     "!!python/object/apply:os.system ['true']",
     "ServerArgs(" + "a=[" * 50_000, "-" * 1_000_000, "\\" * 500_000, "'" * 200_001, "$(" * 100_000],
    ids=["list", "object", "anchors", "flow", "call", "tag", "repr", "dashes", "slashes", "quotes", "shell"],
)  # fmt: skip
def test_depth_and_length_end_in_a_sentence(text: str) -> None:
    assert "\n" not in read(text.encode(), "paste")[1]


def test_more_than_the_cap_is_named() -> None:
    with pytest.raises(ImportTextError) as error:
        read_bytes(bytes((64 << 20) + 1), "huge.log")
    assert "huge.log" in str(error.value)
    assert "64" in str(error.value)


def test_a_hostile_snapshot_is_refused_without_running_anything(tmp_path: Path) -> None:
    from kvcanary import snapshot

    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(marker), "w"))

    path = tmp_path / "snapshot.safetensors"
    header = json.dumps({"x": {"dtype": "I64", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}}).encode()
    for data in (pickle.dumps(Payload()), (1 << 63).to_bytes(8, "little"), len(header).to_bytes(8, "little") + header, b"", bytes(8)):
        path.write_bytes(data)
        with pytest.raises(KvCanaryError):
            snapshot.load(str(path))
    assert not marker.exists()


def test_nothing_in_the_package_unpickles_or_evaluates() -> None:
    package = Path(__file__).parents[2] / "kvcanary"
    forbidden = (
        "pickle.load",
        "torch.load(",
        "np.load(",
        "allow_pickle",
        "yaml.load",
        "marshal.load",
        "shelve.",
        "os.system",
        "shell=True",
    )
    found = [(path.name, word) for path in package.rglob("*.py") for word in forbidden if word in path.read_text(encoding="utf-8")]
    assert found == []
