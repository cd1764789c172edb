"""Requests to serve: seeded synthetic mixes, and the requests of a trace given token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvcanary.errors import ConfigError
from kvcanary.importers.trace import MOONCAKE_BLOCK_TOKENS, TraceRow
from kvcanary.serving.pool import Int32Array
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.tokens import block_tokens

# Blocks of requests without prefix information get ids no trace uses.
_PRIVATE_IDS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A synthetic load. Lengths are drawn uniformly from (low, high), both included, tokens.

    requests per second arrive at random (Poisson). A request begins with one of `prefixes` shared texts with chance share_fraction;
    namespaces above 1 spread them over that many adapters. rate_per_s 0 means that all arrive at once.
    """

    requests: int = 200
    rate_per_s: float = 20.0
    prompt_len: tuple[int, int] = (16, 128)
    output_len: tuple[int, int] = (8, 64)
    prefixes: int = 4
    prefix_len: tuple[int, int] = (32, 128)
    share_fraction: float = 0.5
    namespaces: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "namespaces"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("prompt_len", "output_len", "prefix_len"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ConfigError(f"{name} must be two lengths 1 <= low <= high, got {low} and {high}")
        if not 0 <= self.share_fraction <= 1:
            raise ConfigError(f"share_fraction must be a fraction from 0 to 1, got {self.share_fraction}")
        if self.share_fraction and self.prefixes < 1:
            raise ConfigError(f"share_fraction={self.share_fraction} needs prefixes of at least 1, got {self.prefixes}")
        if not self.rate_per_s >= 0:
            raise ConfigError(f"rate_per_s must be 0 or more, got {self.rate_per_s}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


PRESETS: dict[str, Mix] = {
    "chat": Mix(),
    "agents": Mix(prefixes=2, prefix_len=(256, 384), share_fraction=0.95, prompt_len=(8, 48), output_len=(16, 48)),
    "batch": Mix(rate_per_s=0.0, share_fraction=0.0, prompt_len=(64, 256), output_len=(4, 16)),
    "decode-heavy": Mix(prompt_len=(4, 16), output_len=(128, 256), share_fraction=0.0),
    "adapters": Mix(namespaces=3, share_fraction=1.0, prefixes=2),
}


def synthetic(mix: Mix, vocab_size: int) -> Iterator[RequestSpec]:
    """The requests of a mix by arrival time; equal mixes give equal requests."""
    rng = np.random.default_rng([mix.seed, 3])
    prefixes = [_random_tokens(rng, mix.prefix_len, vocab_size) for _ in range(mix.prefixes)]
    clock_s = 0.0
    for _ in range(mix.requests):
        clock_s += float(rng.exponential(1 / mix.rate_per_s)) if mix.rate_per_s else 0.0
        prompt = _random_tokens(rng, mix.prompt_len, vocab_size)
        if rng.random() < mix.share_fraction:
            prompt = np.concatenate([prefixes[int(rng.integers(mix.prefixes))], prompt])
        yield RequestSpec(
            prompt=prompt,
            output_len=int(rng.integers(mix.output_len[0], mix.output_len[1] + 1)),
            arrival_s=clock_s,
            namespace=int(rng.integers(mix.namespaces)),
        )


def from_trace(rows: Iterable[TraceRow], vocab_size: int, *, seed: int = 0, speed: float = 1.0) -> Iterator[RequestSpec]:
    """The requests of a trace. Equal leading hash_ids give equal leading tokens; rows without ids share nothing.

    speed above 1 lets them arrive that much faster. Rows come in the order of the trace; ConfigError unless speed is positive.
    """
    if not speed > 0:
        raise ConfigError(f"speed must be positive, got {speed}")
    for index, row in enumerate(rows):
        blocks = -(-row.input_len // MOONCAKE_BLOCK_TOKENS)
        ids = np.array(row.hash_ids) if row.hash_ids is not None else _PRIVATE_IDS + (index << 20) + np.arange(blocks)
        prompt = block_tokens(ids, MOONCAKE_BLOCK_TOKENS, vocab_size, seed)[: row.input_len]
        yield RequestSpec(prompt=prompt, output_len=row.output_len, arrival_s=row.arrival_s / speed)


def _random_tokens(rng: np.random.Generator, lengths: tuple[int, int], vocab_size: int) -> Int32Array:
    return rng.integers(0, vocab_size, size=int(rng.integers(lengths[0], lengths[1] + 1)), dtype=np.int32)
