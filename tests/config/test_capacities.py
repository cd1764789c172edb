"""Launch capacities and the canary's own memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.config.capacities import LaunchCapacities, buffer_groups, canary_buffer_bytes, canary_line_items, ring_bytes
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError

SIZES = st.integers(1, 10**7)


@pytest.mark.parametrize(
    ("graph", "rows", "slots", "draft", "prefill", "chunk", "groups", "expected"),
    [
        (8, 8, 512, 0, 128, None, 1, (1536, 8, 128, 51_604)),
        (2, 2, 64, None, 128, None, 1, (192, 2, 128, 8_308)),
        (0, 1, 1, 0, 1, None, 1, (3, 1, 1, 180)),
        (256, 4096, 392_920, None, 16384, 8192, 1, (1_178_760, 4096, 8192, 38_048_020)),
        (256, 4096, 392_920, 4, 16384, 8192, 1, (1_178_760, 4096, 16384, 38_179_092)),
        (8, 48, 1_000_000, 6, 16384, -1, 2, (3_000_000, 48, 16384, 192_265_256)),
    ],
)
def test_worked_examples(
    graph: int, rows: int, slots: int, draft: int | None, prefill: int, chunk: int | None, groups: int, expected: tuple[int, ...]
) -> None:
    settings = Settings.from_flat(
        {
            "cuda_graph_max_bs": graph, "req_to_token_pool_size": rows, "pool_slot_count": slots, "speculative_num_draft_tokens": draft,
            "max_prefill_tokens": prefill, "chunked_prefill_size": chunk,
        }
    )  # fmt: skip
    found = LaunchCapacities.from_settings(settings)
    workspace = found.workspace_bytes(groups)
    assert (found.verify_capacity, found.write_req_capacity, found.write_entry_capacity, workspace) == expected


def evaluate(text: str) -> bool:
    """Work out a printed formula line with nothing but its own digits: names in front of numbers are dropped."""
    left, _, right = text.rpartition(" = ")
    digits = re.sub(r"[A-Za-z_]\w* (?=-?\d)", "", left)
    assert not set(re.findall(r"[A-Za-z_]\w*", digits)) - {"max", "min"}, digits
    return eval(digits, {"__builtins__": {}}, {"max": max, "min": min}) == int(right)


@given(SIZES, SIZES, SIZES, st.none() | st.integers(0, 16), SIZES, st.none() | st.integers(-5, 10**6), st.integers(1, 64))
def test_printed_formulas_give_their_results(
    graph: int, rows: int, slots: int, draft: int | None, prefill: int, chunk: int | None, page: int
) -> None:
    values: dict[str, Any] = {
        "cuda_graph_max_bs": graph, "req_to_token_pool_size": rows, "pool_slot_count": slots, "speculative_num_draft_tokens": draft,
        "max_prefill_tokens": prefill, "chunked_prefill_size": chunk, "page_size": page, "verify_token_assert": True,
    }  # fmt: skip
    settings = Settings.from_flat(values)
    capacities = LaunchCapacities.from_settings(settings)
    lines = [*(bound.text for bound in capacities.bounds), *(item.text for item in canary_line_items(settings))]
    assert all(evaluate(line) for line in lines), lines


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({"pool_slot_count": 392_920}, 50_293_888),
        ({"pool_slot_count": 1_106_304, "page_size": 64}, 141_615_104),
        ({"pool_slot_count": 1_000_000, "pool_class": "SWAKVPool", "swa_full_tokens_ratio": 0.2}, 128_000_128 + 25_600_128),
        ({"pool_slot_count": 200_000, "pool_class": "DeepSeekV4TokenToKVPool", "swa_full_tokens_ratio": 0.5}, 6_400_000),
        ({"pool_class": "MLATokenToKVPool"}, 0),
    ],
)
def test_buffer_bytes_by_pool_class(changes: dict[str, Any], total: int) -> None:
    assert canary_buffer_bytes(Settings.from_flat(changes)) == total


def test_line_items_add_up_and_vanish_with_the_mode() -> None:
    settings = Settings.from_flat(
        {"pool_slot_count": 5000, "verify_token_assert": True, "max_seq_len_per_req": 100, "req_to_token_pool_size": 9}
    )
    items = canary_line_items(settings)
    assert sum(item.bytes for item in items if item.part == "canary buffers") == canary_buffer_bytes(settings)
    sizes = [item.bytes for item in items]
    assert 4 * 10 * 100 in sizes
    assert ring_bytes(settings) in sizes
    assert canary_line_items(settings.replace(mode="none")) == []


def test_groups_follow_the_pool_class() -> None:
    kinds = [group.kind for group in buffer_groups(Settings.from_flat({"pool_class": "SWAKVPool", "sliding_window": 8}))]
    assert kinds == ["FULL", "SWA"]
    [only] = buffer_groups(Settings.from_flat({"pool_class": "DeepSeekV4TokenToKVPool"}))
    assert (only.kind, only.num_buffers) == ("SWA", 2)


def test_the_first_error_of_several_is_raised() -> None:
    settings = Settings.from_flat({"pool_slot_count": 0, "max_prefill_tokens": 0, "req_to_token_pool_size": 1})
    with pytest.raises(ConfigError, match=r"^kv-canary: pool_slot_count must be positive, got 0$"):
        LaunchCapacities.from_settings(settings)
