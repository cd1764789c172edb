"""The launch command of settings, read back by the importer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.presets import presets
from kvcanary.config.settings import Settings
from kvcanary.importers.detect import read_text

DECIDED = (
    "req_to_token_pool_size", "max_seq_len_per_req", "max_total_tokens", "page_size", "cuda_graph_max_bs", "speculative_num_draft_tokens",
    "max_prefill_tokens", "chunked_prefill_size", "mode", "real_data", "sweep_interval", "ring_capacity", "verify_v_half",
    "verify_token_assert",
)  # fmt: skip

FLAT = st.fixed_dictionaries(
    {
        "req_to_token_pool_size": st.integers(1, 9000),
        "max_seq_len_per_req": st.integers(30, 200_000),
        "pool_slot_count": st.integers(1000, 10**7),
        "cuda_graph_max_bs": st.integers(1, 600),
        "speculative_num_draft_tokens": st.none() | st.integers(1, 16),
        "max_prefill_tokens": st.integers(1, 10**5),
        "chunked_prefill_size": st.none() | st.sampled_from([-1, 64, 6400]),
        "page_size": st.sampled_from([1, 32, 64]),
        "mode": st.sampled_from(["log", "raise"]),
        "real_data": st.sampled_from(["none", "partial", "all"]),
        "sweep_interval": st.integers(0, 300),
        "ring_capacity": st.integers(1, 10**6),
        "verify_v_half": st.booleans(),
        "verify_token_assert": st.booleans(),
        "model": st.sampled_from(["", "org/some-model", "/models/with a space"]),
    }
)


def _read_back(settings: Settings) -> dict[str, Any]:
    return {name: found.value for name, found in read_text(sglang_flags(settings)).fields.items()}


def _checked(settings: Settings) -> None:
    """Every field that decides a capacity comes back; a field that is not written holds its default."""
    again = _read_back(settings)
    wanted = {**settings.to_flat(), "max_total_tokens": settings.pool.pool_slot_count}
    default = Settings().to_flat()
    chunk = wanted["chunked_prefill_size"]
    wanted["chunked_prefill_size"] = -1 if chunk is None or chunk < 0 else chunk
    for name in DECIDED:
        assert again.get(name, default[name]) == wanted[name], name


@given(FLAT)
@run_with(max_examples=60, deadline=None)
def test_the_importer_reads_the_command_back(values: dict[str, Any]) -> None:
    _checked(Settings.from_flat(values))


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_the_command_of_a_preset_is_read_back(preset: Any) -> None:
    _checked(preset.to_settings())


@pytest.mark.parametrize("batch", [None, 0])
def test_no_decode_graph_is_a_backend_and_leaves_prefill_graphs_alone(batch: int | None) -> None:
    text = sglang_flags(Settings.from_flat({"cuda_graph_max_bs": batch, "cuda_graph_backend_prefill": "breakable"}))
    assert "--cuda-graph-backend-decode disabled" in text
    assert "--cuda-graph-backend-prefill breakable" in text
    assert "--cuda-graph-max-bs-decode" not in text


@pytest.mark.parametrize(("device", "written"), [("xpu", True), ("cuda", False), ("NVIDIA H200 $(id)", False)])
def test_a_device_from_the_list_is_no_device_type(device: str, written: bool) -> None:
    assert ("--device" in sglang_flags(Settings.from_flat({"device": device}))) is written


@pytest.mark.parametrize(
    ("values", "chunk", "requests"),
    [
        (
            {"chunked_prefill_size": 1500, "global_chunked_prefill_size": 6003, "req_to_token_pool_size": 25, "max_running_requests": 101},
            6003,
            101,
        ),
        # Changed since: the command is that of the plan, not what was asked for once.
        (
            {"chunked_prefill_size": 750, "global_chunked_prefill_size": 6003, "req_to_token_pool_size": 20, "max_running_requests": 101},
            3000,
            80,
        ),
        ({"chunked_prefill_size": -1, "global_chunked_prefill_size": 6003, "req_to_token_pool_size": 20}, -1, 80),
    ],
)
def test_limits_over_ranks_are_those_of_the_plan(values: dict[str, Any], chunk: int, requests: int) -> None:
    text = sglang_flags(Settings.from_flat({**values, "enable_dp_attention": True, "dp_size": 4}))
    assert f"--chunked-prefill-size {chunk}" in text.split(" \\\n  ")
    assert f"--max-running-requests {requests}" in text.split(" \\\n  ")
