"""Drafts: what is written, what is kept, and how often a guess is right."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary.serving.speculation import Drafter


def test_the_accepted_tokens_are_the_leading_right_ones() -> None:
    truth = np.arange(4000).reshape(1000, 4) % 700
    drafted, accepted = Drafter(4, 0.6, 700, seed=1).draft(truth, np.full(1000, 4))
    right = drafted == truth
    assert right[:, 0].all()
    leading = np.logical_and.accumulate(right, axis=1).sum(axis=1)
    np.testing.assert_array_equal(accepted, leading)
    assert set(accepted.tolist()) == {1, 2, 3, 4}
    assert right[:, 1:].mean() == pytest.approx(0.6, abs=0.03)
    assert ((drafted >= 0) & (drafted < 700)).all()


def test_no_more_stays_than_there_is_room_for() -> None:
    truth = np.ones((3, 4), dtype=np.int64)
    _, accepted = Drafter(4, 1.0, 50, seed=0).draft(truth, np.array([1, 3, 9]))
    assert accepted.tolist() == [1, 3, 4]


def test_a_vocabulary_of_two_still_has_a_wrong_token() -> None:
    truth = np.zeros((50, 3), dtype=np.int64)
    drafted, accepted = Drafter(3, 0.0, 2, seed=0).draft(truth, np.full(50, 3))
    assert drafted.tolist() == [[0, 1, 1]] * 50
    assert set(accepted.tolist()) == {1}
