"""A hand-written story of a few slots and steps, compiled into the steps that an executor runs.

Engine runs show how often a fault is found; a scenario shows one case small enough to read row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import EMPTY, Int32Array, Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step, StepMode


@dataclass(frozen=True, slots=True)
class Actor:
    """A request of a scenario: its id (also its table row, from 1 on), tokens and slots by position."""

    rid: int
    tokens: tuple[int, ...]
    slots: tuple[int, ...]

    def record(self, position: int) -> dict[str, int]:
        """token, position and prev_hash of the record that this request writes at a position, as fields of a FaultOp."""
        hashes = layout.chain_hashes(self.tokens[: position + 1], range(position + 1))
        return {"token": self.tokens[position], "position": position, "prev_hash": hashes[position]}


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One forward: batch of (request, prefix length, tokens written); sweep: slot paths of the tree, by position."""

    batch: tuple[tuple[Actor, int, int], ...] = ()
    sweep: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps and the operations that go wrong in them. slots counts the padding slot; window makes it a sliding-window group, whose slots

    have the same numbers in both pools. draft: a draft model keeps KV of its own, so every request names one token more than it writes.
    """

    slots: int
    actors: tuple[Actor, ...]
    steps: tuple[ScriptStep, ...]
    ops: tuple[FaultOp, ...] = ()
    window: int | None = None
    draft: bool = False

    def options(self) -> ServingOptions:
        """Sizes for an executor of this scenario."""
        return ServingOptions(
            pool_slot_count=self.slots - 1,
            req_to_token_pool_size=max([2, *(actor.rid for actor in self.actors)]),
            max_seq_len_per_req=self._width(),
            sliding_window=self.window,
            swa_pool_slot_count=self.slots - 1 if self.window else None,
            speculative_num_draft_tokens=1 if self.draft else None,
            draft_pool=self.draft,
        )

    def compile(self) -> list[tuple[Step, dict[Group, SweepEntries] | None]]:
        """The forwards in order, each with its sweep where one is due."""
        table = np.zeros((max([2, *(actor.rid for actor in self.actors)]) + 1, self._width()), dtype=np.int32)
        tokens = np.zeros_like(table)
        for actor in self.actors:
            if len(actor.tokens) != len(actor.slots) or max((0, *actor.slots)) >= self.slots:
                raise ConfigError(f"request {actor.rid} has {len(actor.tokens)} tokens, {len(actor.slots)} slots up to {max(actor.slots)}")
            table[actor.rid, : len(actor.slots)] = actor.slots
            tokens[actor.rid, : len(actor.tokens)] = actor.tokens
        return [(self._step(i, step, table, tokens), _sweep(step.sweep, self.window)) for i, step in enumerate(self.steps)]

    def _step(self, index: int, script: ScriptStep, table: Int32Array, tokens: Int32Array) -> Step:
        rows = np.array([actor.rid for actor, _, _ in script.batch], dtype=np.int64)
        prefixes = np.array([prefix for _, prefix, _ in script.batch], dtype=np.int64)
        extends = np.array([extend for _, _, extend in script.batch], dtype=np.int64)
        places = [(actor.rid, position) for actor, prefix, extend in script.batch for position in range(prefix, prefix + extend)]
        row, position = (np.array(column, dtype=np.int64) for column in zip(*places, strict=True)) if places else (EMPTY, EMPTY)
        mapping = np.append(np.arange(self.slots), -1) if self.window else None
        return Step(
            index=index,
            mode=StepMode.EXTEND if places else StepMode.IDLE,
            req_pool_indices=rows,
            prefix_lens=prefixes,
            extend_seq_lens=extends,
            expected_valid_lens=np.array([len(actor.tokens) for actor, _, _ in script.batch], dtype=np.int64),
            rids=rows,
            tokens=tokens[row, position].astype(np.int64),
            positions=position,
            out_slots=table[row, position].astype(np.int64),
            req_to_token=table,
            expected_tokens=tokens,
            full_to_swa=mapping,
            window=self.window or 0,
            draft_tokens=tokens[row, position + 1].astype(np.int64) if self.draft else None,
        )

    def _width(self) -> int:
        return max([2, *(len(actor.tokens) for actor in self.actors)])


def _sweep(paths: Sequence[tuple[int, ...]], window: int | None) -> dict[Group, SweepEntries] | None:
    if not paths:
        return None
    slots, positions, before = [EMPTY], [EMPTY], [EMPTY]
    for path in paths:
        nodes: Int64Array = np.array(path, dtype=np.int64)
        slots.append(nodes)
        positions.append(np.arange(len(nodes)))
        before.append(np.append(layout.CHAIN_HEAD, nodes[:-1]))
    entries = SweepEntries(np.concatenate(slots), np.concatenate(positions), np.concatenate(before))
    return {Group.FULL: entries, Group.SWA: entries} if window else {Group.FULL: entries}
