"""What a campaign serves: a synthetic mix by name, or some requests of a trace made small enough for a pool that a replay can show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from kvcanary.errors import ConfigError
from kvcanary.importers.trace import MOONCAKE_BLOCK_TOKENS, TraceProblem, TraceReader
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.tokens import block_tokens
from kvcanary.serving.workload import PRESETS, Mix
from kvcanary.units import format_count

SMALL = "small"
TRACE_REQUESTS = 64
MAX_SCALE = MOONCAKE_BLOCK_TOKENS
# Blocks of requests without prefix information get ids that no trace uses.
_PRIVATE_IDS = 1 << 62
# Room for the longest prompt of the presets, and still few enough slots to be drawn one by one.
MEDIUM_POOL = ServingOptions(pool_slot_count=2048, req_to_token_pool_size=12, max_seq_len_per_req=512, chunked_prefill_size=256)
# Few requests: a fault that finds no victim makes a run go on to the end of its workload.
LOADS: Mapping[str, Mix] = {name: replace(mix, requests=32) for name, mix in PRESETS.items()}
LOAD_WORDS: Mapping[str, str] = {
    SMALL: "short prompts, some with a shared prefix; 512 slots, so that every slot can be seen",
    "chat": "prompts of 16 to 128 tokens, half of them behind a shared prefix",
    "agents": "long shared prefixes, short prompts",
    "batch": "everything arrives at once and shares nothing",
    "decode-heavy": "short prompts, long replies",
    "adapters": "three adapters whose prefixes have equal tokens",
}


@dataclass(frozen=True, slots=True)
class TraceSample:
    """Consecutive requests of a trace. rows: (arrival in s from the first, input tokens, output tokens, hash ids or None), as in the file.

    scale divides lengths and times, so that the load stays what it is; a block of the trace then has 512 / scale tokens. speed makes them
    arrive that much faster on top.
    """

    name: str
    kind: str
    rows: tuple[tuple[float, int, int, tuple[int, ...] | None], ...]
    scale: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not self.rows:
            raise ConfigError(f"trace {self.name[:60]!r} has no request that can be read; expected at least one")
        if not 1 <= self.scale <= MAX_SCALE or self.scale & (self.scale - 1):
            raise ConfigError(f"scale must be a power of two from 1 to {MAX_SCALE}, got {self.scale}")
        if not self.speed > 0:
            raise ConfigError(f"speed must be positive, got {self.speed}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        rows = [[arrival_s, length, output, None if ids is None else list(ids)] for arrival_s, length, output, ids in self.rows]
        return {"name": self.name, "kind": self.kind, "rows": rows, "scale": self.scale, "speed": self.speed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of to_dict; ConfigError for something else."""
        try:
            rows = tuple((float(at), int(length), int(out), None if ids is None else tuple(ids)) for at, length, out, ids in values["rows"])
            return cls(str(values["name"]), str(values["kind"]), rows, int(values["scale"]), float(values["speed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a stored trace cannot be read: {error}") from None

    @property
    def longest(self) -> int:
        """Tokens of the longest request, input and output, as in the file."""
        return max(length + output for _, length, output, _ in self.rows)

    @property
    def summary(self) -> str:
        """What is served, in words."""
        scaled = f", lengths and times divided by {self.scale} so that its longest fits" if self.scale > 1 else ""
        return f"{format_count(len(self.rows))} requests of {self.name} ({self.kind}, longest {format_count(self.longest)} tokens){scaled}"

    def requests(self, vocab_size: int, seed: int) -> Iterator[RequestSpec]:
        """The requests, scaled. Equal leading hash ids give equal leading tokens; rows without ids share nothing."""
        block = MOONCAKE_BLOCK_TOKENS // self.scale
        for index, (arrival_s, length, output, ids) in enumerate(self.rows):
            scaled = -(-length // self.scale)
            blocks = -(-scaled // block)
            known = ids if ids is not None else [_PRIVATE_IDS + (index << 20) + part for part in range(blocks)]
            prompt = block_tokens(np.array(known, dtype=np.int64), block, vocab_size, seed)[:scaled]
            yield RequestSpec(prompt=prompt, output_len=-(-output // self.scale), arrival_s=arrival_s / self.scale / self.speed)


def sample_trace(
    lines: Iterable[str], name: str, *, first: int = 1, speed: float = 1.0, limit: int = TRACE_REQUESTS
) -> tuple[TraceSample, Sequence[TraceProblem]]:
    """Up to `limit` requests of a trace from its request number `first` on, and the bad rows met on the way.

    The scale is the smallest power of two with which the longest of them fits a request row of MEDIUM_POOL; with none that does, the longest
    are rejected by the engine as they would be there. ImportTextError when the text is no trace, ConfigError when nothing is left of it.
    """
    if first < 1:
        raise ConfigError(f"the first request must be at least 1, got {first}")
    reader = TraceReader(lines)
    taken = list(itertools.islice(reader, first - 1, first - 1 + limit))
    if not taken:
        bad = f"; {reader.bad_rows} rows cannot be read, the first is {reader.problems[0]}" if reader.problems else ""
        raise ConfigError(f"the trace has {reader.rows} requests, so there is none from request {first} on{bad}")
    start_s = taken[0].arrival_s
    rows = tuple((max(0.0, row.arrival_s - start_s), row.input_len, row.output_len, row.hash_ids) for row in taken)
    longest, scale = max(row.input_len + row.output_len for row in taken), 1
    while longest / scale > MEDIUM_POOL.longest_request - 2 and scale < MAX_SCALE:
        scale *= 2
    return TraceSample(name, reader.kind.value, rows, scale, speed), reader.problems
