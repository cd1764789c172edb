"""What fuzzing starts from: inputs that each reader takes, small enough to be changed a thousand times a second."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

MOONCAKE = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 27, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-02 03:04:05.1234567,4808,10\n2026-01-02 03:04:06.0000000+00:00,3180,8\n"
BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    b"45.5,GPT-4,1,2,3,API log\n"
)
SWEEP = (
    b"name: nightly\nkind: bench\nbase: {preset: quick, backend: numba}\ngrid: {real_data: [none, partial], page_size: [1, 16]}\n"
    b"points:\n- {pool_slot_count: 8192}\n"
)
CAMPAIGN = b"name: c\nkind: campaign\nbase: {seeds: 1}\ngrid: {configs: [[partial], [chain only]]}\n"
FIELDS = b"pool_slot_count=4096\npage_size=2^4\nmem_fraction_static=87.5 %\nmode=log\n"
INSIDE_A_RUN = b'{"schema": "kvcanary.run", "spec": {"settings": {"page_size": 16}}}'
DEVICES = (
    b'{"schema": 1, "devices": [{"name": "Own 1", "aliases": ["o"], "memory_mib": 1000, "memory_source": "m", "sheet_gb": 1, '
    b'"bandwidth_gb_s": 5, "bandwidth_source": "b"}]}'
)
# Eight tensors of a snapshot as tools/fuzz_readers.py spells them: name, dtype, rows, columns; then facts and bytes.
PARTS = bytes([1, 0, 48, 0, 0, 0, 48, 0, 4, 0, 48, 0, 8, 1, 4, 0, 9, 2, 2, 64, 10, 2, 2, 64]) + b"\n\x02\x0a\x0a" + bytes(range(1, 255))


def texts(*names: str) -> list[bytes]:
    """Texts of the importers' tests by name."""
    from tests.importers import samples

    return [getattr(samples, name).encode() for name in names]


def logs() -> list[bytes]:
    """Logs with reports in each form."""
    from kvcanary.ui.inspect_example import example_log
    from tests.analysis.rendering import Row, install, prefix, stats

    start = "[2027-02-03 04:05:06] server_args=ServerArgs(model_path='m', page_size=16, kv_canary='log')\n"
    one = start + install() + "\n" + stats(100, 0) + "\n" + prefix() + Row().message() + "\n" + stats(200, 1)
    raised = "RuntimeError: " + Row(reasons=("write_token",)).line() + "\nTraceback (most recent call last):\n" + prefix("") + "x"
    return [example_log().encode(), one.encode(), raised.encode(), json.dumps({"log": prefix() + Row().line() + "\n"}).encode()]


def archives() -> list[bytes]:
    """Packed logs, two members in a row, and small bombs."""
    import zstandard

    plain = logs()
    packed = [gzip.compress(text) for text in plain] + [zstandard.ZstdCompressor().compress(text) for text in plain]
    return [*packed, packed[0] + packed[1], gzip.compress(b"a" * (4 << 20)), zstandard.ZstdCompressor().compress(bytes(8 << 20))]


def snapshots() -> list[bytes]:
    """A small pool with each hash mode."""
    from kvcanary import snapshot
    from kvcanary.layout import RealKvHashMode
    from tests.test_snapshot import Server

    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        for mode in RealKvHashMode:
            Server(mode=mode).save(Path(folder) / "a")
            seeds.append((Path(folder) / "a").read_bytes())
            assert snapshot.load(Path(folder) / "a").hash_mode is mode
    return seeds


def runs() -> list[bytes]:
    """One exported run of each kind."""
    from kvcanary.store.database import Store
    from tests.stored_runs import points, store_run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = [
            store_run(folder, number, kind=kind, measured=points()[:2]) for number, kind in enumerate(("benchmark", "plan", "inspection"))
        ]
        ids.append(store_run(folder, 3, kind="campaign", spec={"seeds": 1}))
        store = Store.open(None, folder)
        return [json.dumps(store.document(run_id)).encode() for run_id in ids]
