"""Every variant of the catalogue on a running engine: seen where it can be seen, silent where it is out of reach."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find, reach
from kvcanary.faults.injectors import FaultRecord, Injector
from kvcanary.faults.memory import Group
from kvcanary.faults.stage import RELOAD_KINDS, stage
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.layout import FailReason, LaunchTag, RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.events import EventKind, MoveKind
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import EMPTY
from tests.serving.conftest import shared_prefixes, small_options

ALL, PARTIAL = RealKvHashMode.ALL, RealKvHashMode.PARTIAL
CONFIGS = {
    "plain": CanaryConfig(),
    "partial": CanaryConfig(real_data=PARTIAL),
    "all-sweep": CanaryConfig(real_data=ALL, sweep_interval=1),
    "asserts": CanaryConfig(verify_token_assert=True, write_input_assert=True),
    "v-half": CanaryConfig(real_data=PARTIAL, verify_v_half=True),
    "strict": CanaryConfig(real_data=ALL, strict=True),
}
IN_MEMORY = [(fault.kind, variant.name) for fault in CATALOGUE for variant in fault.variants if variant.in_memory]
START_STEP, STEPS_AFTER = 6, 8


def options_for(kind: str, variant: str) -> ServingOptions:
    """Without a tree, what is out of reach cannot come into reach by way of a later reader; some kinds need their own mechanism."""
    return stage(small_options(radix_cache=variant == "cached_only"), kind, variant)


def config_for(kind: str, name: str) -> CanaryConfig:
    """As in a campaign: records come back with their KV, so that only the fault speaks."""
    return replace(CONFIGS[name], records_follow=kind in RELOAD_KINDS)


def run(
    options: ServingOptions,
    config: CanaryConfig,
    injector: Injector | None,
    replay: FaultRecord | None = None,
    steps_after: int = STEPS_AFTER,
) -> list[StepReport]:
    """Serve until some steps after the fault; sweep as configured."""
    engine = ServingEngine(options, shared_prefixes(14, 1))
    executor = CanaryExecutor(options, config, choose_backend("auto")[0])
    reports: list[StepReport] = []
    for step in engine.steps():
        if injector is not None:
            injector.offer(engine, step)
        record = replay or (injector.record if injector else None)
        if record is not None and step.index > record.step + steps_after:
            break
        tree = engine.memory.tree
        due = config.sweep_interval and tree and step.index % config.sweep_interval == 0
        sweep = {Group.FULL: tree.walk(), Group.SWA: tree.walk(resident_only=True)} if due and tree else None
        reports.append(executor.run(step, record.ops if record else (), sweep))
    return reports


def seen(reports: list[StepReport]) -> bool:
    return any(report.reported for report in reports)


@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize(("kind", "variant"), IN_MEMORY)
def test_a_fault_is_seen_exactly_where_the_catalogue_says(kind: str, variant: str, config: str) -> None:
    injector = Injector(kind, variant, seed=3, start_step=START_STEP)
    reports = run(options_for(kind, variant), config_for(kind, config), injector)
    assert injector.record is not None, "no victim was found in the whole run"
    at_step = next(report for report in reports if report.index == injector.record.step)
    assert sum(at_step.changed.values()) > 0
    assert not seen([report for report in reports if report.index < injector.record.step])
    here = reach(find(kind, variant), CONFIGS[config])
    # A slot that only the tree holds is read again by chance; all others are read by the next forward of their request.
    if here.certain or not here.visible or variant != "cached_only":
        assert seen(reports) == here.visible


@pytest.mark.parametrize(
    ("kind", "variant", "config", "tags", "reasons"),
    [
        ("slot_alias", "wrong_cell", "plain", {"HEAD_K_FULL", "TAIL_K_FULL"}, FailReason.VERIFY_CHAIN_HASH | FailReason.VERIFY_POSITION),
        ("payload_bytes", "bit_flip", "partial", {"TAIL_K_FULL"}, FailReason.VERIFY_REAL_KV_HASH),
        ("payload_bytes", "v_row", "v-half", {"TAIL_V_FULL"}, FailReason.VERIFY_REAL_KV_HASH),
        ("payload_bytes", "cached_only", "all-sweep", {"SWEEP_K_FULL"}, FailReason.VERIFY_REAL_KV_HASH),
        ("token_swap", "sampler_exit", "asserts", {"HEAD_K_FULL", "TAIL_K_FULL"}, FailReason.WRITE_TOKEN),
        ("position_shift", "one_token", "plain", {"HEAD_K_FULL", "TAIL_K_FULL"}, FailReason.WRITE_POSITION),
        ("canary_memory", "head_record", "plain", {"HEAD_K_FULL"}, FailReason.VERIFY_CHAIN_HASH),
        ("swa_eviction", "reused_inside_window", "plain", {"HEAD_K_SWA", "TAIL_K_SWA"}, FailReason.VERIFY_CHAIN_HASH),
    ],
)
def test_the_first_reports_come_from_the_launches_that_sglang_expects(
    kind: str, variant: str, config: str, tags: set[str], reasons: FailReason
) -> None:
    injector = Injector(kind, variant, seed=3, start_step=START_STEP)
    reports = run(options_for(kind, variant), CONFIGS[config], injector)
    first = next(report for report in reports if report.violations)
    assert injector.record is not None
    assert first.index == injector.record.step
    assert {LaunchTag(row[0]).name for row in first.rows} == tags
    found = FailReason(int(np.bitwise_or.reduce(first.rows[:, 7])))
    assert found & reasons
    assert not found & ~(reasons | FailReason.VERIFY_POSITION)


def test_bytes_after_tail_are_reported_by_the_next_tail() -> None:
    injector = Injector("payload_bytes", "just_written", seed=3, start_step=START_STEP)
    reports = run(small_options(radix_cache=False), CONFIGS["partial"], injector)
    assert injector.record is not None
    (rid,) = injector.record.rids
    after = (s.index for s in ServingEngine(small_options(radix_cache=False), shared_prefixes(14, 1)).steps() if rid in s.rids)
    first = next(report for report in reports if report.violations)
    assert first.index == next(index for index in after if index > injector.record.step)
    assert {LaunchTag(row[0]) for row in first.rows} == {LaunchTag.TAIL_K_FULL}


@pytest.mark.parametrize(
    ("variant", "config", "first", "later"),
    [
        # SGLang expects verify_position of positions that were advanced too early; the +1 rule sees them a step sooner.
        ("position_ahead", "plain", FailReason.WRITE_POSITION, FailReason.VERIFY_POSITION),
        # And verify_token of a chunk end that took the prediction, from nothing but the token check.
        ("chunk_end_token", "asserts", FailReason(0), FailReason.VERIFY_TOKEN),
        ("chunk_end_token", "all-sweep", FailReason(0), FailReason(0)),
        ("chunk_end_after_retraction", "asserts", FailReason(0), FailReason.VERIFY_TOKEN),
        ("chunk_end_after_retraction", "all-sweep", FailReason(0), FailReason(0)),
    ],
)
def test_draft_bugs_are_reported_by_the_draft_runner_alone(variant: str, config: str, first: FailReason, later: FailReason) -> None:
    injector = Injector("draft_pool", variant, seed=7, start_step=START_STEP)
    options = options_for("draft_pool", variant)
    if variant != "chunk_end_after_retraction":
        # Prompts come first, in short chunks, so the victim is not read again at once; a roomy pool keeps it from being sent back.
        options = replace(options, pool_slot_count=1200)
    reports = run(options, CONFIGS[config], injector, steps_after=80)
    assert injector.record is not None
    assert not any(len(report.rows) for report in reports)

    def reasons(reports: list[StepReport]) -> FailReason:
        return FailReason(int(np.bitwise_or.reduce([row[7] for report in reports for row in report.draft_rows.tolist()] or [0])))

    assert reasons([report for report in reports if report.index <= injector.record.step]) == first
    after = [report for report in reports if report.index > injector.record.step]
    assert reasons(after) & (FailReason.VERIFY_POSITION | FailReason.VERIFY_TOKEN | FailReason.VERIFY_CHAIN_HASH) == later
    tags = {LaunchTag(row[0]) for report in after for row in report.draft_rows.tolist() if row[7] & later}
    assert tags == ({LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL} if later else set())


@pytest.mark.parametrize(("kind", "variant"), IN_MEMORY[::5])
def test_a_record_replays_the_same_rows_after_a_trip_through_json(kind: str, variant: str) -> None:
    injector = Injector(kind, variant, seed=9, start_step=START_STEP)
    options = options_for(kind, variant)
    config = replace(config_for(kind, "all-sweep"), verify_token_assert=True)
    first = run(options, config, injector)
    assert injector.record is not None
    stored = FaultRecord.from_dict(json.loads(json.dumps(injector.record.to_dict())))
    assert stored == injector.record
    again = run(options, config, None, replay=stored)
    assert [report.rows.tolist() for report in again] == [report.rows.tolist() for report in first]


@pytest.mark.parametrize(("variant", "in_output"), [("chunk_end_token", False), ("chunk_end_after_retraction", True)])
def test_a_chunk_end_lies_in_the_prompt_or_in_what_was_said_before_a_retraction(variant: str, in_output: bool) -> None:
    options, injector = options_for("draft_pool", variant), Injector("draft_pool", variant, seed=4, start_step=START_STEP)
    retracted: set[int] = set()
    for step in (engine := ServingEngine(options, shared_prefixes(14, 1))).steps():
        retracted |= {event.rid for event in step.events if event.kind is EventKind.RETRACT}
        if injector.offer(engine, step):
            break
    assert injector.record is not None
    (op,) = injector.record.ops
    request = next(request for request in engine.scheduler.by_row.values() if request.rid == op.rid)
    assert (op.position + 1 >= request.input_len) == in_output
    assert op.position + 1 < request.known_len
    assert op.rid in retracted or not in_output
    assert op.token != request.token_ids[op.position + 1]


@pytest.mark.parametrize("kind", sorted(RELOAD_KINDS))
def test_a_reload_is_damaged_in_the_forward_that_reads_it(kind: str) -> None:
    options = options_for(kind, "")
    (variant, *_) = (variant.name for fault in CATALOGUE if fault.kind == kind for variant in fault.variants)
    injector = Injector(kind, variant, seed=2, start_step=START_STEP)
    back: set[int] = set()
    for step in (engine := ServingEngine(options, shared_prefixes(14, 1))).steps():
        if injector.offer(engine, step):
            back = {int(slot) for move in step.moves if move.kind is MoveKind.RELOAD for slot in move.device_slots}
            read = step.req_to_token[step.req_pool_indices[list(step.rids).index(injector.record.rids[0])]] if injector.record else EMPTY
            break
    assert injector.record is not None
    assert set(injector.record.slots) <= back
    assert set(injector.record.slots) <= set(read.tolist())


def test_the_seed_decides_the_victim() -> None:
    def record(seed: int) -> FaultRecord:
        injector = Injector("payload_bytes", "bit_flip", seed=seed, start_step=START_STEP)
        run(small_options(), CanaryConfig(), injector)
        assert injector.record is not None
        return injector.record

    assert record(1) == record(1)
    assert len({record(seed).slots for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("kind", "variant", "message"),
    [
        ("cosmic_ray", "any", "fault must be one of late_write_after_free, .* got 'cosmic_ray'"),
        ("payload_bytes", "all_bits", "payload_bytes has no variant 'all_bits'; known: bit_flip,"),
        ("recurrent_state", "wrong_boundary", "recurrent_state.wrong_boundary cannot be injected: the state pool carries no record"),
    ],
)
def test_what_cannot_be_injected_says_so(kind: str, variant: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Injector(kind, variant, seed=0)


@pytest.mark.parametrize("change", [{"ops": [{"hook": "lunch"}]}, {"surprise": 1}, {"slots": None}])
def test_a_damaged_record_is_refused(change: dict[str, Any]) -> None:
    record = FaultRecord(kind="payload_bytes", variant="bit_flip", seed=1, step=2, ops=(), slots=(3,), rids=(1,)).to_dict()
    with pytest.raises(ConfigError, match="cannot be read"):
        FaultRecord.from_dict({**record, **change})
