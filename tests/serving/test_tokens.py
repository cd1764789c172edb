"""Token ids against published vectors and the plain-integer hash."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary import layout
from kvcanary.serving.tokens import block_tokens, oracle_tokens, splitmix64


def test_splitmix_equals_the_plain_integer_form() -> None:
    values = [0, 1, 2, 42, (1 << 63) - 1, 1 << 63, layout.MASK64, 0xDEADBEEFCAFEBABE]
    assert splitmix64(np.array(values, dtype=np.uint64)).tolist() == [layout.splitmix64(value) for value in values]


@pytest.mark.parametrize(
    ("rid", "position", "vocab_size", "token"),
    [(1, 0, 151936, 112485), (1, 1, 151936, 0), (7, 100, 151936, 133385), (7, 100, 32000, 2441), (123456789, 4095, 128256, 59835)],
)
def test_oracle_vectors(rid: int, position: int, vocab_size: int, token: int) -> None:
    assert oracle_tokens(np.array([rid]), np.array([position]), vocab_size).tolist() == [token]


def test_equal_blocks_give_equal_tokens_and_others_do_not() -> None:
    tokens = block_tokens(np.array([3, 4, 3]), 64, 5000, seed=1).reshape(3, 64)
    np.testing.assert_array_equal(tokens[0], tokens[2])
    assert (tokens[0] != tokens[1]).mean() > 0.9
    assert (tokens[0] != block_tokens(np.array([3]), 64, 5000, seed=2)).mean() > 0.9
    assert (tokens >= 0).all()
    assert (tokens < 5000).all()
