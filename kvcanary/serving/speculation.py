"""Speculative decoding: which tokens are drafted, and how many of them the target accepts."""

from __future__ import annotations

import numpy as np

from kvcanary.serving.pool import Int64Array


class Drafter:
    """Drafts num_tokens tokens per request and step: the last sampled token and guesses, each right with a given chance."""

    def __init__(self, num_tokens: int, acceptance: float, vocab_size: int, seed: int) -> None:
        self.num_tokens, self._acceptance, self._vocab_size = num_tokens, acceptance, vocab_size
        self._rng = np.random.default_rng([seed, 2])

    def draft(self, truth: Int64Array, room: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Tokens to write and how many of them stay.

        truth: int64 [bs, num_tokens], the tokens that the target will choose. room: int64 [bs], the most that may stay. Returns
        drafted int64 [bs, num_tokens] and accepted int64 [bs], 1 to num_tokens: the leading right ones.
        """
        right = self._rng.random(truth.shape) < self._acceptance
        right[:, 0] = True
        wrong = (truth + 1 + self._rng.integers(0, self._vocab_size - 1, size=truth.shape)) % self._vocab_size
        accepted = np.logical_and.accumulate(right, axis=1).sum(axis=1)
        return np.where(right, truth, wrong), np.minimum(accepted, room)
