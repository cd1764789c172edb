"""Runs the canary on the steps of a serving loop, with faults at the hooks: plan, HEAD, the model's bytes, TAIL, SWEEP.

The KV pool is small and lives in host memory; the kernels see it through tensors that share it, as SGLang's see the live pool. With a
draft pool the draft model's forward follows, under a canary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig, StrictCheck
from kvcanary.faults.memory import Forward, Group
from kvcanary.faults.ops import FaultOp, Hook, apply
from kvcanary.kernels.types import Backend
from kvcanary.lab.canary_runner import CanaryRunner, GroupState, Marks
from kvcanary.lab.fair_ring import FairRing
from kvcanary.lab.strict_checks import Cell, ViolationDetail, zero_cells, zero_seeds
from kvcanary.serving.events import KvMove, MoveKind
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step


def _no_rows() -> Int64Array:
    return np.zeros((0, len(layout.RING_FIELDS)), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepReport:
    """What one step's launches found. rows: int64 [n, 8] in the order of layout.RING_FIELDS, those the ring kept; draft_rows: the same of

    the draft runner. violations counts all of both, kept or not. zero_cells, zero_seeds: (request id, position) of live cells, and of seeds,
    that point at slot 0; details: one per row, target first; each only with its strict check. changed: units each fault operation changed,
    by its place in the list. verified, skipped: entries checked and not (slot 0, overflow). canary_s: seconds in plan, verify and stamp.
    """

    index: int
    rows: Int64Array
    violations: int
    zero_cells: tuple[Cell, ...]
    changed: Mapping[int, int]
    verified: int
    canary_s: float
    skipped: int = 0
    draft_rows: Int64Array = field(default_factory=_no_rows)
    zero_seeds: tuple[Cell, ...] = ()
    details: tuple[ViolationDetail, ...] = ()

    @property
    def reported(self) -> bool:
        """Whether anything was reported, by a launch or by a strict check."""
        return bool(self.violations or self.zero_cells or self.zero_seeds)


class CanaryExecutor:
    """The canaries of one model and, with a draft pool, of its draft model. Deterministic for equal steps and faults."""

    def __init__(self, options: ServingOptions, config: CanaryConfig, backend: Backend) -> None:
        self.config = config
        groups = (Group.FULL,) if options.swa_pool_slot_count is None else (Group.FULL, Group.SWA)
        self._target = CanaryRunner(options, config, backend, groups)
        self._runners = [self._target]
        if options.draft_pool:
            self._runners.append(CanaryRunner(options, config, backend, (Group.DRAFT,)))
        self.ring = self._target.ring
        self.fair_ring = FairRing(config.ring_capacity) if config.has(StrictCheck.FAIR_RING) else None
        states = [state for runner in self._runners for state in runner.groups]
        self.memories = {state.group: state.memory for state in states}
        # What the last step verified, for who replays it.
        self.verify_plans = {state.group: state.verify_plan for state in states}

    def run(self, step: Step, ops: Sequence[FaultOp] = (), sweep: Mapping[Group, SweepEntries] | None = None) -> StepReport:
        """One forward: ops of this step at their hooks, sweep entries (of the group's pool, full index space) where one is due."""
        now = {index: op for index, op in enumerate(ops) if op.step <= step.index < op.until}
        forward = Forward.of(step, copy_tables=bool(now))
        changed = dict.fromkeys(now, 0)
        marks = [runner.marks() for runner in self._runners]
        for move in step.moves:
            self._move(move)

        def forward_under_canary(runner: CanaryRunner, forward: Forward, meant: Int64Array, swept: bool) -> float:
            def damage(hook: Hook) -> None:
                for index, op in now.items():
                    if op.hook is hook and (op.group is Group.DRAFT) == (runner is not self._target):
                        changed[index] += apply(op, forward, self.memories)

            damage(Hook.BEFORE_PLAN)
            seconds = runner.plan(forward)
            damage(Hook.AFTER_PLAN)
            damage(Hook.WRITE)
            seconds += runner.launch("HEAD", forward, meant)
            runner.write_bytes(forward)
            damage(Hook.MODEL_FORWARD)
            seconds += runner.launch("TAIL", forward, meant)
            damage(Hook.AFTER_TAIL)
            if swept and sweep is not None:
                seconds += runner.sweep(forward, sweep)
            damage(Hook.AFTER_STEP)
            return seconds

        canary_s = forward_under_canary(self._target, forward, step.tokens, True)
        cells = zero_cells(forward) if self.config.has(StrictCheck.ZERO_CELL) else ()
        seeds = zero_seeds(forward, self._target.groups[-1].write_plan) if self.config.has(StrictCheck.ZERO_SEED) else ()
        for runner in self._runners[1:]:
            assert step.draft_tokens is not None, "a draft pool has a draft forward for every step"
            draft = replace(forward, tokens=step.draft_tokens.copy(), positions=step.positions.copy(), out_slots=step.out_slots.copy())
            draft.byte_slots = step.out_slots.copy()
            canary_s += forward_under_canary(runner, draft, step.draft_tokens, False)
        return self._report(step.index, marks, canary_s, changed, cells, seeds)

    def kept_rows(self) -> Int64Array:
        """The rows that an operator could still read now, int64 [n, 8]: the first ones, or with a fair ring a sample of every tag."""
        rows: Int64Array = self.ring.kept().numpy() if self.fair_ring is None else self.fair_ring.rows()
        return rows

    def _report(
        self,
        index: int,
        marks: list[Marks],
        canary_s: float,
        changed: Mapping[int, int],
        cells: tuple[Cell, ...],
        seeds: tuple[Cell, ...],
    ) -> StepReport:
        rows, noted = [], []
        counted = verified = skipped = 0
        for runner, before in zip(self._runners, marks, strict=True):
            now = runner.marks()
            counted += now.counted - before.counted
            verified += now.verified - before.verified
            skipped += now.skipped - before.skipped
            rows.append(runner.take_rows(before.kept))
            noted += runner.details
            runner.details = []
        if self.fair_ring is not None:
            self.fair_ring.add(rows[0])
        return StepReport(
            index=index,
            rows=rows[0],
            violations=counted,
            zero_cells=cells,
            changed=changed,
            verified=verified,
            skipped=skipped,
            canary_s=canary_s,
            draft_rows=rows[1] if len(rows) > 1 else _no_rows(),
            zero_seeds=seeds,
            details=tuple(noted),
        )

    def _move(self, move: KvMove) -> None:
        """KV that reaches other slots outside a forward, in every group that it concerns."""
        for state in (state for runner in self._runners for state in runner.groups):
            device = move.window_slots if state.group is Group.SWA else move.device_slots
            if len(device) and move.kind is MoveKind.ARRIVAL:
                _arrive(state, move, device)
            elif len(device):
                self._copy(state, device, move.host_slots, backup=move.kind is MoveKind.BACKUP)

    def _copy(self, state: GroupState, device: Int64Array, host: Int64Array, *, backup: bool) -> None:
        source, target = (state.memory, state.host) if backup else (state.host, state.memory)
        at, to = (device, host) if backup else (host, device)
        for strip, rows in source.kv.items():
            target.kv[strip][to] = rows[at]
        if self.config.records_follow:
            for name, records in source.stamps.items():
                target.stamps[name][to] = records[at]


def _arrive(state: GroupState, move: KvMove, device: Int64Array) -> None:
    """Bytes and records of a prompt that another instance computed; slot 0 stands for what lies outside the window."""
    positions = np.arange(len(move.tokens))
    hashes = layout.chain_hashes(move.tokens.tolist(), positions.tolist())
    inside = np.flatnonzero(device != layout.PADDING_SLOT)
    state.memory.write_tokens(device[inside], move.tokens[inside], positions[inside])
    for place in inside.tolist():
        state.memory.write_record(int(device[place]), int(move.tokens[place]), place, hashes[place], tuple(state.buffers))
