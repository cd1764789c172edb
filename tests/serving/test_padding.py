"""Captured sizes and padded batches."""

from __future__ import annotations

from kvcanary.serving.options import ServingOptions
from kvcanary.serving.padding import Padding


def test_a_batch_is_padded_to_the_next_captured_size_and_not_above_the_largest() -> None:
    padding = Padding(ServingOptions(cuda_graph_max_bs=16))
    assert [padding.decode_rows(rows) for rows in (0, 1, 3, 9, 16, 17)] == [0, 1, 4, 12, 16, 17]


def test_without_graphs_nothing_is_padded() -> None:
    assert Padding(ServingOptions()).decode_rows(13) == 13


def test_other_ranks_raise_the_batch_and_never_lower_it() -> None:
    padding = Padding(ServingOptions(dp_size=4, req_to_token_pool_size=20, seed=3))
    rows = [padding.decode_rows(5) for _ in range(40)]
    assert min(rows) >= 5
    assert max(rows) == 20
