"""Rows that are there only to fill a batch: captured CUDA graphs and data-parallel ranks."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from kvcanary.config.defaults import capture_batch_sizes
from kvcanary.serving.batch import Batch
from kvcanary.serving.options import ServingOptions


class Padding:
    """Decides how many padding rows and tokens a batch gets. The batches of the other data-parallel ranks are drawn from the seed."""

    def __init__(self, options: ServingOptions) -> None:
        self._ranks, self._rows, self._budget = options.dp_size, options.req_to_token_pool_size, options.prefill_budget
        self._width = options.tokens_per_decode
        self._rng = np.random.default_rng([options.seed, 1])
        speculative = options.speculative_num_draft_tokens is not None
        self._sizes = () if options.cuda_graph_max_bs is None else capture_batch_sizes(options.cuda_graph_max_bs, speculative=speculative)

    def of(self, batch: Batch) -> tuple[int, int]:
        """Padding rows and padding tokens of a batch: decode batches are filled up with rows, prefill batches with tokens of no row."""
        if batch.prefill_rows:
            return 0, self.prefill_tokens(len(batch.tokens)) - len(batch.tokens)
        if self._ranks == 1 and not self._sizes:
            return 0, 0
        own = len(batch.rows)
        rows = self.decode_rows(own) - own
        return rows, rows * self._width

    def decode_rows(self, own_rows: int) -> int:
        """Rows of the padded decode batch, at least own_rows: the largest rank, then the next captured size.

        A batch above the largest captured size runs without a graph and keeps its size.
        """
        rows = own_rows
        if self._ranks > 1:
            rows = max(rows, int(self._rng.integers(0, self._rows + 1, size=self._ranks - 1).max()))
        place = bisect_left(self._sizes, rows)
        return self._sizes[place] if rows and place < len(self._sizes) else rows

    def prefill_tokens(self, own_tokens: int) -> int:
        """Tokens of the padded prefill batch: those of the rank that prefills most."""
        if self._ranks == 1:
            return own_tokens
        return max(own_tokens, int(self._rng.integers(0, self._budget + 1, size=self._ranks - 1).max()))
