"""Workloads: seeded mixes and traces with token ids."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kvcanary.errors import ConfigError
from kvcanary.importers.trace import TraceReader, TraceRow
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.workload import PRESETS, Mix, from_trace, synthetic


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_keep_their_lengths_and_run_to_the_end(preset: str) -> None:
    mix = PRESETS[preset]
    requests = list(synthetic(mix, 1000))
    assert len(requests) == mix.requests
    assert min(len(spec.prompt) for spec in requests) >= mix.prompt_len[0]
    assert max(len(spec.prompt) for spec in requests) <= mix.prompt_len[1] + (mix.prefix_len[1] if mix.share_fraction else 0)
    assert all(mix.output_len[0] <= spec.output_len <= mix.output_len[1] for spec in requests)
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(requests))
    engine = ServingEngine(ServingOptions(vocab_size=1000), requests)
    assert sum(len(step.tokens) for step in engine.steps()) > 0
    assert (engine.finished, engine.rejected) == (mix.requests, 0)
    engine.check()


def test_equal_mixes_give_equal_requests() -> None:
    first, again, other = (list(synthetic(Mix(requests=30, seed=seed), 500)) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.prompt, b.prompt)
        assert (a.arrival_s, a.output_len, a.namespace) == (b.arrival_s, b.output_len, b.namespace)
    assert any(len(a.prompt) != len(b.prompt) for a, b in zip(first, other, strict=True))


def test_shared_prefixes_are_hit() -> None:
    def computed(share_fraction: float) -> int:
        mix = Mix(requests=60, share_fraction=share_fraction, prefixes=1, prefix_len=(64, 64), prompt_len=(8, 8), output_len=(1, 1))
        engine = ServingEngine(ServingOptions(vocab_size=1000), synthetic(mix, 1000))
        return sum(len(step.tokens) for step in engine.steps())

    assert computed(0.0) == 60 * 8
    assert computed(1.0) == 64 + 60 * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"prompt_len": (9, 3)}, "prompt_len must be two lengths 1 <= low <= high, got 9 and 3"),
        ({"share_fraction": 2.0}, "share_fraction must be a fraction"),
        ({"prefixes": 0}, "share_fraction=0.5 needs prefixes of at least 1, got 0"),
        ({"rate_per_s": -1.0}, "rate_per_s must be 0 or more"),
    ],
)
def test_illegal_mixes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mix(**changes)


def test_equal_hash_ids_are_a_prefix_that_the_cache_finds() -> None:
    rows = [
        TraceRow(1, 0.0, 1100, 1, (7, 8, 9)),
        TraceRow(2, 5.0, 1400, 1, (7, 8, 11)),
        TraceRow(3, 10.0, 600, 1, (8, 7)),
    ]
    options = ServingOptions(max_seq_len_per_req=2000, chunked_prefill_size=None)
    prefixes = [int(step.prefix_lens[0]) for step in ServingEngine(options, from_trace(rows, 32000)).steps()]
    assert prefixes == [0, 1024, 0]


def test_rows_without_ids_share_nothing() -> None:
    rows = [TraceRow(line, 1.0 * line, 300, 1) for line in (1, 2)]
    first, second = from_trace(rows, 32000)
    assert (first.prompt != second.prompt).mean() > 0.99


def test_speed_compresses_time_and_must_be_positive() -> None:
    rows = [TraceRow(1, 0.0, 3, 1), TraceRow(2, 8.0, 3, 1)]
    assert [spec.arrival_s for spec in from_trace(rows, 100, speed=4.0)] == [0.0, 2.0]
    with pytest.raises(ConfigError, match="speed must be positive, got 0"):
        next(from_trace(rows, 100, speed=0))


def test_a_trace_runs_from_text_to_the_last_token() -> None:
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *(f"{i},m,{20 + i},{3 + i},0,log" for i in range(12))]
    engine = ServingEngine(ServingOptions(), from_trace(TraceReader(lines), 32000))
    tokens = sum(len(step.tokens) for step in engine.steps())
    assert tokens == sum(20 + i + 3 + i - 1 for i in range(12))
    assert engine.finished == 12
