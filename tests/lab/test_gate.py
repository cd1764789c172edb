"""The gate lets sound backends through and stops broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
from kvcanary.kernels.types import Availability, Launch, PlanInputs, StampInputs, VerifyPlan, WritePlan
from kvcanary.lab import benchmark
from kvcanary.lab.gate import run_gate
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunRecord, RunState, Verdict

Break = Callable[[Launch], None]


class Broken:
    """The reference with one defect behind a verify or a stamp."""

    name = "broken"

    def __init__(self, after_verify: Break | None = None, after_stamp: Break | None = None) -> None:
        self._sound, self._after_verify, self._after_stamp = get_backend("torch"), after_verify, after_stamp

    def available(self) -> Availability:
        return Availability(ok=True, reason="a test double")

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        self._sound.plan(inputs, verify_plan, write_plan)

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        self._sound.stamp(launch, plan, inputs)
        if self._after_stamp:
            self._after_stamp(launch)

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        self._sound.verify(launch, plan, check_tokens=check_tokens)
        if self._after_verify:
            self._after_verify(launch)


def drop_a_violation(launch: Launch) -> None:
    assert launch.coverage is not None
    assert launch.coverage.slot_flags is not None
    flagged = torch.nonzero(launch.coverage.slot_flags).flatten()
    if len(flagged):
        launch.coverage.slot_flags[flagged[0]] = 0


def report_a_sound_slot(launch: Launch) -> None:
    assert launch.coverage is not None
    assert launch.coverage.slot_flags is not None
    launch.coverage.slot_flags[-1] |= 1


def lose_a_row(launch: Launch) -> None:
    launch.ring.write_index.sub_(launch.ring.write_index.clamp(max=1))


def write_a_wrong_byte(launch: Launch) -> None:
    launch.buffer[-1, 31] ^= 1


def forget_the_count(launch: Launch) -> None:
    launch.counters.slot_runs[int(launch.tag)] -= 1


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_every_backend_that_runs_here_passes(name: str) -> None:
    try:
        backend = get_backend(name)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert [check for check in run_gate(backend, "cpu", seed=5) if not check.ok] == []


@pytest.mark.parametrize("defect", [drop_a_violation, report_a_sound_slot, lose_a_row, forget_the_count])
def test_a_defect_of_verify_is_caught(defect: Break) -> None:
    assert not all(check.ok for check in run_gate(Broken(after_verify=defect), "cpu", seed=5))


def test_a_defect_of_stamp_is_caught() -> None:
    assert not all(check.ok for check in run_gate(Broken(after_stamp=write_a_wrong_byte), "cpu", seed=5))


def test_a_failed_gate_is_the_result_and_nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    spec = BenchmarkSpec(
        settings={"pool_slot_count": 1000, "max_seq_len_per_req": 100, "req_to_token_pool_size": 2, "cuda_graph_max_bs": 2}
    )
    folder.write_record(RunRecord(id=tmp_path.name, kind="benchmark", state=RunState.RUNNING, spec={}, created_s=0.0))
    monkeypatch.setattr(benchmark, "choose_backend", lambda *_: (Broken(after_verify=drop_a_violation), "a test double"))
    benchmark.run_benchmark(folder, spec)
    record = folder.read_record()
    assert record.verdict is Verdict.FAIL
    assert "the gate did not hold, nothing was timed" in record.sentence
    assert folder.read_points() == []
