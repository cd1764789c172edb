"""A campaign as a job: what a stopped one has left over is run by the next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab import campaign_job
from kvcanary.lab.benchmark import StopRequested
from kvcanary.lab.campaign import CampaignPlan, CampaignRun, RunKey
from kvcanary.lab.campaign_job import CampaignSpec, conclude, plan_of, read_runs, run_campaign_job
from kvcanary.lab.campaign_tally import RECORDS_LEFT_BEHIND, UNEXPLAINED
from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict

SPEC = CampaignSpec(faults=["payload_bytes.bit_flip", "payload_bytes.v_row"], configs=["chain only", "partial"], seeds=2)


def folder_of(path: Path, spec: CampaignSpec) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    folder.write_record(RunRecord(id=path.name, kind="campaign", state=RunState.RUNNING, spec=asdict(spec), created_s=1.0))
    return folder


def test_a_campaign_goes_on_with_what_an_earlier_one_left_over(tmp_path: Path) -> None:
    whole = folder_of(tmp_path / "20260102-030405-campaign", SPEC)
    run_campaign_job(whole, SPEC)
    lines = (whole.path / "campaign.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 8

    stopped = folder_of(tmp_path / "20260102-030406-campaign", SPEC)
    # The third line was cut off by a crash: that run is missing too.
    (stopped.path / "campaign.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    more = CampaignSpec(**{**asdict(SPEC), "continues": stopped.path.name})
    rest = folder_of(tmp_path / "20260102-030407-campaign", more)
    run_campaign_job(rest, more)
    text = (rest.path / "campaign.jsonl").read_text().splitlines(keepends=True)
    assert text[:2] == lines[:2]
    assert [run.key for run in read_runs(rest.path)] == plan_of(SPEC).run_keys()
    record = rest.read_record()
    assert (record.verdict, whole.read_record().verdict) == (Verdict.PASS, Verdict.PASS)
    assert not record.sentence.startswith("Stopped")
    assert len(read_runs(stopped.path)) == 2


def test_only_runs_of_the_new_plan_are_taken_over(tmp_path: Path) -> None:
    earlier = folder_of(tmp_path / "20260102-030405-campaign", SPEC)
    run_campaign_job(earlier, SPEC)
    narrow = CampaignSpec(**{**asdict(SPEC), "configs": ["partial"], "continues": earlier.path.name})
    folder = folder_of(tmp_path / "20260102-030406-campaign", narrow)
    run_campaign_job(folder, narrow)
    assert {run.key[2] for run in read_runs(folder.path)} == {"partial"}


def test_runs_of_another_workload_are_not_taken_over(tmp_path: Path) -> None:
    earlier = folder_of(tmp_path / "20260102-030405-campaign", SPEC)
    other = CampaignSpec(**{**asdict(SPEC), "workload": "agents", "continues": earlier.path.name})
    with pytest.raises(ConfigError, match="served another workload than 'agents'"):
        run_campaign_job(folder_of(tmp_path / "20260102-030406-campaign", other), other)


def test_a_stop_keeps_what_has_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "20260102-030405-campaign", SPEC)
    whole = campaign_job.run_campaign

    def stopped_after_three(plan: CampaignPlan, backend: str, done: list[RunKey]) -> Iterator[CampaignRun]:
        for count, run in enumerate(whole(plan, backend, done), start=1):
            if count == 3:
                folder.stop_file.touch()
            yield run

    monkeypatch.setattr(campaign_job, "run_campaign", stopped_after_three)
    monkeypatch.setattr(campaign_job, "_PROGRESS_S", 0.0)
    with pytest.raises(StopRequested):
        run_campaign_job(folder, SPEC)
    record = folder.read_record()
    assert len(read_runs(folder.path)) == 3
    assert record.verdict is Verdict.PARTIAL
    assert record.sentence.startswith("Stopped after 3 of 8 runs. For these faults,")


def test_the_verdict_fails_only_for_what_nothing_explains() -> None:
    plan = plan_of(SPEC)
    key = ("payload_bytes", "bit_flip", "partial", 0)
    run = CampaignRun(
        key=key, record=None, changed=1, latency_steps=0, corrupt_tokens=0, false_reports=0, reports={}, slots_flagged=1, requests_flagged=1,
        steps=9, tokens=9, verified=9, canary_s=0.1,
    )  # fmt: skip
    every = [replace(run, key=key) for key in plan.run_keys() if key[1] == "bit_flip" and key[2] == "partial"]
    silent = [replace(run, key=key, latency_steps=None) for key in plan.run_keys() if key not in {one.key for one in every}]
    assert conclude(plan, every + silent)[0] is Verdict.PASS
    assert conclude(plan, every)[0] is Verdict.PARTIAL

    known = replace(every[0], false_reports=4, false_causes={RECORDS_LEFT_BEHIND: 4})
    verdict, text = conclude(plan, [known, *every[1:], *silent])
    assert verdict is Verdict.PASS
    assert text.startswith("Reported without a fault: 4 KV came back from the host without its records.")
    strange = replace(every[0], false_reports=2, false_causes={UNEXPLAINED: 2})
    assert conclude(plan, [strange, *every[1:], *silent])[0] is Verdict.FAIL

    impossible = replace(silent[0], latency_steps=3)
    verdict, text = conclude(plan, [*every, impossible, *silent[1:]])
    assert verdict is Verdict.FAIL
    assert text.startswith("1 reports of faults that should be out of reach.")


def test_runs_stored_before_the_newer_counts_are_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "20260102-030405-campaign", SPEC)
    run_campaign_job(folder, SPEC)
    path = folder.path / "campaign.jsonl"
    newer = ("latency_tokens", "false_causes", "rows_lost", "skipped", "coverage")
    older = [{name: value for name, value in json.loads(line).items() if name not in newer} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in older))
    assert [run.coverage for run in read_runs(folder.path)] == [None] * 8


def test_what_is_no_run_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="continues must be the id of a campaign"):
        plan_of(CampaignSpec(continues="../../etc"))
