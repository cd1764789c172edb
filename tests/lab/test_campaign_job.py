"""A campaign as a job: what a stopped one has left over is run by the next."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs, run_campaign_job
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


def test_what_is_no_run_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="continues must be the id of a campaign"):
        plan_of(CampaignSpec(continues="../../etc"))
