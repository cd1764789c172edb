"""What a campaign serves: traces made small with their sharing kept, bad rows named, and every named load with victims."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvcanary.errors import ConfigError, ImportTextError
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import run_one
from kvcanary.lab.campaign_job import CampaignSpec, plan_of
from kvcanary.lab.campaign_load import LOAD_WORDS, MEDIUM_POOL, SMALL, TraceSample, sample_trace
from kvcanary.lab.replay import replay

MOONCAKE = [
    json.dumps({"timestamp": 3000 * index, "input_length": 4 * 512 - 9, "output_length": 33 + index, "hash_ids": [7, 8, 9, 100 + index]})
    for index in range(12)
]
AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"2024-05-10 00:00:{s:02d}.0000010,{300 + s},{20 + s}" for s in range(20))]
BURSTGPT = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *(f"{s},m,{90 + s},{9},{99 + s},api" for s in range(9))]


def test_a_trace_is_made_small_and_keeps_its_sharing() -> None:
    sample, problems = sample_trace(MOONCAKE, "day.jsonl")
    assert (sample.kind, len(sample.rows), sample.longest, list(problems)) == ("mooncake", 12, 4 * 512 - 9 + 44, [])
    assert sample.scale == 8
    assert sample.longest / 8 <= MEDIUM_POOL.longest_request < sample.longest / 4
    first, second, *_ = sample.requests(1000, seed=1)
    assert len(first.prompt) == -(-(4 * 512 - 9) // 8)
    shared = 3 * 512 // 8
    assert (first.prompt[:shared] == second.prompt[:shared]).all()
    assert (first.prompt[shared:] != second.prompt[shared:]).any()
    assert second.arrival_s == pytest.approx(3.0 / 8)
    other = next(sample.requests(1000, seed=2))
    assert (np.asarray(other.prompt) != np.asarray(first.prompt)).any()


@pytest.mark.parametrize(("lines", "kind", "rows"), [(AZURE, "azure", 20), (BURSTGPT, "burstgpt", 9)])
def test_the_other_formats_share_nothing(lines: list[str], kind: str, rows: int) -> None:
    sample, _ = sample_trace(lines, "trace.csv")
    assert (sample.kind, len(sample.rows), sample.scale) == (kind, rows, 1)
    first, second, *_ = sample.requests(50_000, seed=0)
    assert (first.prompt[:20] != second.prompt[:20]).any()


def test_bad_rows_are_named_and_a_later_part_can_be_taken() -> None:
    sample, problems = sample_trace([*AZURE[:3], "yesterday,1,1", *AZURE[3:]], "trace.csv", first=3, speed=4.0)
    assert [str(problem) for problem in problems] == ["line 4: TIMESTAMP must be a date and time, got 'yesterday'"]
    assert sample.rows[0][:3] == (0.0, 302, 22)
    assert next(iter(sample.requests(1000, 0))).arrival_s == 0.0
    assert [request.arrival_s for request in sample.requests(1000, 0)][1] == pytest.approx(0.25)


def test_a_trace_survives_its_stored_form() -> None:
    sample, _ = sample_trace(MOONCAKE, "day.jsonl", speed=2.0)
    assert TraceSample.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample


@pytest.mark.parametrize(
    ("lines", "first", "error", "message"),
    [
        (["hello"], 1, ImportTextError, "no known trace"),
        (AZURE, 21, ConfigError, "none from request 21 on"),
        ([AZURE[0], "x,1,1"], 1, ConfigError, "1 rows cannot be read, the first is line 2: TIMESTAMP"),
        (AZURE, 0, ConfigError, "first request must be at least 1, got 0"),
    ],
)
def test_a_trace_without_requests_says_why(lines: list[str], first: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sample_trace(lines, "trace.csv", first=first)


@pytest.mark.parametrize("workload", list(LOAD_WORDS))
def test_every_load_has_victims(workload: str) -> None:
    plan = plan_of(
        CampaignSpec(faults=["payload_bytes.bit_flip", "slot_alias.wrong_cell"], configs=["partial"], seeds=1, workload=workload)
    )
    for key in plan.run_keys():
        run = run_one(plan, key, choose_backend("auto", "cpu")[0])
        assert run.record is not None
        assert (run.detected, run.latency_steps, run.false_reports) == (True, 0, 0)
    assert (plan.options == MEDIUM_POOL) == (workload != SMALL)


def test_a_trace_is_run_and_replayed_alike() -> None:
    sample, _ = sample_trace(MOONCAKE, "day.jsonl", speed=16.0)
    plan = plan_of(CampaignSpec(faults=["payload_bytes.bit_flip"], configs=["partial"], seeds=1, trace=sample.to_dict()))
    key, backend = ("payload_bytes", "bit_flip", "partial", 0), choose_backend("auto", "cpu")[0]
    run, played = run_one(plan, key, backend), replay(plan, key, backend)
    assert run.record is not None
    assert played.record == run.record
    assert sum(frame.tokens for frame in played.frames) == run.tokens > 500


def test_an_unknown_load_is_refused() -> None:
    with pytest.raises(ConfigError, match="workload must be among small; chat"):
        plan_of(CampaignSpec(workload="rain"))
