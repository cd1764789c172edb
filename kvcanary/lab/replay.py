"""One run of a campaign again, step by step: the pool after each forward, and the reports as SGLang prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvcanary import layout
from kvcanary.faults.injectors import FaultRecord, Injector
from kvcanary.faults.memory import Group
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign import CampaignPlan, RunKey, serving_options, sweep_due
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.layout import LaunchTag, SlotStatus
from kvcanary.serving.engine import OWNER_FREE, OWNER_PADDING, ServingEngine
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step
from kvcanary.serving.workload import synthetic


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReplayFrame:
    """One forward. status: uint8 [num_slots] of the full pool, layout.SlotStatus; a window pool has no place on it.

    changed: units that the fault changed here. reports: one line per ring row as SGLang prints it. strict_reports: what only kvcanary's
    strict checks say.
    """

    index: int
    requests: int
    tokens: int
    verified: int
    changed: int
    status: npt.NDArray[np.uint8]
    reports: tuple[str, ...]
    strict_reports: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replay:
    """All frames of a run in order; record is None when the fault found no victim."""

    record: FaultRecord | None
    frames: tuple[ReplayFrame, ...]


def replay(plan: CampaignPlan, key: RunKey, backend: Backend) -> Replay:
    """Serve the run of a key again, as run_one does."""
    kind, variant, config_name, seed = key
    config, options = plan.configs[config_name], serving_options(plan, kind, seed)
    engine = ServingEngine(options, synthetic(replace(plan.mix, seed=seed), options.vocab_size))
    executor, injector = CanaryExecutor(options, config, backend), Injector(kind, variant, seed=seed, start_step=plan.start_step)
    frames = []
    for step in engine.steps():
        injector.offer(engine, step)
        record = injector.record
        if record is not None and step.index > record.step + plan.steps_after:
            break
        sweep = sweep_due(engine, config, step.index)
        report = executor.run(step, record.ops if record else (), sweep)
        frames.append(_frame(step, report, record, engine.owners(), sweep))
    return Replay(record=injector.record, frames=tuple(frames))


def violation_line(row: Int64Array) -> str:
    """A ring row, int64 [8] in the order of layout.RING_FIELDS, as SGLang prints it."""
    tag, slot, position, token, expected, stored, aux, bits = (int(value) for value in row)
    return (
        f"kv_canary violation: launch_tag={LaunchTag(tag).name} fail_reason={'+'.join(layout.reason_labels(bits)) or 'none'} "
        f"slot_idx={slot} position={position} stored_token={token} expected_token={expected} "
        f"stored_chain_hash=0x{layout.to_unsigned(stored):016x} expected_aux=0x{layout.to_unsigned(aux):016x}"
    )


def _frame(
    step: Step, report: StepReport, record: FaultRecord | None, owners: Int64Array, sweep: Mapping[Group, SweepEntries] | None
) -> ReplayFrame:
    status = np.full(len(owners), SlotStatus.SKIPPED, dtype=np.uint8)
    status[owners == OWNER_FREE] = SlotStatus.FREE
    looked_at = [
        step.req_to_token[row, :prefix].astype(np.int64)
        for row, prefix in zip(step.req_pool_indices.tolist(), step.prefix_lens.tolist(), strict=True)
        if row != layout.PADDING_ROW
    ]
    if sweep is not None:
        looked_at.append(sweep[Group.FULL].slots)
    for slots in looked_at:
        status[slots] = SlotStatus.CLEAN
    status[owners == OWNER_PADDING] = SlotStatus.RESERVED
    if record is not None:
        hit = [op.slot for op in record.ops if op.group is Group.FULL and 0 <= op.slot < len(owners)]
        status[hit] = SlotStatus.INJECTED
    flagged = [int(row[1]) for row in report.rows if LaunchTag(int(row[0])).name.endswith("_FULL")]
    status[flagged] = SlotStatus.CORRUPTED
    return ReplayFrame(
        index=step.index,
        requests=step.num_real_rows,
        tokens=len(step.tokens),
        verified=report.verified,
        changed=sum(report.changed.values()),
        status=status,
        reports=tuple(violation_line(row) for row in report.rows),
        strict_reports=tuple(f"request {rid}, position {position}: the cell points at slot 0" for rid, position in report.zero_cells),
    )
