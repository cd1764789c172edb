"""Columns that widen with their values: nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcanary.analysis.columns import IntColumn

NUMBERS = st.one_of(st.integers(-130, 130), st.integers(-(1 << 33), 1 << 33), st.integers(-(1 << 63), (1 << 63) - 1))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(NUMBERS, st.lists(NUMBERS, max_size=5)), max_size=12), NUMBERS)
@example([[-128, 127], [128], [-32_768, 32_767], [32_768], [-(1 << 31), (1 << 31) - 1], [1 << 31]], 0)
def test_values_come_back_one_by_one_or_together(parts: list[int | list[int]], changed: int) -> None:
    column, expected = IntColumn(), []
    for part in parts:
        if isinstance(part, int):
            column.append(part)
            expected.append(part)
        else:
            column.extend(np.array(part, dtype=np.int64))
            expected += part
    if expected:
        column[0] = expected[0] = changed
    assert list(column) == expected == column.array().tolist()
    assert len(column) == len(expected)


def test_small_values_stay_small() -> None:
    column = IntColumn()
    column.extend(np.full(1000, -1))
    assert column.nbytes == 1000
    column.append(1 << 20)
    assert column.nbytes == 4004


def test_a_value_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        IntColumn().append(1 << 63)
