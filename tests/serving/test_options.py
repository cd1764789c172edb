"""Options are checked where they are made, and every message names the knob."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvcanary.errors import ConfigError
from kvcanary.serving.options import ServingOptions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_slot_count": 0}, "pool_slot_count must be at least 1, got 0"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size must be at least 1, got 0"),
        ({"draft_acceptance": 1.5}, "draft_acceptance must be a fraction from 0 to 1, got 1.5"),
        ({"step_s": 0.0}, "step_s must be positive seconds, got 0.0"),
        (
            {"page_size": 16, "pool_slot_count": 4090},
            "pool_slot_count must be a multiple of page_size=16, got 4090; the nearest below is 4080",
        ),
        ({"kv_row_bytes": 72}, "kv_row_bytes must be a multiple of 16 from 64 on, got 72"),
        ({"sliding_window": 64}, "sliding_window and swa_pool_slot_count go together, got 64 and None"),
        ({"enable_mixed_chunk": True, "chunked_prefill_size": None}, "enable_mixed_chunk=True needs chunked_prefill_size"),
        ({"enable_mixed_chunk": True, "speculative_num_draft_tokens": 3}, "no speculative_num_draft_tokens, got 512 and 3"),
        ({"host_slot_count": 64, "radix_cache": False}, "host_slot_count=64 needs radix_cache=True, got False"),
        ({"disaggregation_mode": "both"}, "disaggregation_mode must be 'null', 'prefill' or 'decode', got 'both'"),
        ({"disaggregation_mode": "decode"}, "disaggregation_mode='decode' needs radix_cache=False, got True"),
        ({"max_prefill_tokens": 8, "page_size": 16}, "max_prefill_tokens=8 is below page_size=16"),
        ({"pool_slot_count": 4, "speculative_num_draft_tokens": 4}, "no request of two tokens fits"),
    ],
)
def test_illegal_options_say_what_to_change(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ServingOptions(**changes)


@pytest.mark.parametrize(
    ("changes", "budget", "longest"),
    [
        ({}, 512, 1024),
        ({"chunked_prefill_size": None}, 16384, 1024),
        ({"max_prefill_tokens": 100}, 100, 1024),
        ({"pool_slot_count": 200}, 512, 200),
        ({"pool_slot_count": 200, "speculative_num_draft_tokens": 5, "overlap": True}, 512, 195),
        ({"pool_slot_count": 208, "page_size": 16}, 512, 193),
        ({"sliding_window": 16, "swa_pool_slot_count": 90}, 512, 90),
    ],
)
def test_derived_limits(changes: dict[str, Any], budget: int, longest: int) -> None:
    options = ServingOptions(**changes)
    assert (options.prefill_budget, options.longest_request) == (budget, longest)


def test_options_go_through_json() -> None:
    options = ServingOptions(page_size=4, sliding_window=8, swa_pool_slot_count=64, seed=9)
    assert ServingOptions(**options.to_dict()) == options
