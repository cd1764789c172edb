"""Two gloo ranks that measure at the same moment, and what is said of several ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.ranks import RankResult, overall, rank_rows, run_rank
from kvcanary.lab.records import BenchmarkSpec, Point, RunState, Timing, Verdict
from kvcanary.store.database import Store

ROOT = Path(__file__).parents[2]
SMALL = (
    "--pool-slot-count", "512", "--req-to-token-pool-size", "4", "--max-seq-len-per-req", "128", "--cuda-graph-max-bs", "4",
    "--max-prefill-tokens", "128",
)  # fmt: skip
UNEVEN = """
import os
import torch.distributed as dist
from kvcanary.lab.ranks import _Meeting

dist.init_process_group("gloo")
rank, meeting = dist.get_rank(), _Meeting()
for _ in range((1, 3)[rank]):
    meeting.before_point()
meeting.leave()
open(os.environ["MET"] + str(rank), "w").write("through")
dist.destroy_process_group()
"""


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    given = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=280, check=False)


def test_two_ranks_measure_together_and_each_keeps_its_run(tmp_path: Path) -> None:
    done = torchrun("-m", "kvcanary", "bench", *SMALL, "--json", str(tmp_path / "ranks.json"), KVCANARY_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "ranks.json").read_text())
    assert (document["schema"], document["verdict"], [rank["rank"] for rank in document["ranks"]]) == ("kvcanary.ranks", "pass", [0, 1])
    store = Store.open(None, tmp_path)
    records = {record.id: record for record in store.records(kind="benchmark")}
    assert set(records) == {rank["run_id"] for rank in document["ranks"]}
    assert all(record.state is RunState.DONE for record in records.values())
    assert store.count(label=document["label"]) == 2
    assert store.row(document["ranks"][0]["run_id"]).note == document["sentence"]
    points = [store.points(rank["run_id"]) for rank in document["ranks"]]
    first = document["operations"][0]
    assert first["p50_s"] == [mine[0].stamp.p50_s for mine in points if mine[0].stamp is not None]
    assert first["skew"] == max(first["p50_s"]) / min(first["p50_s"])
    assert len(points[0]) == len(points[1]) == len({(op["workload"], op["batch"], op["prefix"]) for op in document["operations"]})
    assert all(rank["waited_s"] > 0 for rank in document["ranks"])
    store.close()


def test_a_rank_that_is_through_waits_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    done = torchrun(str(tmp_path / "uneven.py"), MET=str(tmp_path / "met"))
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"met{rank}").read_text() for rank in range(2)] == ["through", "through"]


def result(rank: int, medians: tuple[float, ...], verdict: Verdict = Verdict.PASS, sentence: str = "Pass.") -> RankResult:
    points = tuple(
        Point(
            workload="decode",
            layout="contiguous",
            hash_mode="none",
            batch=batch,
            prefix=8,
            stamp=Timing.of([value], items=1, bytes_moved=1),
        )
        for batch, value in enumerate(medians)
    )
    return RankResult(
        rank=rank, host=f"node{rank // 2}", device="cpu", run_id=f"r{rank}", verdict=verdict, sentence=sentence, waited_s=0.0, points=points
    )


def test_the_slowest_rank_and_the_skew_of_each_operation() -> None:
    results = [result(0, (1.0, 2.0, 1.0)), result(1, (1.5, 1.0, 2.0)), result(2, (1.0, 1.0))]
    rows = rank_rows(results)
    assert [(row.batch, row.p50_s, row.slowest_rank, row.skew) for row in rows] == [
        (0, (1.0, 1.5, 1.0), 1, 1.5), (1, (2.0, 1.0, 1.0), 0, 2.0),
    ]  # fmt: skip
    verdict, sentence = overall(results[:2], rank_rows(results[:2]))
    assert verdict is Verdict.PASS
    assert sentence == (
        "Pass: 2 ranks on 1 host; rank 1 is the slowest in 2 of 3 operations, the largest skew is 2.00 (stamp of decode batch 1, rank 0)."
    )


def test_the_worst_rank_decides_and_is_named() -> None:
    results = [
        result(0, (1.0,)),
        result(1, (), Verdict.PARTIAL, "Stopped."),
        result(2, (1.0,), Verdict.FAIL, "Fail: the gate did not hold."),
    ]
    verdict, sentence = overall(results, rank_rows(results))
    assert verdict is Verdict.FAIL
    assert sentence == "Fail: 3 ranks on 2 hosts; rank 2 is fail: Fail: the gate did not hold."


def test_a_start_without_torchruns_variables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="LOCAL_RANK must be a whole number as torchrun sets it, got 'first'"):
        run_rank(tmp_path, BenchmarkSpec(settings={}), {"LOCAL_RANK": "first", "RANK": "0"})
