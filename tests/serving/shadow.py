"""A second memory that only remembers what was written where, to check that a step reads what it should.

It is independent of the engine's bookkeeping: it looks at the steps alone.
"""

from __future__ import annotations

import numpy as np

from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.events import MoveKind
from kvcanary.serving.step import Step

UNWRITTEN = -7


class ShadowMemory:
    """Token and position of each slot, as forwards and moves wrote them; one store per index space."""

    def __init__(self, engine: ServingEngine) -> None:
        options = engine.options
        shape = (2, options.pool_slot_count + options.page_size)
        self.full = np.full(shape, UNWRITTEN)
        self.window = np.full((2, (options.swa_pool_slot_count or 0) + options.page_size), UNWRITTEN)
        # A draft slot holds the token of the next position.
        self.draft = np.full(shape, UNWRITTEN)
        self.host, self.host_window = (np.full((2, options.host_slot_count + options.page_size), UNWRITTEN) for _ in range(2))

    def run(self, step: Step) -> None:
        """Moves, then reads, then writes, as a forward does."""
        for move in step.moves:
            windowed = len(move.window_slots) > 0
            if move.kind is MoveKind.BACKUP:
                self.host[:, move.host_slots] = self.full[:, move.device_slots]
                # What a copy without window KV held before is no window KV of these tokens.
                self.host_window[:, move.host_slots] = self.window[:, move.window_slots] if windowed else UNWRITTEN
            elif move.kind is MoveKind.RELOAD:
                self.full[:, move.device_slots] = self.host[:, move.host_slots]
                if windowed:
                    self.window[:, move.window_slots] = self.host_window[:, move.host_slots]
            else:
                self.full[:, move.device_slots] = move.tokens, np.arange(len(move.tokens))
                if windowed:
                    inside = move.window_slots > 0
                    self.window[:, move.window_slots[inside]] = move.tokens[inside], np.flatnonzero(inside)
        self.read(step)
        self.full[:, step.out_slots] = step.tokens, step.positions
        if step.draft_tokens is not None:
            self.draft[:, step.out_slots] = step.draft_tokens, step.positions
        if step.full_to_swa is not None:
            assert (step.swa_out_slots > 0).all(), "a token of this step has no window slot"
            self.window[:, step.swa_out_slots] = step.tokens, step.positions

    def read(self, step: Step) -> None:
        """Every prefix cell holds the request's token at its position, in the window pool as far as the window reaches."""
        for row, prefix in zip(step.req_pool_indices, step.prefix_lens, strict=True):
            if row == 0:
                continue
            cells = step.req_to_token[row, :prefix]
            wanted = step.expected_tokens[row, :prefix]
            assert (cells > 0).all(), f"row {row} reads the padding slot"
            np.testing.assert_array_equal(self.full[0, cells], wanted)
            np.testing.assert_array_equal(self.full[1, cells], np.arange(prefix))
            if step.draft_tokens is not None:
                np.testing.assert_array_equal(self.draft[0, cells], step.expected_tokens[row, 1 : prefix + 1])
                np.testing.assert_array_equal(self.draft[1, cells], np.arange(prefix))
            if step.full_to_swa is not None:
                start = max(0, int(prefix) - step.window)
                inside = step.full_to_swa[cells[start:]]
                assert (inside > 0).all(), f"row {row} misses window slots"
                np.testing.assert_array_equal(self.window[0, inside], wanted[start:])
                np.testing.assert_array_equal(self.window[1, inside], np.arange(start, prefix))

    def sweep(self, engine: ServingEngine) -> None:
        """Every slot of the tree holds its position, and its predecessor the position before."""
        entries = engine.sweep_entries()
        np.testing.assert_array_equal(self.full[1, entries.slots], entries.positions)
        linked = entries.prev_slots >= 0
        np.testing.assert_array_equal(self.full[1, entries.prev_slots[linked]], entries.positions[linked] - 1)
        np.testing.assert_array_equal(linked, entries.positions > 0)
