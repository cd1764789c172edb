"""Run folders as jobs leave them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcanary.lab.points import Point, Timing
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunRecord, RunState, Verdict


def run_folder(root: Path, number: int, kind: str = "benchmark", **changes: Any) -> RunFolder:
    """A run on disk, created at second `number`; settings and machine can be given."""
    folder = RunFolder(root / "runs" / f"20260504-030201-{kind}-{number:08x}")
    folder.path.mkdir(parents=True)
    settings = changes.pop("settings", {"page_size": 16})
    values: dict[str, Any] = {
        "state": RunState.DONE, "verdict": Verdict.PASS, "sentence": f"Pass number {number}.", "created_s": float(number), **changes,
    }  # fmt: skip
    folder.write_record(RunRecord(id=folder.path.name, kind=kind, spec=asdict(BenchmarkSpec(settings=settings)), **values))
    return folder


def card(slot: int, /, **changes: Any) -> dict[str, Any]:
    """The card of a slot whose token has one wrong bit."""
    fault = {"kind": "token bit", "slot": slot, "field": "token", "before": 40, "after": 41, "expected": {str(slot): 1}, "why": "one bit"}
    return {
        "slot": slot, "request": 2, "position": 13, "stored": [41, 13, -90, 0], "expected": [40, 13, -90, 0], "predecessor": slot - 1,
        "successor": slot + 1, "reasons": ["token"], "fault": fault, **changes,
    }  # fmt: skip


def point(batch: int = 8) -> Point:
    """A measured point."""
    timing = Timing(p20_s=0.9e-3, p50_s=1e-3, p80_s=1.2e-3, repeats=5, items=batch, bytes_moved=batch * 32)
    return Point(workload="decode", layout="contiguous", hash_mode="none", batch=batch, prefix=64, stamp=timing, verify=timing)
