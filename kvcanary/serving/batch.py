"""What the scheduler decided for one forward."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary.serving.pool import Int64Array


@dataclass(slots=True, eq=False)
class Batch:
    """Rows of one forward with the tokens they write.

    rows, rids, prefix_lens, extend_lens, known_lens: int64 [bs]. tokens, positions, slots: int64 [sum of extend_lens], flat in batch order.
    accepted: int64 [bs], tokens of each row that stay; equal to extend_lens without speculation. The leading prefill_rows rows compute
    prompts, the others decode. draft_tokens: int64 like tokens, what the draft model writes; None without a draft pool.
    """

    rows: Int64Array
    rids: Int64Array
    prefix_lens: Int64Array
    extend_lens: Int64Array
    known_lens: Int64Array
    tokens: Int64Array
    positions: Int64Array
    slots: Int64Array
    accepted: Int64Array
    prefill_rows: int = 0
    draft_tokens: Int64Array | None = None
