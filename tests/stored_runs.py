"""Stored runs without a worker: records, points and maps written as a worker leaves them, and small campaigns that are really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary.analysis.diagnosis import diagnose
from kvcanary.analysis.inspection import report_data
from kvcanary.analysis.log_stream import read_text
from kvcanary.config.plan_report import plan_document, plan_report
from kvcanary.config.settings import Settings
from kvcanary.lab.campaign_job import CampaignSpec, run_campaign_job
from kvcanary.lab.records import Point, RunFolder, RunRecord, RunState, Timing, Verdict
from kvcanary.lab.tables import write_slots
from tests.analysis.rendering import Row, prefix
from tests.store.making import card

SETTINGS = {"pool_slot_count": "4096", "req_to_token_pool_size": "16", "max_seq_len_per_req": "512", "model": "small-model"}


def points(scale: float = 1.0, *, seed: int = 1, batches: Sequence[int] = (1, 4, 16), repeats: int = 40, mode: str = "none") -> list[Point]:
    """Decode points whose medians are proportional to the scale, with 2 % of noise."""
    rng = np.random.default_rng(seed)

    def timing(base: float, items: int) -> Timing:
        return Timing.of((base * scale * np.exp(0.02 * rng.standard_normal(repeats))).tolist(), items=items, bytes_moved=items * 56)

    return [
        Point(
            workload="decode", layout="contiguous", hash_mode=mode, batch=batch, prefix=256, stamp=timing(1e-4, batch),
            stamp_bound=timing(1e-5 / scale, batch), verify=timing(2e-4, batch * 256), verify_bound=timing(1e-5 / scale, batch * 256),
            plan=timing(3e-5, batch), warm_up_s=0.01,
        )
        for batch in batches
    ]  # fmt: skip


def store_run(
    root: Path, number: int, *, kind: str = "benchmark", measured: Sequence[Point] = (), map_slots: int = 0, **changes: Any
) -> str:
    """Write one finished run and return its id; larger numbers are newer."""
    run_id = f"20260{number // 28 % 9 + 1}{number % 28 + 1:02}-101112-{kind}-{number:08x}"
    folder = RunFolder(root / "runs" / run_id)
    folder.path.mkdir(parents=True)
    record = RunRecord(
        id=run_id, kind=kind, state=RunState.DONE, verdict=Verdict.PASS, sentence="Pass: the gate held.", created_s=1.7e9 + number,
        started_s=1.7e9 + number, finished_s=1.7e9 + number + 12, spec={"settings": SETTINGS, "seed": 1, "device": "cpu"},
        machine={"processor": "Test processor", "cores": 2}, versions={"torch": "2.9"}, backend={"name": "numba", "reason": "fastest"},
        coverage={"verified": 4096, "free": 0},
    )  # fmt: skip
    folder.write_record(replace(record, **changes))
    for point in measured:
        folder.append_point(point)
    if map_slots:
        status = np.full(map_slots, 2, dtype=np.uint8)
        status[map_slots // 2] = 5
        columns: dict[str, npt.NDArray[Any]] = {
            "status": status, "flags": np.zeros(map_slots, dtype=np.uint8), "chain_index": np.arange(map_slots, dtype=np.int64),
        }  # fmt: skip
        write_slots(folder.slots_file, columns, length=64)
        folder.write_cards([card(map_slots // 2)])
    if kind == "plan":
        folder.write_result(plan_document(plan_report(Settings.from_flat(SETTINGS))))
    elif kind == "inspection":
        folder.write_result(inspection_document())
    return run_id


def inspection_document() -> dict[str, Any]:
    """What an inspection of two violations on two ranks stores."""
    rows = (("TP0", Row(slot=70, tag="HEAD_K_FULL", reasons=("verify_position",))), ("TP1", Row(slot=9812)))
    log = read_text("".join(f"{prefix(rank)}{row.message(step=9)}\n" for rank, row in rows))
    return report_data(log, diagnose(log))


def run_campaign(root: Path, number: int, *configs: str) -> str:
    """Run a campaign of one fault here and now, as one finished run, and return its id."""
    spec = CampaignSpec(faults=["payload_bytes.bit_flip"], configs=list(configs), seeds=1)
    run_id = store_run(root, number, kind="campaign", spec=asdict(spec))
    run_campaign_job(RunFolder(root / "runs" / run_id), spec)
    return run_id
