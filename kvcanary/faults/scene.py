"""Victims: what a fault can hit in the forward that is about to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcanary import layout
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.events import MoveKind
from kvcanary.serving.pool import EMPTY, Int64Array
from kvcanary.serving.step import Step, StepMode


@dataclass(frozen=True, slots=True)
class Cell:
    """A token whose KV exists: request, position, and its slot in the full pool."""

    rid: int
    position: int
    slot: int


class Scene:
    """The scheduled step of an engine, seen by an injector. All choices come from one generator."""

    def __init__(self, engine: ServingEngine, step: Step, rng: np.random.Generator) -> None:
        self.engine, self.step, self.rng = engine, step, rng
        self._places = [place for place, row in enumerate(step.req_pool_indices.tolist()) if row != layout.PADDING_ROW]

    def prefixes(self, shortest: int) -> list[int]:
        """Places in the batch whose prefix has at least so many tokens."""
        return [place for place in self._places if self.step.prefix_lens[place] >= shortest]

    def rid(self, place: int) -> int:
        """The request at a place of the batch."""
        return int(self.step.rids[place])

    def cells(self, place: int, *, with_written: bool = False) -> Int64Array:
        """Slots of the prefix at a place, int64 [prefix_len], and of the tokens this forward writes behind it."""
        length = self.step.prefix_lens[place] + (self.step.extend_seq_lens[place] if with_written else 0)
        return self.step.req_to_token[self.step.req_pool_indices[place], :length].astype(np.int64)

    def users(self, slots: set[int]) -> set[int]:
        """Requests of this batch that read or write one of the slots."""
        return {self.rid(place) for place in self._places if slots & set(self.cells(place, with_written=True).tolist())}

    def prefix_cell(self, *, inside_window: bool = True) -> Cell | None:
        """A random cell of a random prefix that is neither its first nor its last; with a window, one that the window covers."""
        window = self.step.window if inside_window and self.step.window else 0
        places = self.prefixes(4)
        if not places:
            return None
        place = int(self.rng.choice(places))
        length = int(self.step.prefix_lens[place])
        first = max(1, length - window + 1) if window else 1
        if first >= length - 1:
            return None
        position = int(self.rng.integers(first, length - 1))
        return Cell(self.rid(place), position, int(self.cells(place)[position]))

    def seed_cell(self) -> Cell | None:
        """The last prefix cell of a random request that writes now."""
        places = [place for place in self.prefixes(4) if self.step.extend_seq_lens[place] > 0]
        if not places:
            return None
        place = int(self.rng.choice(places))
        position = int(self.step.prefix_lens[place]) - 1
        return Cell(self.rid(place), position, int(self.cells(place)[position]))

    def chunk_end(self, *, in_output: bool = False) -> Cell | None:
        """The last token of a chunk behind which more of the prompt comes; in_output: more of what a request said until it was sent back."""
        step = self.step
        ends = step.prefix_lens + step.extend_seq_lens
        places = [
            place
            for place in self._places
            if step.mode is StepMode.EXTEND
            and ends[place] < step.expected_valid_lens[place]
            and (ends[place] >= self._input_len(place)) == in_output
        ]
        if not places:
            return None
        place = int(self.rng.choice(places))
        position = int(ends[place]) - 1
        return Cell(self.rid(place), position, int(self.cells(place, with_written=True)[position]))

    def _input_len(self, place: int) -> int:
        return self.engine.scheduler.by_row[int(self.step.req_pool_indices[place])].input_len

    def run_of_cells(self, length: int) -> list[Cell]:
        """So many neighbouring cells of one prefix, none of them its last; empty when no prefix is long enough."""
        places = self.prefixes(length + 2)
        if not places:
            return []
        place = int(self.rng.choice(places))
        first = int(self.rng.integers(1, self.step.prefix_lens[place] - length))
        return [Cell(self.rid(place), first + i, int(self.cells(place)[first + i])) for i in range(length)]

    def reloaded_run(self, length: int) -> list[Cell]:
        """So many neighbouring cells that came back from the host for this forward, neither first nor last of their prefix; else empty."""
        back = np.concatenate([EMPTY, *(move.device_slots for move in self.step.moves if move.kind is MoveKind.RELOAD)])
        found = []
        for place in self.prefixes(length + 2) if back.size else ():
            cells = self.cells(place)
            inside = np.lib.stride_tricks.sliding_window_view(np.isin(cells[1:-1], back), length).all(axis=1)
            found += [(place, first) for first in (np.flatnonzero(inside) + 1).tolist()]
        if not found:
            return []
        place, first = found[int(self.rng.integers(len(found)))]
        return [Cell(self.rid(place), first + i, int(self.cells(place)[first + i])) for i in range(length)]

    def written(self, *, first_of_request: bool = False) -> Cell | None:
        """A token of this forward; by default one that goes on from a seed."""
        wanted = [p for p in self._places if self.step.extend_seq_lens[p] > 0 and (self.step.prefix_lens[p] == 0) == first_of_request]
        if not wanted:
            return None
        place = int(self.rng.choice(wanted))
        start = int(self.step.extend_seq_lens[:place].sum())
        return Cell(self.rid(place), int(self.step.prefix_lens[place]), int(self.step.out_slots[start]))

    def foreign_slot(self, rid: int) -> int | None:
        """A slot of another request's prefix in this batch that request rid does not use, inside its window; None when there is none."""
        mine = {slot for place in self._places if self.rid(place) == rid for slot in self.cells(place).tolist()}
        others = []
        for place in self.prefixes(4):
            if self.rid(place) != rid:
                start = max(1, int(self.step.prefix_lens[place]) - self.step.window + 1) if self.step.window else 1
                others += [slot for slot in self.cells(place)[start:-1].tolist() if slot not in mine]
        return int(self.rng.choice(others)) if others else None

    def cached_slots(self) -> Int64Array:
        """Slots that only the prefix tree holds, int64 [n]."""
        tree = self.engine.memory.tree
        nodes = [node.device_slots for node in tree.nodes() if not node.lock] if tree else []
        return np.concatenate([np.zeros(0, dtype=np.int64), *nodes])

    def token_of(self, rid: int, position: int) -> int:
        """The right token of a request at a position."""
        row = self.step.req_pool_indices[np.flatnonzero(self.step.rids == rid)[0]]
        return int(self.step.expected_tokens[row, position])

    def other_request(self, rid: int, *, longer_than: int) -> int | None:
        """Another request of the batch that has a token at that position, and another token there; None when there is none."""
        mine = self.token_of(rid, longer_than)
        places = [
            place
            for place in self.prefixes(longer_than + 1)
            if self.rid(place) != rid and self.token_of(self.rid(place), longer_than) != mine
        ]
        return self.rid(int(self.rng.choice(places))) if places else None

    def record_of(self, rid: int, position: int) -> dict[str, Any]:
        """token, position and prev_hash of the record that a request has at a position, as fields of a FaultOp."""
        row = self.step.req_pool_indices[np.flatnonzero(self.step.rids == rid)[0]]
        tokens = self.step.expected_tokens[row, : position + 1].tolist()
        hashes = layout.chain_hashes(tokens, range(position + 1))
        return {"token": tokens[position], "position": position, "prev_hash": hashes[position]}

    def in_window(self, slot: int) -> int:
        """A full slot in the window pool's index space; the slot itself without a window."""
        return slot if self.step.full_to_swa is None else int(self.step.full_to_swa[slot])
