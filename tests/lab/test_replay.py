"""Replays: the engine's truth against what was stored, marks on the right slots, and the same reports as the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.memory import Group, Strip
from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign import CampaignPlan, run_one
from kvcanary.lab.replay import Replay, ReplayFrame, replay
from kvcanary.layout import RealKvHashMode, SlotStatus
from kvcanary.serving.engine import OWNER_FREE, OWNER_PADDING
from kvcanary.serving.kv_bytes import kv_rows

CONFIGS = {"all": CanaryConfig(real_data=RealKvHashMode.ALL, sweep_interval=4), "chain": CanaryConfig()}
PLAN = CampaignPlan(faults=(("payload_bytes", "bit_flip"),), configs=CONFIGS, seeds=(0,))


@pytest.fixture(scope="module")
def backend() -> Backend:
    return choose_backend("auto", "cpu")[0]


def played(backend: Backend, kind: str, variant: str, config: str = "all") -> Replay:
    return replay(replace(PLAN, faults=((kind, variant),)), (kind, variant, config, 0), backend)


def at_fault(found: Replay) -> ReplayFrame:
    assert found.record is not None
    return next(frame for frame in found.frames if frame.index == found.record.step)


@pytest.mark.parametrize("kind", ["payload_bytes.bit_flip", "swa_eviction.reused_inside_window"])
def test_before_the_fault_every_pool_holds_what_the_engine_says(backend: Backend, kind: str) -> None:
    found = played(backend, *kind.split("."))
    assert found.record is not None
    checked = 0
    for frame in found.frames:
        if frame.index >= found.record.step:
            break
        for pool in frame.pools.values():
            live = np.flatnonzero((pool.owners != OWNER_FREE) & (pool.owners != OWNER_PADDING) & (pool.truth.positions >= 0))
            records = pool.records["k_tail"][live]
            assert (records[:, 0] == pool.truth.tokens[live]).all()
            assert (records[:, 1] == pool.truth.positions[live]).all()
            assert (records[:, 2].view(np.uint64) == pool.truth.prev_hashes[live]).all()
            assert (pool.kv[Strip.V0][live] == kv_rows(pool.truth.tokens[live], pool.truth.positions[live], 1, 64)).all()
            assert not pool.injected.size
            checked += len(live)
    assert checked > 1000


def test_a_replay_reports_what_the_run_reported(backend: Backend) -> None:
    found = played(backend, "payload_bytes", "bit_flip")
    run = run_one(PLAN, found.key, backend)
    assert found.record is not None
    assert found.record == run.record
    assert found.first_report == found.record.step + (run.latency_steps or 0)
    assert sum(frame.changed for frame in found.frames) == run.changed
    assert sum(frame.verified for frame in found.frames) == run.verified
    assert sum(len(frame.rows) for frame in found.frames) == sum(run.reports.values())


def test_a_flipped_bit_marks_one_slot_until_it_is_written_again(backend: Backend) -> None:
    found = played(backend, "payload_bytes", "bit_flip")
    frame = at_fault(found)
    pool = frame.pools[Group.FULL]
    (slot,) = found.record.slots if found.record else ()
    assert pool.injected.tolist() == pool.reported.tolist() == [slot]
    assert pool.status[slot] == SlotStatus.CORRUPTED
    marked = []
    for later in found.frames[frame.index :]:
        pool = later.pools[Group.FULL]
        if pool.owners[slot] != OWNER_FREE:
            right = kv_rows(pool.truth.tokens[[slot]], pool.truth.positions[[slot]], 0, 64)
            marked.append(slot in pool.injected)
            assert marked[-1] == bool((pool.kv[Strip.K0][[slot]] != right).any())
    assert set(marked) == {True, False}


def test_a_wrong_cell_marks_the_slot_read_and_the_slot_meant(backend: Backend) -> None:
    found = played(backend, "slot_alias", "wrong_cell")
    assert found.record is not None
    pool, op = at_fault(found).pools[Group.FULL], found.record.ops[0]
    entry = np.flatnonzero((pool.entries.rids == op.rid) & (pool.entries.positions == op.position))
    assert pool.entries.slots[entry].tolist() == [op.slot]
    meant = pool.entries.prev_slots[entry] + 0
    assert op.slot in pool.injected
    assert len(pool.injected) == 2
    assert meant[0] not in pool.injected
    successor = pool.entries.slots[entry[0] + 1]
    assert set(pool.reported) == {op.slot, successor}
    gone = next((frame for frame in found.frames if frame.index > found.record.step and op.rid not in frame.pools[Group.FULL].owners), None)
    assert gone is None or not gone.pools[Group.FULL].injected.size


def test_a_window_fault_is_shown_on_the_window_pool(backend: Backend) -> None:
    found = played(backend, "swa_eviction", "reused_inside_window")
    assert found.group is Group.SWA
    frame = at_fault(found)
    assert found.record is not None
    assert frame.pools[Group.SWA].injected.tolist() == list(found.record.slots)
    assert found.record.slots[0] in frame.pools[Group.SWA].reported
    assert not frame.pools[Group.FULL].reported.size


def test_what_a_chain_only_canary_cannot_see_is_marked_and_never_reported(backend: Backend) -> None:
    found = played(backend, "payload_bytes", "bit_flip", "chain")
    assert found.first_report is None
    assert at_fault(found).pools[Group.FULL].status[found.record.slots[0] if found.record else 0] == SlotStatus.INJECTED


def test_frees_are_slots_that_nobody_holds_any_more(backend: Backend) -> None:
    found = played(backend, "payload_bytes", "bit_flip")
    for before, after in zip(found.frames, found.frames[1:], strict=False):
        held = before.pools[Group.FULL].owners != OWNER_FREE
        assert after.freed == int((held & (after.pools[Group.FULL].owners == OWNER_FREE)).sum())


def test_the_draft_models_pool_has_a_truth_and_reports_of_its_own(backend: Backend) -> None:
    found = played(backend, "draft_pool", "position_ahead")
    assert found.group is Group.DRAFT
    frame = at_fault(found)
    pool = frame.pools[Group.DRAFT]
    assert pool.injected.size == 1
    assert pool.injected[0] in pool.reported
    assert (len(frame.rows), len(frame.draft_rows) > 0) == (0, True)
    assert frame.draft_texts[0].startswith("kv_canary violation: launch_tag=")
    assert not frame.pools[Group.FULL].injected.size
    before = found.frames[found.frames.index(frame) - 1].pools[Group.DRAFT]
    live = np.flatnonzero((before.owners != OWNER_FREE) & (before.owners != OWNER_PADDING) & (before.truth.positions >= 0))
    records = before.records["k_tail"][live]
    assert live.size > 50
    assert (records[:, 0] == before.truth.tokens[live]).all()
    assert (records[:, 2].view(np.uint64) == before.truth.prev_hashes[live]).all()


def test_strict_checks_speak_beside_sglangs_reports(backend: Backend) -> None:
    found = replay(
        replace(PLAN, faults=(("slot_alias", "cell_to_slot_0"),), configs={"strict": CanaryConfig(strict=True)}),
        ("slot_alias", "cell_to_slot_0", "strict", 0),
        backend,
    )
    frame = at_fault(found)
    assert not frame.reports
    assert frame.report_count == 1
    assert frame.strict_reports[0].endswith("the cell points at slot 0")
