"""Coverage-guided fuzzing of everything that reads outside bytes: python tools/fuzz_readers.py READER [--seconds N] [FILE...].

With files, reads them once without instrumentation and says how each ended. Otherwise atheris mutates the reader's seeds for so many seconds
of CPU. An input may end in a result or in a KvCanaryError; whatever else it raises, and whatever takes more than 2 s of CPU, is kept under
--keep, one input for each place in the code, and the exit code is 1. `all` runs every reader in turn.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import mmap
import os
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import fuzz_seeds as seeds

MAX_INPUT_BYTES = 64 << 10
CPU_LIMIT_S = 2.0
# A reader that hangs is ended by libFuzzer, which keeps its input.
HANG_S = 120
_COUNTERS = struct.Struct("qqd")

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Reader:
    """make imports and returns what reads; seeds are inputs that it takes, words what it looks for."""

    make: Callable[[Path], Read]
    seeds: Callable[[], list[bytes]]
    words: tuple[str, ...] = ()


def _import(_: Path) -> Read:
    """A paste or an upload on Plan: everything that is read from it, and the whole plan of what it states."""
    from kvcanary.config.plan_report import plan_document, plan_report
    from kvcanary.config.settings import Settings
    from kvcanary.importers.detect import merge, read_bytes

    def read(data: bytes) -> None:
        result = read_bytes(data)
        merge([result, result])
        json.dumps(result.to_dict())
        json.dumps(plan_document(plan_report(Settings.from_flat(result.settings_values()), result.observed)))

    return read


def _hf_config(folder: Path) -> Read:
    from kvcanary.importers.hf_config import parse_hf_config

    whole = _import(folder)

    def read(data: bytes) -> None:
        parse_hf_config(data.decode(errors="replace"), tp_size=4)
        whole(data)

    return read


def _canary_log(_: Path) -> Read:
    """A log on Inspect: read, diagnosed, mapped, written as JSON and as a report."""
    from kvcanary.analysis.inspected import Inspected
    from kvcanary.analysis.inspection import report_data
    from kvcanary.analysis.log_stream import lines_around, read_streams
    from kvcanary.ui.inspect_report import sections

    def read(data: bytes) -> None:
        log = read_streams([("server.log", io.BytesIO(data)), ("server.log.1", io.BytesIO(data[: len(data) // 2]))])
        inspected = Inspected(log)
        json.dumps(report_data(log, inspected.diagnosis), allow_nan=False)
        sections(inspected)
        lines_around(io.BytesIO(data), line=max(1, log.lines // 2))

    return read


def _archive(folder: Path) -> Read:
    """A compressed log, damaged anywhere; bytes that are no archive are packed first, so that what is inside is read as well."""
    read_log = _canary_log(folder)

    def read(data: bytes) -> None:
        read_log(data if data[:2] in (b"\x1f\x8b", b"\x28\xb5") else gzip.compress(data, 1))

    return read


def _trace(_: Path) -> Read:
    """A trace on Fault lab: every row, and the requests of a sample."""
    from kvcanary.importers.trace import TraceReader
    from kvcanary.lab.campaign_load import TraceSample, sample_trace

    def read(data: bytes) -> None:
        text = data.decode(errors="replace")
        for _ in TraceReader(io.StringIO(text)):
            pass
        sample, problems = sample_trace(io.StringIO(text), "trace")
        TraceSample.from_dict(json.loads(json.dumps(sample.to_dict())))
        [*map(str, problems), *sample.requests(1000, 1)]

    return read


def _snapshot(folder: Path) -> Read:
    """A snapshot on Inspect: loaded, verified and diagnosed."""
    from kvcanary.analysis.inspected import Inspected
    from kvcanary.analysis.inspection import report_data
    from kvcanary.analysis.snapshot_log import read_snapshots

    path = folder / "input.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        log, statuses = read_snapshots([("input", path)])
        inspected = Inspected(log, {(status.pool, status.name): status.status for status in statuses})
        for pool in inspected.pools:
            inspected.status(pool, inspected.rows_of(pool))
        json.dumps(report_data(log, inspected.diagnosis), allow_nan=False)

    return read


def _snapshot_parts(folder: Path) -> Read:
    """A snapshot that is well-formed as a file, with tensors of any shape, dtype and content under the names that are looked for."""
    read_file = _snapshot(folder)
    names = ("0.k_head", "0.k_tail", "0.v_head", "0.v_tail", "0.source_k.0", "0.source_v.1", "0.full_to_swa", "1.k_tail", "req_to_token",
             "req_pool_indices", "seq_lens", "violation_ring")  # fmt: skip
    widths = {"U8": 1, "I32": 4, "I64": 8, "F32": 4, "BOOL": 1}

    def read(data: bytes) -> None:
        header, _, payload = data.partition(b"\n")
        tensors: dict[str, object] = {}
        at = 0
        for place in range(0, len(header) - 3, 4):
            kind = [*widths][header[place + 1] % len(widths)]
            # Mostly the shapes that fit together, so that something is verified.
            rows, columns = header[place + 2] % 49, (32, 8, 16, 2, 0, 1, 64, 33)[header[place + 3] % 8]
            shape = [rows] if header[place + 3] & 0x40 else [rows, columns]
            size = widths[kind] * (rows if len(shape) == 1 else rows * columns)
            tensors[names[header[place] % len(names)]] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        facts = payload[:3].ljust(3, b"\0")
        tensors["__metadata__"] = {
            "format": "kvcanary.snapshot/1", "hash_mode": str(facts[0] % 5 - 1), "swa_window": str(facts[1] - 10), "labels": '{"rank": "TP0"}',
            "ring_total": str(facts[2] - 10), "groups": json.dumps([{"kind": ("FULL", "SWA", "X")[facts[1] % 3], "token_offset": facts[2] % 3}] * 2),
        }  # fmt: skip
        text = json.dumps(tensors).encode()
        read_file(struct.pack("<Q", len(text)) + text + (payload[3:] * (at // max(1, len(payload) - 3) + 1))[:at].ljust(at, b"\0"))

    return read


def _settings(folder: Path) -> Read:
    """A settings file of the command line, and the same text as a paste and as the text of single fields."""
    from kvcanary.cli.options import read_settings, read_settings_file
    from kvcanary.config.plan_report import plan_document, plan_report
    from kvcanary.errors import ConfigError, ImportTextError
    from kvcanary.importers.detect import read_bytes

    path = folder / "settings.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            given = read_settings_file(path)
        except ConfigError:
            lines = (line.partition("=") for line in data.decode(errors="replace").split("\n"))
            given = {name: value for name, _, value in lines}
        settings, _ = read_settings(given)
        json.dumps(plan_document(plan_report(settings)), allow_nan=False)
        try:
            read_bytes(data)
        except ImportTextError:
            return

    return read


def _devices(_: Path) -> Read:
    from kvcanary.config.devices import find_device, match_device, parse_devices

    def read(data: bytes) -> None:
        devices = parse_devices(data.decode(errors="replace"))
        for device in devices:
            find_device(device.name, devices)
            match_device(device.name, device.memory_bytes, devices)

    return read


def _sweep(_: Path) -> Read:
    from kvcanary.lab.sweep import read_sweep

    return lambda data: [point.label for point in read_sweep(data.decode(errors="replace")).points]


def _run_import(folder: Path) -> Read:
    """A run that another store exported: taken in, listed, shown, exported and reported."""
    from kvcanary.charts.sections import run_report, run_sections
    from kvcanary.errors import KvCanaryError, StoreError
    from kvcanary.store import export
    from kvcanary.store.database import Store
    from kvcanary.store.documents import parse_document

    store = Store.open(None, folder)

    def read(data: bytes) -> None:
        run_id = store.take_in(parse_document(data.decode(errors="replace")))
        try:
            store.list()
            store.list(order="largest")
            store.choices()
            store.disk_use()
            for use in (export.export_json, export.export_csv, export.export_parquet, run_sections, run_report):
                try:
                    use(store, run_id)
                except KvCanaryError:
                    continue
            if store.damaged():
                raise AssertionError(f"what was taken in cannot be read: {store.damaged()}")
        finally:
            try:
                store.delete(run_id)
                store.purge(after_s=0)
            except StoreError:
                pass

    return read


READERS: dict[str, Reader] = {
    "command": Reader(
        _import, lambda: seeds.texts("SHELL", "COMPOSE", "POD", "RECIPE", "PYTHON", "MARKDOWN", "CONFLICT"),
        ("--tp ", "--page-size=", "sglang.launch_server ", "vllm serve ", "$(", "${", "<<EOF\n", "args: ", "- ", "&a ", "*a", "'", "\\\n"),
    ),
    "startup-log": Reader(
        _import, lambda: seeds.texts("SGLANG_LOG", "VLLM_LOG", "OUT_OF_MEMORY", "EMPTY_POOL"),
        ("server_args=ServerArgs(", "KV Cache is allocated. ", "#tokens: ", "install_canary: ", "Error: ", "inf", "nan", "1e999"),
    ),
    "server-info": Reader(_import, lambda: seeds.texts("SERVER_INFO"), ('"internal_states"', '"memory_usage"', "1e999", "NaN", "-1", "null", "[[")),
    "hf-config": Reader(
        _hf_config, lambda: seeds.texts("HF_CONFIG", "WEIGHT_INDEX"),
        ('"text_config"', '"layer_types"', '"sliding_window"', '"kv_lora_rank"', '"quantization_config"', "1e999", "NaN", "null"),
    ),
    "canary-log": Reader(
        _canary_log, seeds.logs,
        ("kv_canary violation: launch_tag=", "fail_reason=", "slot_idx=", "[canary] step=", "\r", "\\n", '{"log": "', "Error: "),
    ),
    "archive": Reader(_archive, seeds.archives, ("\x1f\x8b\x08", "\x28\xb5\x2f\xfd")),
    "trace-mooncake": Reader(
        _trace, lambda: [seeds.MOONCAKE], ('"timestamp"', '"hash_ids"', "1e999", "NaN", "9007199254740993", "null"),
    ),
    "trace-azure": Reader(_trace, lambda: [seeds.AZURE], ("0001-01-01 00:00:00", "9999-12-31 23:59:59", "+23:59", "Z", '"', ",")),
    "trace-burstgpt": Reader(_trace, lambda: [seeds.BURSTGPT], ("inf", "nan", "-0", "1e308", '"', ",")),
    "snapshot": Reader(
        _snapshot, seeds.snapshots, ('"dtype"', '"shape"', '"data_offsets"', '"I64"', '"U8"', "ring_total", "groups", "token_offset"),
    ),
    "snapshot-parts": Reader(_snapshot_parts, lambda: [seeds.PARTS]),
    "settings": Reader(
        _settings, lambda: [*seeds.texts("SETTINGS"), seeds.FIELDS, seeds.INSIDE_A_RUN],
        ("pool_slot_count", "page_size", "num_layers", "kv_dtype", "tp_size", "sliding_window", "9223372036854775807", "1e18", "null"),
    ),
    "devices": Reader(_devices, lambda: [seeds.DEVICES], ("1e999", "NaN", "true", "null", '"aliases"')),
    "sweep": Reader(
        _sweep, lambda: [seeds.SWEEP, seeds.CAMPAIGN],
        ("&a ", "*a", "<<: ", "!!python/object:os.system ", "grid: ", "points: ", ".inf", "2001-01-01", "0o7", "1:30"),
    ),
    "run-import": Reader(
        _run_import, seeds.runs, ('"state"', '"points"', '"cards"', '"gate"', '"finished_s"', "1e999", "NaN", "null", "[]", "{}"),
    ),
}  # fmt: skip


class Findings:
    """Runs one reader on one input after the other; counts and CPU time are shared with the process that waits."""

    def __init__(self, name: str, read: Read, keep: Path, seconds: float, counters: mmap.mmap) -> None:
        from kvcanary.errors import KvCanaryError

        self._expected, self._name, self._read, self._keep = KvCanaryError, name, read, keep
        self._seconds, self._counters, self._count, self._found = seconds, counters, 0, set[str]()
        self._began = time.process_time()

    def one(self, data: bytes) -> None:
        """Read one input and keep it where it does what no input may."""
        started = time.process_time()
        try:
            self._read(data)
        except self._expected:
            pass
        except Exception as error:  # noqa: BLE001 (whatever is not expected is what is looked for)
            self._note(type(error).__name__, _place(error), data)
        now = time.process_time()
        if now - started > CPU_LIMIT_S:
            self._note("Slow", f"{(now - started) // 4 * 4:.0f} s and more", data)
        self._count += 1
        _COUNTERS.pack_into(self._counters, 0, self._count, len(self._found), now - self._began)
        if now - self._began > self._seconds:
            os._exit(0)

    def _note(self, what: str, where: str, data: bytes) -> None:
        key = f"{what} {where}"
        if key not in self._found:
            self._found.add(key)
            path = self._keep / f"{self._name}-{what}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
            path.write_bytes(data)
            print(f"{self._name}: {key}: {path}", file=sys.stderr, flush=True)


def _place(error: Exception) -> str:
    """Where it was raised, and the last line of our own before that."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/kvcanary/" in frame.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} {frames[-1].name}"


def fuzz(name: str, seconds: float, keep: Path) -> bool:
    """Fuzz one reader in a child process and say what came of it; True where nothing was found."""
    counters = mmap.mmap(-1, _COUNTERS.size)
    # Made here, as the child ends without taking anything away.
    with tempfile.TemporaryDirectory(prefix="kvcanary-fuzz-") as folder:
        child = os.fork()
        if child == 0:
            _fuzz_here(name, seconds, keep, counters, Path(folder))
        _, status, usage = os.wait4(child, 0)
    count, found, cpu_s = _COUNTERS.unpack_from(counters, 0)
    ended = "" if os.waitstatus_to_exitcode(status) == 0 else f", ENDED with {os.waitstatus_to_exitcode(status)}"
    peak = usage.ru_maxrss / 1024
    print(f"{name}: {count} executions, {cpu_s:.0f} s of CPU, {found} findings, peak {peak:.0f} MiB{ended}", flush=True)
    return found == 0 and not ended


def _fuzz_here(name: str, seconds: float, keep: Path, counters: mmap.mmap, folder: Path) -> None:
    import atheris

    reader = READERS[name]
    corpus = keep / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    # numba and triton read the bytecode of their kernels, which therefore has to stay as it is.
    with atheris.instrument_imports(include=["kvcanary"], exclude=["kvcanary.kernels"]):
        read = reader.make(folder)
        starts = reader.seeds()
    for number, seed in enumerate(starts):
        (corpus / f"seed-{number}").write_bytes(seed[:MAX_INPUT_BYTES])
    words = folder / "words"
    words.write_text("".join(f'"{_spelled(word)}"\n' for word in reader.words))
    findings = Findings(name, read, keep, seconds, counters)
    options = [
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={HANG_S}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={keep}/{name}-",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, *([f"-dict={words}"] if reader.words else []), str(corpus)], findings.one)
    atheris.Fuzz()


def _spelled(word: str) -> str:
    """A word as libFuzzer's dictionaries take any byte."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode("latin-1"))


def replay(name: str, paths: list[Path]) -> bool:
    """Read files as they are, without instrumentation; True where each ended as it may."""
    from kvcanary.errors import KvCanaryError

    fine = True
    with tempfile.TemporaryDirectory() as folder:
        read = READERS[name].make(Path(folder))
        for path in paths:
            started, said = time.process_time(), "read"
            try:
                read(path.read_bytes())
            except KvCanaryError as error:
                said = f"{type(error).__name__}: {str(error)[:120]}"
            except Exception as error:  # noqa: BLE001 (whatever is not expected is what is looked for)
                said, fine = f"{type(error).__name__} at {_place(error)}: {str(error)[:120]}", False
            spent = time.process_time() - started
            fine &= spent <= CPU_LIMIT_S
            print(f"{path.name}: {spent:.2f} s: {said}")
    return fine


def main() -> int:
    """Exit code 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=[*READERS, "all"])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds for each reader; default 60")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "kvcanary-fuzz", help="where inputs are kept")
    options = parser.parse_args()
    if options.files:
        return 0 if replay(options.reader, options.files) else 1
    options.keep.mkdir(parents=True, exist_ok=True)
    names = [*READERS] if options.reader == "all" else [options.reader]
    found = [name for name in names if not fuzz(name, options.seconds, options.keep)]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
