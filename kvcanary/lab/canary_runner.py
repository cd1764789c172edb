"""The canary of one model runner: its buffers, plans, ring and launches over the pools of a serving loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig, StrictCheck
from kvcanary.faults.memory import LAYER0, TWO_LAYERS, Forward, Group, GroupMemory
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
from kvcanary.lab.strict_checks import ViolationDetail, active_sweep, details, entry_rids
from kvcanary.layout import LaunchTag, RealKvHashMode
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.radix_cache import SweepEntries


@dataclass(slots=True, eq=False)
class GroupState:
    """Memory, plans and launch sources of one buffer group; host is what lies of it on the host tier."""

    group: Group
    memory: GroupMemory
    host: GroupMemory
    verify_plan: VerifyPlan
    write_plan: WritePlan
    window: int
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    sources: dict[str, tuple[RealKvSource, ...]] = field(default_factory=dict)

    def tag(self, phase: str, half: str) -> LaunchTag:
        """The launch tag; the draft pool's runner has a FULL group of its own."""
        name = Group.FULL.name if self.group is Group.DRAFT else self.group.name
        return LaunchTag[f"{phase}_{half.upper()}_{name}"]

    def translate(self, forward: Forward, slots: Int64Array) -> Int64Array:
        """Full slots in the group's index space; negative ones pass."""
        if self.group is not Group.SWA or forward.full_to_swa is None:
            return slots
        return np.where(slots < 0, slots, forward.full_to_swa[slots])


class Marks(NamedTuple):
    """Counts at one moment: ring rows kept, violations counted, verify entries checked and skipped."""

    kept: int
    counted: int
    verified: int
    skipped: int


class CanaryRunner:
    """One runner. A draft runner (group DRAFT) expects at each slot the token of the next position, and has no token oracle."""

    def __init__(self, options: ServingOptions, config: CanaryConfig, backend: Backend, groups: tuple[Group, ...]) -> None:
        self.config, self._backend = config, backend
        self.ring = ViolationRing.allocate(config.ring_capacity)
        self.coverage = Coverage.allocate()
        self.details: list[ViolationDetail] = []
        self._counters = RunCounters.allocate()
        self._armed = torch.ones(1, dtype=torch.int32)
        self._halves = ("k", "v") if config.verify_v_half else ("k",)
        self._is_draft = groups == (Group.DRAFT,)
        self._oracle = config.write_input_assert and not self._is_draft
        self.groups = [self._allocate(group, options) for group in groups]

    def plan(self, forward: Forward) -> float:
        """Plan every group; returns the seconds it took."""
        started = time.perf_counter()
        for state in self.groups:
            self._backend.plan(self._plan_inputs(state, forward), state.verify_plan, state.write_plan)
        return time.perf_counter() - started

    def launch(self, phase: str, forward: Forward, meant: Int64Array) -> float:
        """Verify, then stamp, for every endpoint of HEAD or TAIL; meant: the tokens int64 [n] that an oracle expects. Returns seconds."""
        started = time.perf_counter()
        for state in self.groups:
            inputs = StampInputs(
                tokens=torch.from_numpy(forward.tokens),
                positions=torch.from_numpy(forward.positions),
                slots=torch.from_numpy(state.translate(forward, forward.out_slots)),
                expected_tokens=torch.from_numpy(meant) if self._oracle else None,
                expected_positions=torch.from_numpy(forward.step.positions) if self._oracle else None,
                position_assert=self._armed,
            )
            for half in self._halves:
                buffer = f"{half}_{phase.lower()}"
                launch = self._launch_of(state, phase, half, buffer)
                before = self._kept()
                self._backend.verify(launch, state.verify_plan, check_tokens=self.config.verify_token_assert)
                self._backend.stamp(launch, state.write_plan, inputs)
                if self.config.has(StrictCheck.DETAILS):
                    self._note(before, state, buffer, state.verify_plan, entry_rids(forward.step, state.window))
        return time.perf_counter() - started

    def sweep(self, forward: Forward, sweep: Mapping[Group, SweepEntries]) -> float:
        """Verify the entries of the groups, in the full pool's index space; returns seconds."""
        started = time.perf_counter()
        for state in self.groups:
            entries = sweep.get(state.group)
            if entries is None or not len(entries.slots):
                continue
            slots, before_slots = state.translate(forward, entries.slots), state.translate(forward, entries.prev_slots)
            plan = active_sweep(slots, entries.positions, before_slots)
            for half in self._halves:
                before = self._kept()
                self._backend.verify(self._launch_of(state, "SWEEP", half, f"{half}_tail"), plan)
                if self.config.has(StrictCheck.DETAILS):
                    self._note(before, state, f"{half}_tail", plan, None)
        return time.perf_counter() - started

    def write_bytes(self, forward: Forward) -> None:
        """What the model does: the KV of this forward's tokens, and of padding tokens in slot 0."""
        for state in self.groups:
            state.memory.write_tokens(state.translate(forward, forward.byte_slots), forward.tokens, forward.positions)
            if forward.step.pad_tokens:
                nobody = np.array([layout.PADDING_SLOT])
                state.memory.write_tokens(nobody, nobody, np.array([forward.step.index]))

    def marks(self) -> Marks:
        """How far everything has come."""
        covered = self.coverage.to_dict()
        skipped = covered["skipped_padding"] + covered["skipped_disabled"]
        return Marks(self._kept(), int(self.ring.write_index.item()), covered["verified"], skipped)

    def take_rows(self, start: int) -> Int64Array:
        """Ring rows from a mark on, int64 [n, 8]. A fair ring is emptied, so that the next step finds room."""
        rows: Int64Array = self.ring.rows[start : self._kept()].numpy().copy()
        if self.config.has(StrictCheck.FAIR_RING):
            self.ring.write_index.zero_()
        return rows

    def _kept(self) -> int:
        return min(int(self.ring.write_index.item()), self.ring.rows.shape[0])

    def _note(self, before: int, state: GroupState, buffer: str, plan: VerifyPlan, rids: Int64Array | None) -> None:
        rows: Int64Array = self.ring.rows[before : self._kept()].numpy()
        if len(rows):
            self.details += details(rows, state.memory, buffer, plan, rids)

    def _allocate(self, group: Group, options: ServingOptions) -> GroupState:
        config = self.config
        size = options.pool_slot_count if group is not Group.SWA else options.swa_pool_slot_count or 0
        num_slots = size + options.page_size
        row_bytes = options.kv_row_bytes
        # Under MORE_BYTES a second range begins in the middle of the row.
        hashed = TWO_LAYERS if config.has(StrictCheck.MORE_LAYERS) else LAYER0
        more = config.has(StrictCheck.MORE_BYTES) and config.real_data is RealKvHashMode.PARTIAL
        starts = (0, row_bytes // 2) if more else (0,)
        memory = GroupMemory(num_slots, row_bytes, config.real_data, hashed, starts)
        state = GroupState(
            group=group,
            memory=memory,
            host=GroupMemory(options.host_slot_count + options.page_size, row_bytes, config.real_data, hashed, starts),
            verify_plan=VerifyPlan.allocate(layout.VERIFY_CAPACITY_FACTOR * num_slots),
            write_plan=WritePlan.allocate(max(options.req_to_token_pool_size, options.cuda_graph_max_bs or 0)),
            window=(options.sliding_window or 0) if group is Group.SWA else 0,
        )
        for name, buffer in memory.stamps.items():
            state.buffers[name] = torch.from_numpy(buffer)
            state.sources[name] = tuple(
                RealKvSource(
                    tensor=torch.from_numpy(memory.kv[strip])[:, start:],
                    page_size=1,
                    num_bytes_per_token=row_bytes - start,
                    read_bytes=memory.read_bytes,
                )
                for strip, start in memory.parts(name)
            )
        return state

    def _plan_inputs(self, state: GroupState, forward: Forward) -> PlanInputs:
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
            token_offset=1 if self._is_draft else 0,
        )

    def _launch_of(self, state: GroupState, phase: str, half: str, buffer: str) -> Launch:
        return Launch(
            buffer=state.buffers[buffer],
            tag=state.tag(phase, half),
            ring=self.ring,
            counters=self._counters,
            sources=state.sources[buffer],
            hash_mode=self.config.real_data,
            coverage=self.coverage,
        )
