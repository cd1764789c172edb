"""One forward as the canary sees it: the batch, where it writes, and what happened around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcanary.serving.events import Event, KvMove
from kvcanary.serving.pool import Int32Array, Int64Array


class StepMode(StrEnum):
    """Forward modes of the facts, section 4.1."""

    EXTEND = "extend"
    MIXED = "mixed"
    DECODE = "decode"
    TARGET_VERIFY = "target_verify"
    IDLE = "idle"


# Not frozen: freezing costs four times the construction, and that more than all else that a decode step does here.
@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One forward. bs rows include padding rows (row 0) at the end; n tokens are those of real rows, pad_tokens more are inert.

    req_pool_indices, prefix_lens, extend_seq_lens, expected_valid_lens, rids: int64 [bs]. tokens, positions, out_slots: int64 [n], flat in
    batch order. Steps of one decode run share arrays, so readers change nothing. req_to_token and expected_tokens are the live tables int32
    [rows, width], right until the step is completed. full_to_swa int64 [slots + 1] with window, or None and 0. events and moves happened
    before the forward; what its results bring about stands in the next step's events. free_slots is the pool's free count when the batch
    was built. draft_tokens int64 [n]: what the draft model's forward writes at the same positions and slots, or None without a draft pool.
    """

    index: int
    mode: StepMode
    req_pool_indices: Int64Array
    prefix_lens: Int64Array
    extend_seq_lens: Int64Array
    expected_valid_lens: Int64Array
    rids: Int64Array
    tokens: Int64Array
    positions: Int64Array
    out_slots: Int64Array
    req_to_token: Int32Array
    expected_tokens: Int32Array
    full_to_swa: Int64Array | None = None
    window: int = 0
    pad_tokens: int = 0
    events: tuple[Event, ...] = ()
    moves: tuple[KvMove, ...] = ()
    free_slots: int = 0
    draft_tokens: Int64Array | None = None

    @property
    def num_real_rows(self) -> int:
        """Rows that are no padding."""
        return int((self.req_pool_indices != 0).sum())

    @property
    def swa_out_slots(self) -> Int64Array:
        """out_slots in the window pool's index space, int64 [n]; only with a window."""
        assert self.full_to_swa is not None, "a step without a window has no translation"
        return self.full_to_swa[self.out_slots]

    @property
    def verify_entries(self) -> int:
        """Entries that the FULL plan of this step verifies."""
        return int(self.prefix_lens[self.req_pool_indices != 0].sum())
