"""Settings of whole servers for the plan's tests, and a strategy that varies them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvcanary.config.settings import Settings
from kvcanary.units import GIB, MIB

BASE: dict[str, Any] = {
    "num_layers": 24,
    "num_kv_heads": 6,
    "head_dim": 96,
    "model_dtype": "bfloat16",
    "device_memory_bytes": 47000 * MIB,
    "weight_bytes": 18 * GIB,
    "mem_fraction_static": 0.84,
    "pool_slot_count": 150_000,
    "req_to_token_pool_size": 200,
    "max_seq_len_per_req": 20_004,
    "graph_bytes": 900 * MIB,
    "cuda_graph_max_bs": 32,
    "chunked_prefill_size": 4096,
}
WINDOW: dict[str, Any] = {
    "pool_class": "SWAKVPool",
    "swa_num_layers": 18,
    "swa_num_kv_heads": 3,
    "sliding_window": 700,
    "swa_full_tokens_ratio": 0.3,
}


def server(**changes: Any) -> Settings:
    """The base server with some fields changed."""
    return Settings().replace(**{**BASE, **changes})


servers = st.builds(
    server,
    pool_slot_count=st.integers(1, 3000).map(lambda n: 64 * n),
    page_size=st.sampled_from([1, 16, 64]),
    req_to_token_pool_size=st.integers(1, 5000),
    max_seq_len_per_req=st.integers(1, 200_000),
    mode=st.sampled_from(["none", "log", "raise"]),
    verify_token_assert=st.booleans(),
    ring_capacity=st.integers(1, 100_000),
    pool_class=st.sampled_from(["MHATokenToKVPool", "SWAKVPool", "MLATokenToKVPool"]),
    swa_num_layers=st.integers(1, 24),
    swa_full_tokens_ratio=st.floats(0.05, 1.0),
    kv_dtype=st.sampled_from(["auto", "fp8_e4m3", "fp4_e2m1", "mxfp8", "float32"]),
    tp_size=st.sampled_from([1, 2, 3, 6, 12]),
    pp_size=st.just(1),
    speculative_num_draft_tokens=st.sampled_from([None, 4]),
    draft_num_layers=st.integers(1, 4),
    weight_bytes=st.integers(0, 60 * GIB),
    mem_fraction_static=st.floats(0.05, 0.99),
    graph_bytes=st.sampled_from([None, 0, GIB]),
    post_capture_kv_sizing=st.booleans(),
)
