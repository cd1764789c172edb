"""Captured sizes and padded batches."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.serving.options import ServingOptions
from kvcanary.serving.padding import Padding, capture_sizes


@pytest.mark.parametrize(
    ("max_bs", "speculative", "count", "head", "tail"),
    [
        (256, False, 36, (1, 2, 4, 8, 12, 16), (240, 248, 256)),
        (10, False, 5, (1, 2, 4), (4, 8, 10)),
        (1, False, 1, (1,), (1,)),
        (576, False, 54, (1, 2), (512, 544, 576)),
        (64, True, 27, (1, 2, 3, 4, 5, 6, 7, 8, 10), (56, 60, 64)),
    ],
)
def test_capture_sizes(max_bs: int, speculative: bool, count: int, head: tuple[int, ...], tail: tuple[int, ...]) -> None:
    sizes = capture_sizes(max_bs, speculative=speculative)
    assert len(sizes) == count
    assert sizes[: len(head)] == head
    assert sizes[-len(tail) :] == tail
    assert np.all(np.diff(sizes) > 0)


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
