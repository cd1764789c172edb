"""How quick a store of many runs is: makes run folders, takes them in, and times what the page Runs asks for.

    python tools/measure_store.py --runs 100000 [--url postgresql://...] [--folder /tmp/runs100k]

Prints one line per question: median and worst of 9, and the processor's share, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import bindparam, select, update

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvcanary.lab.records import BenchmarkSpec, RunRecord, RunState, Verdict
from kvcanary.store.database import Store
from kvcanary.store.schema import RUNS

_KINDS = ("benchmark", "benchmark", "benchmark", "plan", "campaign", "inspection")
_MACHINES = ("NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X", "Intel Xeon 6952P", "AMD EPYC 9965")
_MODELS = ("llama-3.1-8b", "qwen3-32b", "deepseek-v3.2", "gpt-oss-120b", "")


def make_folders(root: Path, count: int) -> None:
    """Run folders as jobs leave them, without arrays."""
    from dataclasses import asdict

    chosen = random.Random(7)
    settings = {"page_size": 64, "pool_slot_count": 392_920, "num_layers": 32, "real_data": "partial"}
    (root / "active").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        kind = chosen.choice(_KINDS)
        path = root / "runs" / f"20260101-000000-{kind}-{number:08x}"
        path.mkdir(parents=True)
        spec = asdict(BenchmarkSpec(settings={**settings, "model": chosen.choice(_MODELS)}, seed=number))
        record = RunRecord(
            id=path.name, kind=kind, state=RunState.DONE, spec=spec, created_s=1.7e9 + number, started_s=1.7e9 + number,
            finished_s=1.7e9 + number + 9, verdict=chosen.choice([Verdict.PASS] * 9 + [Verdict.FAIL]),
            machine={"processor": chosen.choice(_MACHINES), "cores": 64},
            sentence=f"Pass: the gate held (14 checks); 11 of 12 planted faults are in reach; {number} slots verified.",
        )  # fmt: skip
        (path / "run.json").write_text(json.dumps(record.to_document()))


def timed(name: str, action: Callable[[], object], repeats: int = 9) -> None:
    """Median and worst of a question by the clock, and the median of the processor's time, in milliseconds."""
    seconds, busy = [], []
    for _ in range(repeats):
        started, worked = time.perf_counter(), time.process_time()
        action()
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
    figures = (statistics.median(seconds), max(seconds), statistics.median(busy))
    print("{:46} {:9.1f} ms   worst {:9.1f} ms   processor {:9.1f} ms".format(name, *(figure * 1e3 for figure in figures)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    root = given.folder or Path(tempfile.mkdtemp(prefix="kvcanary-store-"))
    if not (root / "runs").is_dir():
        make_folders(root, given.runs)
    timed("first open and taking in all folders", lambda: Store.open(given.url, root).count(), repeats=1)
    store = Store.open(given.url, root)
    for number in range(0, given.runs, 500):
        store.add_label(f"20260101-000000-{store_kind(root, number)}-{number:08x}", f"label {number % 7}")
    timed("open again and count (what a command does)", lambda: Store.open(given.url, root).count())
    timed("newest 50", lambda: store.list(limit=50))
    timed("50 in the middle", lambda: store.list(limit=50, offset=given.runs // 2))
    timed("count", lambda: store.count())
    timed("newest 50 that failed", lambda: store.list(verdict="fail", limit=50))
    timed("count of failed benchmarks on one machine", lambda: store.count(kind="benchmark", verdict="fail", machine=_MACHINES[0]))
    timed("newest 50 of one machine and model", lambda: store.list(machine=_MACHINES[1], model=_MODELS[2], limit=50))
    timed("newest 50 with a label", lambda: store.list(label="label 3", limit=50))
    timed("newest 50 with a word in 1 of 10 rows", lambda: store.list(text="9 slots verified", limit=50))
    timed("count of rows with a word that none has", lambda: store.count(text="unheard-of"))
    timed("what there is to filter by", store.choices)
    share(store)
    theirs = store.seen_by("key 3")
    timed("newest 50, for one person of ten", lambda: theirs.list(limit=50))
    timed("count, for one person of ten", lambda: theirs.count())
    timed("newest 50 of one machine and model, for one of ten", lambda: theirs.list(machine=_MACHINES[1], model=_MODELS[2], limit=50))
    timed("disk use", store.disk_use)
    timed(
        "a new plan, stored and listed", lambda: (store.save_plan({}, verdict=Verdict.PASS, sentence="", document={}), store.list(limit=1))
    )
    print(f"database {store.disk_use().database_bytes / given.runs:.0f} bytes per run")


def share(store: Store) -> None:
    """Give every run to one of ten people, and let half of them be private."""
    with store._engine.begin() as connection:
        rows = connection.execute(select(RUNS.c.id)).scalars().all()
        change = update(RUNS).where(RUNS.c.id == bindparam("run")).values(owner_key=bindparam("key"), private=bindparam("hidden"))
        connection.execute(change, [{"run": row, "key": f"key {at % 10}", "hidden": int(at // 10 % 2 == 0)} for at, row in enumerate(rows)])


def store_kind(root: Path, number: int) -> str:
    """Kind of a made run, drawn as `make_folders` drew it."""
    names = _names.setdefault(root, {})
    if not names:
        names.update({path.name.rpartition("-")[2]: path.name.split("-")[2] for path in (root / "runs").iterdir()})
    return names[f"{number:08x}"]


_names: dict[Path, dict[str, str]] = {}


if __name__ == "__main__":
    main()
