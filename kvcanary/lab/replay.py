"""One run of a campaign again, step by step: what each pool held after each forward, what belonged there, and what was reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.injectors import FaultRecord, Injector
from kvcanary.faults.memory import Group, GroupMemory, Strip
from kvcanary.faults.ops import FaultOp, OpKind
from kvcanary.kernels.types import Backend, VerifyPlan
from kvcanary.lab.campaign import CampaignPlan, RunKey, canary_config, requests_of, serving_options, sweep_due
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.lab.strict_checks import ViolationDetail
from kvcanary.lab.truth import Truth
from kvcanary.lab.violation_text import violation_line, violation_text
from kvcanary.layout import LaunchTag, RealKvHashMode, SlotStatus
from kvcanary.serving.engine import OWNER_FREE, OWNER_PADDING, ServingEngine
from kvcanary.serving.kv_bytes import UInt8Array
from kvcanary.serving.pool import EMPTY, Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step

# These break a table that one forward reads, and no slot: the mark goes as soon as nobody reads the broken cell.
_TABLE_KINDS = frozenset({OpKind.SET_TABLE, OpKind.SET_MAPPING})
# These name a request's token and not a slot.
_TOKEN_KINDS = frozenset({OpKind.SKIP_BYTES, OpKind.SWAP_TOKEN, OpKind.SHIFT_POSITION, OpKind.REDIRECT_WRITE, OpKind.REDIRECT_BYTES})
_GOES_ELSEWHERE = frozenset({OpKind.SET_TABLE, OpKind.REDIRECT_WRITE, OpKind.REDIRECT_BYTES})
_SWEPT_BY_NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What a launch verifies, int64 [n] each, as the forward read it, damaged cells included.

    rids is -1 for a sweep, prev_slots -1 at a chain head, expected_tokens -1 where no token is expected.
    """

    rids: Int64Array
    positions: Int64Array
    slots: Int64Array
    prev_slots: Int64Array
    expected_tokens: Int64Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoolView:
    """One buffer group after a forward, in its own slot numbers.

    status: uint8 [num_slots], layout.SlotStatus. owners: int64 [num_slots] as ServingEngine.owners. injected, reported: slots that are
    damaged on purpose or read through a damaged cell, and slots of this step's reports, int64 [m]. records: int64 [num_slots, 4] per
    canary buffer. kv: uint8 [num_slots, row_bytes] per strip; hashed: the ranges that a buffer's real-KV hash covers, as strip and first
    byte, read_bytes each. entries: HEAD and TAIL; swept: SWEEP, empty where none was due; written: this forward's tokens, where the engine
    meant them to go. rows: int64 [n, 8], what the ring kept of this step about this group.
    """

    status: UInt8Array
    owners: Int64Array
    injected: Int64Array
    reported: Int64Array
    records: Mapping[str, Int64Array]
    kv: Mapping[Strip, UInt8Array]
    hashed: Mapping[str, tuple[tuple[Strip, int], ...]]
    read_bytes: int
    rows: Int64Array
    truth: Truth
    entries: Entries
    swept: Entries
    written: Entries


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReplayFrame:
    """One forward. changed: units that the fault changed here. freed: slots that were in use after the forward before and no longer are.

    rows, draft_rows: int64 [n, 8], what the rings of the target's and of the draft model's canary kept of this step; total, draft_total:
    violations that each has counted so far. strict_reports: what only kvcanary's strict checks say, details what they add to rows. events:
    how often each kind of event happened before the forward.
    """

    index: int
    mode: str
    requests: int
    tokens: int
    verified: int
    changed: int
    freed: int
    rows: Int64Array
    draft_rows: Int64Array
    total: int
    draft_total: int
    ring_capacity: int
    strict_reports: tuple[str, ...]
    details: tuple[str, ...]
    events: Mapping[str, int]
    pools: Mapping[Group, PoolView]

    @property
    def report_count(self) -> int:
        """Ring rows and strict reports of this step."""
        return len(self.rows) + len(self.draft_rows) + len(self.strict_reports)

    @property
    def reports(self) -> tuple[str, ...]:
        """The first line of each ring row as SGLang prints it."""
        return tuple(violation_line(row.tolist()) for row in (*self.rows, *self.draft_rows))

    @property
    def report_texts(self) -> tuple[str, ...]:
        """Each ring row whole, as SGLang prints it when it looks at the ring after this step."""
        return self._texts(self.rows, self.total)

    @property
    def draft_texts(self) -> tuple[str, ...]:
        """The same of the draft model's canary."""
        return self._texts(self.draft_rows, self.draft_total)

    def _texts(self, rows: Int64Array, total: int) -> tuple[str, ...]:
        overflow = total > self.ring_capacity
        return tuple(violation_text(row.tolist(), total=total, ring_overflow=overflow, step=self.index) for row in rows)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replay:
    """All frames of a run in order; record is None when the fault found no victim. group: the pool that the fault is about."""

    key: RunKey
    config: CanaryConfig
    record: FaultRecord | None
    group: Group
    frames: tuple[ReplayFrame, ...]

    @property
    def first_report(self) -> int | None:
        """Step of the first report at or after the fault."""
        if self.record is None:
            return None
        return next((frame.index for frame in self.frames if frame.index >= self.record.step and frame.report_count), None)


def replay(plan: CampaignPlan, key: RunKey, backend: Backend) -> Replay:
    """Serve the run of a key again, as run_one does."""
    kind, variant, config_name, seed = key
    config, options = canary_config(plan, kind, config_name), serving_options(plan, (kind, variant), seed)
    engine = ServingEngine(options, requests_of(plan, options, seed))
    executor, injector = CanaryExecutor(options, config, backend), Injector(kind, variant, seed=seed, start_step=plan.start_step)
    camera = _Camera(executor)
    for step in engine.steps():
        injector.offer(engine, step)
        record = injector.record
        if record is not None and step.index > record.step + plan.steps_after:
            break
        sweep = sweep_due(engine, config, step.index)
        camera.take(step, executor.run(step, record.ops if record else (), sweep), record, engine.owners(), sweep)
    return Replay(key=key, config=config, record=injector.record, group=_group_of(injector.record), frames=tuple(camera.frames))


def _group_of(record: FaultRecord | None) -> Group:
    ops = () if record is None else record.ops
    if any(op.group is Group.DRAFT for op in ops):
        return Group.DRAFT
    return Group.SWA if any(op.group is Group.SWA or op.kind is OpKind.SET_MAPPING for op in ops) else Group.FULL


class _Camera:
    """Takes a frame of each forward, and remembers what a single one does not show: the right contents, and which damage still stands."""

    def __init__(self, executor: CanaryExecutor) -> None:
        self.frames: list[ReplayFrame] = []
        self._executor = executor
        num_slots = executor.memories[Group.FULL].num_slots
        self._truth: dict[Group, Truth] = {group: Truth.empty(num_slots) for group in executor.memories if group is not Group.SWA}
        self._damaged: dict[Group, set[int]] = {group: set() for group in executor.memories}
        self._owners: Int64Array | None = None
        self._total = self._draft_total = 0

    def take(
        self, step: Step, report: StepReport, record: FaultRecord | None, owners: Int64Array, sweep: Mapping[Group, SweepEntries] | None
    ) -> None:
        """The frame of a forward that has run and is not completed yet."""
        for group, truth in self._truth.items():
            truth.follow(step, draft=group is Group.DRAFT)
        self._draft_total += len(report.draft_rows)
        self._total += report.violations - len(report.draft_rows)
        freed = 0 if self._owners is None else int(((self._owners != OWNER_FREE) & (owners == OWNER_FREE)).sum())
        self._owners = owners
        struck = self._struck(step, report, record)
        self.frames.append(
            ReplayFrame(
                index=step.index,
                mode=str(step.mode),
                requests=step.num_real_rows,
                tokens=len(step.tokens),
                verified=report.verified,
                changed=sum(report.changed.values()),
                freed=freed,
                rows=report.rows,
                draft_rows=report.draft_rows,
                total=self._total,
                draft_total=self._draft_total,
                ring_capacity=self._executor.config.ring_capacity,
                strict_reports=_strict_reports(report),
                details=tuple(_detail(detail) for detail in report.details),
                events=dict(Counter(str(event.kind) for event in step.events)),
                pools={
                    group: self._pool(group, memory, step, report, owners, sweep, struck[group])
                    for group, memory in self._executor.memories.items()
                },
            )
        )

    def _struck(self, step: Step, report: StepReport, record: FaultRecord | None) -> dict[Group, set[int]]:
        """Slots to mark: damage that no later forward has written over, and cells that this forward reads through."""
        for group, slots in self._damaged.items():
            slots.difference_update(_in_group(group, step, step.out_slots).tolist())
        passing: dict[Group, set[int]] = {group: set() for group in self._damaged}
        for index, units in report.changed.items():
            if units and record is not None:
                op = record.ops[index]
                marks = passing if op.kind in _TABLE_KINDS else self._damaged
                for group, slot in _slots_of(op, step, tuple(self._damaged)):
                    marks[group].add(slot)
        return {group: slots | passing[group] for group, slots in self._damaged.items()}

    def _pool(
        self,
        group: Group,
        memory: GroupMemory,
        step: Step,
        report: StepReport,
        owners: Int64Array,
        sweep: Mapping[Group, SweepEntries] | None,
        struck: set[int],
    ) -> PoolView:
        if group is not Group.SWA or step.full_to_swa is None:
            truth, mine = self._truth[group].copy(), owners
        else:
            truth = self._truth[Group.FULL].translated(step.full_to_swa, memory.num_slots)
            mine = _window_owners(step.full_to_swa, owners, memory.num_slots)
        entries = _entries(step, self._executor.verify_plans[group], step.window if group is Group.SWA else 0)
        swept = _swept(group, step, sweep)
        rows = _rows_of(group, report)
        reported = np.unique(rows[:, 1])
        injected = np.array(sorted(slot for slot in struck if mine[slot] != OWNER_FREE), dtype=np.int64)
        status = np.full(memory.num_slots, SlotStatus.SKIPPED, dtype=np.uint8)
        status[mine == OWNER_FREE] = SlotStatus.FREE
        for looked_at in (entries, swept):
            status[looked_at.slots[looked_at.slots > layout.PADDING_SLOT]] = SlotStatus.CLEAN
        status[mine == OWNER_PADDING] = SlotStatus.RESERVED
        status[injected], status[reported] = SlotStatus.INJECTED, SlotStatus.CORRUPTED
        return PoolView(
            status=status,
            owners=mine,
            injected=injected,
            reported=reported,
            records={name: buffer.view("<i8").astype(np.int64) for name, buffer in memory.stamps.items()},
            kv={strip: rows.copy() for strip, rows in memory.kv.items()},
            hashed={name: memory.parts(name) for name in memory.stamps},
            read_bytes=0 if memory.hash_mode is RealKvHashMode.NONE else memory.read_bytes,
            rows=rows,
            truth=truth,
            entries=entries,
            swept=swept,
            written=_written(group, step, truth, step.draft_tokens if group is Group.DRAFT else step.tokens),
        )


def _slots_of(op: FaultOp, step: Step, groups: tuple[Group, ...]) -> list[tuple[Group, int]]:
    """The slots that an operation is about, in every group's own numbers."""
    if op.kind not in _TOKEN_KINDS and op.kind not in _TABLE_KINDS:
        return [(op.group, op.slot)]
    full = [op.slot] if op.kind in _GOES_ELSEWHERE or op.kind is OpKind.SET_MAPPING else []
    places = np.flatnonzero(step.rids == op.rid)
    if places.size and op.kind is not OpKind.SET_MAPPING:
        full.append(int(step.req_to_token[step.req_pool_indices[places[0]], op.position]))
    found = []
    concerned = [group for group in groups if (group is Group.DRAFT) == (op.group is Group.DRAFT)]
    for group in concerned:
        found += [(group, slot) for slot in _in_group(group, step, np.array(full, dtype=np.int64)).tolist() if slot >= 0]
    return found


def _in_group(group: Group, step: Step, slots: Int64Array) -> Int64Array:
    """Full slots int64 [n] in a group's own numbers, as the engine means them."""
    return slots if group is not Group.SWA or step.full_to_swa is None else step.full_to_swa[slots]


def _rows_of(group: Group, report: StepReport) -> Int64Array:
    """The ring rows about a group; the draft model's canary calls its only group FULL."""
    if group is Group.DRAFT:
        return report.draft_rows
    here = [LaunchTag(tag).name.endswith(f"_{group.name}") for tag in report.rows[:, 0].tolist()]
    rows: Int64Array = report.rows[np.array(here, dtype=bool)]
    return rows


def _strict_reports(report: StepReport) -> tuple[str, ...]:
    cells = [f"request {rid}, position {position}: the cell points at slot 0" for rid, position in report.zero_cells]
    seeds = [f"request {rid} goes on from slot 0 after position {position}" for rid, position in report.zero_seeds]
    return (*cells, *seeds)


def _detail(detail: ViolationDetail) -> str:
    reader = "a sweep or a write" if detail.rid < 0 else f"request {detail.rid}"
    position = "" if detail.expected_position < 0 else f", expected position {detail.expected_position}"
    stored, actual = (layout.to_unsigned(value) for value in (detail.stored_real_hash, detail.actual_real_hash))
    return (
        f"{LaunchTag(detail.tag).name} slot {detail.slot}: seen by {reader}{position}, real_kv_hash stored 0x{stored:016x}, "
        f"of the bytes 0x{actual:016x}"
    )


def _window_owners(full_to_swa: Int64Array, owners: Int64Array, num_slots: int) -> Int64Array:
    mine = np.full(num_slots, OWNER_FREE, dtype=np.int64)
    full = np.flatnonzero(full_to_swa[: len(owners)] > 0)
    mine[full_to_swa[full]] = owners[full]
    mine[: int((owners == OWNER_PADDING).sum())] = OWNER_PADDING
    return mine


def _entries(step: Step, plan: VerifyPlan, window: int) -> Entries:
    """The active entries of a plan with the request that each belongs to: requests in batch order, positions ascending."""
    real = step.req_pool_indices != layout.PADDING_ROW
    counts = step.prefix_lens[real]
    counts = np.minimum(counts, window) if window else counts
    active = int(plan.num_valid.item()) if plan.enable.item() else 0
    columns = (plan.expected_positions, plan.slot_indices, plan.prev_slot_indices, plan.expected_tokens)
    copied: list[npt.NDArray[np.int64]] = [column[:active].numpy().astype(np.int64) for column in columns]
    return Entries(np.repeat(step.rids[real], counts)[:active], *copied)


def _written(group: Group, step: Step, truth: Truth, tokens: Int64Array | None) -> Entries:
    assert tokens is not None, "a step without a draft forward has no draft tokens"
    real = step.req_pool_indices != layout.PADDING_ROW
    slots = _in_group(group, step, step.out_slots)
    return Entries(
        np.repeat(step.rids[real], step.extend_seq_lens[real]), step.positions.copy(), slots, truth.prev_slots[slots], tokens.copy()
    )


def _swept(group: Group, step: Step, sweep: Mapping[Group, SweepEntries] | None) -> Entries:
    found = None if sweep is None else sweep.get(group)
    if found is None:
        return Entries(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
    count = len(found.slots)
    slots, before = (_in_group(group, step, values) for values in (found.slots, np.maximum(found.prev_slots, 0)))
    return Entries(
        np.full(count, _SWEPT_BY_NOBODY, dtype=np.int64),
        found.positions,
        slots,
        np.where(found.prev_slots < 0, found.prev_slots, before),
        np.full(count, layout.NO_EXPECTED_TOKEN, dtype=np.int64),
    )
