"""What grows with the number of ranks: files, database, lists, the table of ranks, maps, and the sockets of a meeting.

    python tools/measure_scale.py [--ranks 1 10 100 1000] [--gloo 2 4 8]

Runs one quick benchmark, makes it the run of each rank in turn, and measures what that takes. Prints Markdown tables. The figures of
docs/scale.md come from here.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from kvcanary.config.presets import find_preset
from kvcanary.config.settings import Settings
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.ranks import RankResult, rank_rows, without_samples
from kvcanary.lab.records import BenchmarkSpec, RunFolder
from kvcanary.lab.tables import point_rows, write_slots
from kvcanary.layout import SLOT_FIELDS
from kvcanary.store.database import Store
from kvcanary.units import format_bytes, format_count, format_seconds

_MAP_SLOTS = (65_536, 392_920, 2_980_168, 6_553_600)
_GLOO = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
import torch
dist.all_reduce(torch.zeros(1))
if dist.get_rank() == 0:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    print("sockets", sum(link.startswith("socket:") for link in links))
dist.destroy_process_group()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--gloo", type=int, nargs="*", default=[2, 4, 8])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvcanary-scale-") as work:
        template = _template(Path(work) / "template")
        _print_ranks(Path(work), template, given.ranks)
        _print_maps(Path(work))
    _print_gloo(given.gloo)


def _template(root: Path) -> RunFolder:
    """One real quick benchmark on this machine."""
    settings = Settings.from_flat({**find_preset("laptop").settings, "real_data": "partial"})
    manager = JobManager(root)
    try:
        run_id = manager.start(BenchmarkSpec(settings=settings.to_flat()))
        record = manager.wait(run_id, 600)
    finally:
        manager.close()
    print(f"Template: {record.sentence}\n")
    return RunFolder(root / "runs" / run_id)


def _print_ranks(work: Path, template: RunFolder, counts: list[int]) -> None:
    points = template.read_points()
    print(f"One rank: {len(points)} points, {len(point_rows(points))} rows, {format_bytes(_size(template.path))} of files.\n")
    head = ("ranks", "rows", "files", "database", "taking in", "list of 100", "table of ranks", "sent to rank 0")
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}")
    for count in counts:
        root = work / f"ranks-{count}"
        (root / "active").mkdir(parents=True)
        for rank in range(count):
            _copy(template, root / "runs" / f"20260101-000000-benchmark-{rank:08x}")
        started = time.perf_counter()
        store = Store.open(None, root)
        store.count()
        taking_in = time.perf_counter() - started
        listing = _timed(partial(store.list, limit=100), 9)
        use = store.disk_use()
        store.close()
        results = [_result(rank, template) for rank in range(count)]
        sent = sum(len(pickle.dumps(result)) for result in results)
        table = _timed(partial(rank_rows, results), 3)
        cells = (
            format_count(count), format_count(count * len(point_rows(points))), format_bytes(use.runs_bytes), format_bytes(use.database_bytes),
            format_seconds(taking_in), format_seconds(listing), format_seconds(table), format_bytes(sent),
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
        shutil.rmtree(root)


def _copy(template: RunFolder, path: Path) -> None:
    shutil.copytree(template.path, path)
    document = json.loads((path / "run.json").read_text(encoding="utf-8"))
    (path / "run.json").write_text(json.dumps({**document, "id": path.name}), encoding="utf-8")


def _result(rank: int, template: RunFolder) -> RankResult:
    record = template.read_record()
    return RankResult(
        rank=rank, host=f"node{rank // 8}", device=f"cuda:{rank % 8}", run_id=record.id, verdict=record.verdict, sentence=record.sentence,
        waited_s=1.0, points=tuple(without_samples(replace(point)) for point in template.read_points()),
    )  # fmt: skip


def _print_maps(work: Path) -> None:
    print("\n| slots of one pool | map with records | map without | per slot |\n|---:|---:|---:|---:|")
    rng = np.random.default_rng(1)
    for slots in _MAP_SLOTS:
        small: dict[str, Any] = {
            "status": np.full(slots, 2, dtype=np.uint8), "flags": np.zeros(slots, dtype=np.uint8),
            "chain_index": rng.permutation(slots).astype(np.int64),
        }  # fmt: skip
        # As in a pool: small tokens, positions that repeat, hashes that do not compress.
        bounds = (150_000, 4096, 1 << 62, 1 << 62)
        records = {name: rng.integers(0, bound, slots) for name, bound in zip(SLOT_FIELDS, bounds, strict=True)}
        sizes = []
        for columns in (small | records, small):
            write_slots(work / "map.parquet", columns, length=4096)
            sizes.append((work / "map.parquet").stat().st_size)
        print(f"| {format_count(slots)} | {format_bytes(sizes[0])} | {format_bytes(sizes[1])} | {sizes[0] / slots:.1f} B |", flush=True)


def _print_gloo(counts: list[int]) -> None:
    print("\n| gloo ranks | sockets of rank 0 |\n|---:|---:|")
    for count in counts:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(_GLOO)
            script.flush()
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), script.name]
            output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
        found = next(line.split()[1] for line in output.splitlines() if line.startswith("sockets"))
        print(f"| {count} | {found} |", flush=True)


def _timed(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
