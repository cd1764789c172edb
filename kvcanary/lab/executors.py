"""Runs the canary on the steps of a serving loop, with faults at the hooks: plan, HEAD, the model's bytes, TAIL, SWEEP.

The KV pool is small and lives in host memory; the kernels see it through tensors that share it, as SGLang's see the live pool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.memory import LAYER0, Forward, Group, GroupMemory, Strip
from kvcanary.faults.ops import FaultOp, Hook, apply
from kvcanary.kernels.types import (
    Backend,
    Coverage,
    Launch,
    PlanInputs,
    RealKvSource,
    RunCounters,
    StampInputs,
    VerifyPlan,
    ViolationRing,
    WritePlan,
)
from kvcanary.layout import LaunchTag, RealKvHashMode
from kvcanary.serving.events import KvMove, MoveKind
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step

ROW_BYTES = 64
_STRICT_LAYERS: Mapping[str, tuple[Strip, ...]] = {"k_tail": (Strip.K0, Strip.K1), "v_tail": (Strip.V0,)}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepReport:
    """What one step's launches found. rows: int64 [n, 8] in the order of layout.RING_FIELDS, those the ring kept.

    violations counts all, kept or not. zero_cells: (request id, position) of live cells that point at slot 0, strict only. changed: units
    each fault operation changed, by its place in the list. verified: entries checked. canary_s: seconds in plan, verify and stamp.
    """

    index: int
    rows: Int64Array
    violations: int
    zero_cells: tuple[tuple[int, int], ...]
    changed: Mapping[int, int]
    verified: int
    canary_s: float


@dataclass(slots=True, eq=False)
class _GroupState:
    """Memory, plans and tags of one buffer group."""

    group: Group
    memory: GroupMemory
    host: GroupMemory
    verify_plan: VerifyPlan
    write_plan: WritePlan
    window: int
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    sources: dict[str, tuple[RealKvSource, ...]] = field(default_factory=dict)

    def tag(self, phase: str, half: str) -> LaunchTag:
        return LaunchTag[f"{phase}_{half.upper()}_{self.group.name}"]


class CanaryExecutor:
    """One runner's canary. Deterministic for equal steps and faults."""

    def __init__(self, options: ServingOptions, config: CanaryConfig, backend: Backend) -> None:
        self.config, self._backend = config, backend
        self.ring = ViolationRing.allocate(config.ring_capacity)
        self._counters = RunCounters.allocate()
        self._coverage = Coverage.allocate()
        self._armed = torch.ones(1, dtype=torch.int32)
        self._halves = ("k", "v") if config.verify_v_half else ("k",)
        write_reqs = max(options.req_to_token_pool_size, options.cuda_graph_max_bs or 0)
        sizes = {Group.FULL: options.pool_slot_count}
        if options.swa_pool_slot_count is not None:
            sizes[Group.SWA] = options.swa_pool_slot_count
        self._groups = []
        for group, size in sizes.items():
            window = (options.sliding_window or 0) if group is Group.SWA else 0
            self._groups.append(self._allocate(group, size + options.page_size, options, write_reqs, window))
        self.memories = {state.group: state.memory for state in self._groups}
        # What the last step verified, for who replays it.
        self.verify_plans = {state.group: state.verify_plan for state in self._groups}

    def run(self, step: Step, ops: Sequence[FaultOp] = (), sweep: Mapping[Group, SweepEntries] | None = None) -> StepReport:
        """One forward: ops of this step at their hooks, sweep entries (of the group's pool, full index space) where one is due."""
        now = {index: op for index, op in enumerate(ops) if op.step <= step.index < op.until}
        forward = Forward.of(step, copy_tables=bool(now))
        changed = dict.fromkeys(now, 0)
        kept, counted, verified = self._ring_marks()

        def damage(hook: Hook) -> None:
            for index, op in now.items():
                if op.hook is hook:
                    changed[index] += apply(op, forward, self.memories)

        for move in step.moves:
            self._move(move)
        damage(Hook.BEFORE_PLAN)
        started = time.perf_counter()
        for state in self._groups:
            self._backend.plan(self._plan_inputs(state, forward), state.verify_plan, state.write_plan)
        canary_s = time.perf_counter() - started
        zero_cells = self._zero_cells(forward) if self.config.strict else ()
        damage(Hook.AFTER_PLAN)
        damage(Hook.WRITE)
        canary_s += self._launch("HEAD", forward)
        self._write_bytes(forward)
        damage(Hook.MODEL_FORWARD)
        canary_s += self._launch("TAIL", forward)
        damage(Hook.AFTER_TAIL)
        if sweep is not None:
            canary_s += self._sweep(forward, sweep)
        damage(Hook.AFTER_STEP)
        kept_now, counted_now, verified_now = self._ring_marks()
        rows: Int64Array = self.ring.rows[kept:kept_now].numpy().copy()
        return StepReport(
            index=step.index,
            rows=rows,
            violations=counted_now - counted,
            zero_cells=zero_cells,
            changed=changed,
            verified=verified_now - verified,
            canary_s=canary_s,
        )

    def _allocate(self, group: Group, num_slots: int, options: ServingOptions, write_reqs: int, window: int) -> _GroupState:
        hashed = _STRICT_LAYERS if self.config.strict else LAYER0
        memory = GroupMemory(num_slots, ROW_BYTES, self.config.real_data, hashed)
        state = _GroupState(
            group=group,
            memory=memory,
            host=GroupMemory(options.host_slot_count + options.page_size, ROW_BYTES, self.config.real_data, hashed),
            verify_plan=VerifyPlan.allocate(layout.VERIFY_CAPACITY_FACTOR * num_slots),
            write_plan=WritePlan.allocate(write_reqs),
            window=window,
        )
        read_bytes = layout.PARTIAL_BYTES if self.config.real_data is RealKvHashMode.PARTIAL else ROW_BYTES
        for name, buffer in memory.stamps.items():
            state.buffers[name] = torch.from_numpy(buffer)
            state.sources[name] = tuple(
                RealKvSource(tensor=torch.from_numpy(memory.kv[strip]), page_size=1, num_bytes_per_token=ROW_BYTES, read_bytes=read_bytes)
                for strip in hashed.get(name, ())
            )
        return state

    def _plan_inputs(self, state: _GroupState, forward: Forward) -> PlanInputs:
        step = forward.step
        windowed = state.group is Group.SWA and forward.full_to_swa is not None
        return PlanInputs(
            req_pool_indices=torch.from_numpy(step.req_pool_indices),
            prefix_lens=torch.from_numpy(step.prefix_lens),
            extend_seq_lens=torch.from_numpy(step.extend_seq_lens),
            req_to_token=torch.from_numpy(forward.req_to_token),
            swa_window=state.window,
            full_to_swa=torch.from_numpy(forward.full_to_swa) if windowed and forward.full_to_swa is not None else None,
            expected_tokens=torch.from_numpy(forward.expected_tokens),
            expected_valid_lens=torch.from_numpy(step.expected_valid_lens),
        )

    def _launch(self, phase: str, forward: Forward) -> float:
        """Verify, then stamp, for every endpoint of HEAD or TAIL; returns the seconds it took."""
        started = time.perf_counter()
        step = forward.step
        for state in self._groups:
            slots = _translate(state, forward, forward.out_slots)
            inputs = StampInputs(
                tokens=torch.from_numpy(forward.tokens),
                positions=torch.from_numpy(forward.positions),
                slots=torch.from_numpy(slots),
                expected_tokens=torch.from_numpy(step.tokens) if self.config.write_input_assert else None,
                expected_positions=torch.from_numpy(step.positions) if self.config.write_input_assert else None,
                position_assert=self._armed,
            )
            for half in self._halves:
                launch = self._launch_of(state, phase, half, f"{half}_{phase.lower()}")
                self._backend.verify(launch, state.verify_plan, check_tokens=self.config.verify_token_assert)
                self._backend.stamp(launch, state.write_plan, inputs)
        return time.perf_counter() - started

    def _sweep(self, forward: Forward, sweep: Mapping[Group, SweepEntries]) -> float:
        started = time.perf_counter()
        for state in self._groups:
            entries = sweep.get(state.group)
            if entries is None or not len(entries.slots):
                continue
            plan = VerifyPlan(
                slot_indices=torch.from_numpy(_translate(state, forward, entries.slots)),
                expected_tokens=torch.full((len(entries.slots),), layout.NO_EXPECTED_TOKEN, dtype=torch.int64),
                expected_positions=torch.from_numpy(entries.positions),
                prev_slot_indices=torch.from_numpy(_translate(state, forward, entries.prev_slots)),
                num_valid=torch.tensor([len(entries.slots)], dtype=torch.int32),
                enable=torch.ones(1, dtype=torch.int32),
            )
            for half in self._halves:
                self._backend.verify(self._launch_of(state, "SWEEP", half, f"{half}_tail"), plan)
        return time.perf_counter() - started

    def _launch_of(self, state: _GroupState, phase: str, half: str, buffer: str) -> Launch:
        return Launch(
            buffer=state.buffers[buffer],
            tag=state.tag(phase, half),
            ring=self.ring,
            counters=self._counters,
            sources=state.sources[buffer],
            hash_mode=self.config.real_data,
            coverage=self._coverage,
        )

    def _write_bytes(self, forward: Forward) -> None:
        for state in self._groups:
            state.memory.write_tokens(_translate(state, forward, forward.byte_slots), forward.tokens, forward.positions)

    def _move(self, move: KvMove) -> None:
        """KV that reaches other slots outside a forward, in every group that it concerns."""
        for state in self._groups:
            device = move.device_slots if state.group is Group.FULL else move.window_slots
            if len(device) and move.kind is MoveKind.ARRIVAL:
                self._arrive(state, move, device)
            elif len(device):
                self._copy(state, device, move.host_slots, backup=move.kind is MoveKind.BACKUP)

    def _arrive(self, state: _GroupState, move: KvMove, device: Int64Array) -> None:
        """Bytes and records of a prompt that another instance computed; slot 0 stands for what lies outside the window."""
        positions = np.arange(len(move.tokens))
        hashes = layout.chain_hashes(move.tokens.tolist(), positions.tolist())
        inside = np.flatnonzero(device != layout.PADDING_SLOT)
        state.memory.write_tokens(device[inside], move.tokens[inside], positions[inside])
        for place in inside.tolist():
            state.memory.write_record(int(device[place]), int(move.tokens[place]), place, hashes[place], tuple(state.buffers))

    def _copy(self, state: _GroupState, device: Int64Array, host: Int64Array, *, backup: bool) -> None:
        source, target = (state.memory, state.host) if backup else (state.host, state.memory)
        at, to = (device, host) if backup else (host, device)
        for strip, rows in source.kv.items():
            target.kv[strip][to] = rows[at]
        if self.config.records_follow:
            for name, records in source.stamps.items():
                target.stamps[name][to] = records[at]

    def _zero_cells(self, forward: Forward) -> tuple[tuple[int, int], ...]:
        """Cells of live prefixes that point at slot 0, of the window too; the plain canary skips both."""
        step, found = forward.step, []
        for row, rid, prefix in zip(step.req_pool_indices.tolist(), step.rids.tolist(), step.prefix_lens.tolist(), strict=True):
            if row == layout.PADDING_ROW:
                continue
            cells = forward.req_to_token[row, :prefix].astype(np.int64)
            zero = cells == layout.PADDING_SLOT
            if forward.full_to_swa is not None:
                start = max(0, prefix - step.window)
                zero[start:] |= forward.full_to_swa[cells[start:]] == layout.PADDING_SLOT
            found += [(rid, int(position)) for position in np.flatnonzero(zero)]
        return tuple(found)

    def _ring_marks(self) -> tuple[int, int, int]:
        counted = int(self.ring.write_index.item())
        return min(counted, self.ring.rows.shape[0]), counted, self._coverage.to_dict()["verified"]


def _translate(state: _GroupState, forward: Forward, slots: Int64Array) -> Int64Array:
    """Full slots in the group's index space; negative ones pass."""
    if state.group is Group.FULL or forward.full_to_swa is None:
        return slots
    return np.where(slots < 0, slots, forward.full_to_swa[slots])
