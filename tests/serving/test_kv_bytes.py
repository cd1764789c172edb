"""KV bytes: another row for another token, position or strip, and never a zero word."""

from __future__ import annotations

import numpy as np

from kvcanary.serving.kv_bytes import kv_rows, kv_strips, noise_row
from kvcanary.serving.tokens import splitmix64


def test_rows_differ_by_token_position_and_strip_in_the_first_sixteen_bytes() -> None:
    tokens, positions = np.repeat(np.arange(40), 30), np.tile(np.arange(30), 40)
    rows = kv_strips(tokens, positions, range(3), 32)[:, :, :16].reshape(-1, 16)
    assert len(np.unique(rows, axis=0)) == 40 * 30 * 3
    assert (rows.copy().view(np.uint64) != 0).all()


def test_strips_at_once_are_the_strips_one_by_one() -> None:
    tokens, positions = np.array([0, 5, 31999]), np.array([0, 7, -1])
    together = kv_strips(tokens, positions, (0, 2, 255), 64)
    assert together.shape == (3, 3, 64)
    for index, strip in enumerate((0, 2, 255)):
        np.testing.assert_array_equal(together[index], kv_rows(tokens, positions, strip, 64))


def test_a_word_is_the_hash_of_token_position_strip_and_place() -> None:
    key = splitmix64(splitmix64(np.array([8], dtype=np.uint64)) ^ np.uint64(3)) ^ np.uint64(1 << 40)
    expected = splitmix64(key + np.uint64(2)) | np.uint64(1)
    assert kv_rows(np.array([7]), np.array([3]), 1, 16)[0, 8:].view(np.uint64) == expected


def test_no_tokens_have_no_rows_and_noise_is_nobodys() -> None:
    assert kv_strips(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), (0,), 16).shape == (1, 0, 16)
    assert noise_row(3, 32).tobytes() not in kv_rows(np.full(50, 3), np.arange(50), 0, 32).tobytes()
