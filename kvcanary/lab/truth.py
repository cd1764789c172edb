"""What belongs in each slot, from the engine's own tables and never from a canary buffer: the other side of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from kvcanary import layout
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.step import Step

UNWRITTEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The right record per slot: tokens, positions, prev_slots int64 [num_slots] and prev_hashes uint64 [num_slots].

    tokens and positions are UNWRITTEN where nothing was written yet; prev_slots is -1 there and at a chain head.
    """

    tokens: Int64Array
    positions: Int64Array
    prev_slots: Int64Array
    prev_hashes: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, num_slots: int) -> Self:
        """Nothing written yet."""
        tokens, positions, prev_slots = (np.full(num_slots, UNWRITTEN, dtype=np.int64) for _ in range(3))
        return cls(tokens, positions, prev_slots, np.zeros(num_slots, dtype=np.uint64))

    def follow(self, step: Step, *, draft: bool = False) -> None:
        """Take over what a forward reads and writes, before any damage; draft: the forward of a draft model, whose slots hold the token of

        the next position. In place.
        """
        fed = step.draft_tokens if draft else step.tokens
        assert fed is not None, "a step without a draft forward has no draft tokens"
        first, start = int(draft), 0
        for row, prefix, extend in zip(
            step.req_pool_indices.tolist(), step.prefix_lens.tolist(), step.extend_seq_lens.tolist(), strict=True
        ):
            if row == layout.PADDING_ROW:
                continue
            slots = step.req_to_token[row, : prefix + extend].astype(np.int64)
            known = step.expected_tokens[row, first : first + prefix].astype(np.int64)
            # A rejected draft token is in no table, only in what was fed.
            tokens = np.concatenate([known, fed[start : start + extend]])
            start += extend
            self._follow_chain(slots, tokens)

    def _follow_chain(self, slots: Int64Array, tokens: Int64Array) -> None:
        positions = np.arange(len(slots))
        before = np.append(layout.CHAIN_HEAD, slots[:-1])
        same = (self.tokens[slots] == tokens) & (self.positions[slots] == positions) & (self.prev_slots[slots] == before)
        changed = np.flatnonzero(~same)
        if not changed.size:
            return
        first = int(changed[0])
        self.tokens[slots[first:]], self.positions[slots[first:]], self.prev_slots[slots[first:]] = (
            tokens[first:],
            positions[first:],
            before[first:],
        )
        running = self.hash_after(int(before[first]))
        hashes = layout.chain_hashes(tokens[first:].tolist(), positions[first:].tolist(), running)
        self.prev_hashes[slots[first:]] = np.array(hashes, dtype=np.uint64)

    def hash_after(self, slot: int) -> int:
        """The chain hash that belongs in the successor of a slot; the anchor's for -1."""
        if slot < 0:
            return layout.CHAIN_START
        return layout.mix3(int(self.prev_hashes[slot]), int(self.tokens[slot]), int(self.positions[slot]))

    def copy(self) -> Truth:
        """As it is now."""
        return Truth(self.tokens.copy(), self.positions.copy(), self.prev_slots.copy(), self.prev_hashes.copy())

    def translated(self, full_to_swa: Int64Array, num_slots: int) -> Truth:
        """The same in a window pool's slot numbers; full_to_swa int64 [full slots + 1], 0 = no window slot."""
        full = np.flatnonzero(full_to_swa > 0)
        here = full_to_swa[full]
        truth = Truth.empty(num_slots)
        truth.tokens[here], truth.positions[here], truth.prev_hashes[here] = (
            self.tokens[full],
            self.positions[full],
            self.prev_hashes[full],
        )
        before = self.prev_slots[full]
        truth.prev_slots[here] = np.where(before < 0, before, full_to_swa[before])
        return truth
