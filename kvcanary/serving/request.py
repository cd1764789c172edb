"""A request as it is asked for, and as the engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary.errors import ServingError
from kvcanary.serving.pool import Int32Array
from kvcanary.serving.tokens import oracle_tokens


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RequestSpec:
    """What a workload asks for. prompt: int32 [n >= 1]; output_len: tokens to generate, at least 1.

    namespace tells contents apart that have equal tokens (adapter, image, tenant); a prefix is shared only inside one.
    """

    prompt: Int32Array
    output_len: int
    arrival_s: float = 0.0
    namespace: int = 0

    def __post_init__(self) -> None:
        if len(self.prompt) < 1 or self.output_len < 1:
            raise ServingError(f"a request needs a prompt and an output, got {len(self.prompt)} prompt and {self.output_len} output tokens")


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the engine. token_ids: int32 [prompt + output], the output decided in advance by the token oracle.

    known_len grows as tokens are sampled and survives a retraction, so that a preempted request computes its own output again.
    """

    rid: int
    token_ids: Int32Array
    input_len: int
    known_len: int
    namespace: int
    row: int = 0

    @classmethod
    def from_spec(cls, rid: int, spec: RequestSpec, vocab_size: int) -> Request:
        """The request with its whole output."""
        input_len = len(spec.prompt)
        token_ids = np.empty(input_len + spec.output_len, dtype=np.int32)
        token_ids[:input_len] = spec.prompt
        token_ids[input_len:] = oracle_tokens(np.int64(rid), np.arange(input_len, len(token_ids)), vocab_size)
        return cls(rid, token_ids, input_len, input_len, spec.namespace)

    @property
    def total_len(self) -> int:
        """Prompt and whole output."""
        return len(self.token_ids)
