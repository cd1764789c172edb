"""Runs of a campaign in several processes: the same runs in the same order, and no process that outlives the campaign."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from kvcanary.errors import JobError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab import campaign_pool
from kvcanary.lab.campaign import CONFIGS, CampaignPlan, CampaignRun, RunKey, run_campaign
from kvcanary.lab.campaign_pool import processes_for, run_in_processes

PLAN = CampaignPlan(
    faults=(("payload_bytes", "bit_flip"), ("slot_alias", "wrong_cell")),
    configs={"chain": CanaryConfig(), "partial": CONFIGS["partial"]},
    seeds=(0, 1, 2),
)


def slow(marks: str) -> Callable[[RunKey], CampaignRun]:
    """A run that takes long and leaves the number of its process."""

    def run(key: RunKey) -> CampaignRun:
        (Path(marks) / str(os.getpid())).touch()
        time.sleep(0.2)
        return CampaignRun(
            key=key, record=None, changed=0, latency_steps=None, corrupt_tokens=0, false_reports=0, reports={}, slots_flagged=0,
            requests_flagged=0, steps=torch.get_num_threads(), tokens=0, verified=0, canary_s=0.0,
        )  # fmt: skip

    return run


def test_the_same_runs_come_in_order_behind_the_first_of_each_configuration() -> None:
    name, keys = choose_backend("auto", "cpu")[0].name, PLAN.run_keys()
    alone, beside = ([replace(run, canary_s=0.0) for run in run_campaign(PLAN, name, processes=count)] for count in (1, 2))
    assert [run.key for run in alone] == keys
    firsts = [keys[3], keys[0]]
    assert [run.key for run in beside] == [*firsts, *(key for key in keys if key not in firsts)]
    assert sorted(beside, key=lambda run: keys.index(run.key)) == alone
    assert list(run_campaign(PLAN, name, keys, processes=2)) == []


def test_a_campaign_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    keys = [("kind", "variant", "config", seed) for seed in range(1000)]
    runs = run_in_processes(slow, (str(tmp_path),), keys, 2)
    assert (next(runs).key, next(runs).steps) == (keys[0], 1)
    runs.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert not any(psutil.pid_exists(int(mark.name)) for mark in tmp_path.iterdir())


def test_a_process_that_is_lost_ends_the_campaign_with_a_sentence(tmp_path: Path) -> None:
    runs = run_in_processes(slow, (str(tmp_path),), [("kind", "variant", "config", seed) for seed in range(1000)], 2)
    next(runs)
    os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)
    with pytest.raises(JobError, match="one of the 2 processes of the campaign was ended from outside"):
        list(runs)


@pytest.mark.parametrize(("signal_", "end"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_processes_end_with_the_campaign_and_not_by_a_wish_to_stop(tmp_path: Path, signal_: signal.Signals, end: bool) -> None:
    """Whoever wants the campaign to stop may ask all of its processes, which would lose the runs that they are at."""
    program = (
        "import signal; from tests.lab.test_campaign_pool import slow; from kvcanary.lab.campaign_pool import run_in_processes\n"
        "if __name__ == '__main__':\n"
        f"    [*run_in_processes(slow, ({str(tmp_path)!r},), [('k', 'v', 'c', seed) for seed in range(1000)], 1)]\n"
    )
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(program)
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, str(script)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}) as campaign:
        while not (marks := list(tmp_path.iterdir())):
            time.sleep(0.05)
            assert campaign.poll() is None
        own = psutil.Process(int(marks[0].name))
        (campaign if end else own).send_signal(signal_)
        if end:
            own.wait(20)
        else:
            time.sleep(0.5)
            assert own.is_running()
        campaign.kill()
    psutil.wait_procs([own], timeout=20)
    assert not own.is_running()


def test_processes_are_as_many_as_pay_and_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(campaign_pool, "free_bytes", lambda _: 64 << 30)
    assert [processes_for(runs) for runs in (0, 1, 399, 400, 1000, 100_000)] == [1, 1, 1, 2, 5, 8]
    monkeypatch.setattr(campaign_pool, "free_bytes", lambda _: (3 << 30) + 5)
    assert [processes_for(runs) for runs in (100_000, 400)] == [3, 2]
    monkeypatch.setattr(campaign_pool, "free_bytes", lambda _: 5)
    assert processes_for(100_000) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert processes_for(100_000) == 1
