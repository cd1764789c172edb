"""vLLM's check of its cache size: one request of full length has to fit."""

from __future__ import annotations

import pytest

from kvcanary.config.rules_vllm import NO_BLOCKS, validate_vllm
from kvcanary.errors import ConfigError


def test_a_request_that_does_not_fit_stops_the_start() -> None:
    [finding] = validate_vllm(max_model_len=5000, num_gpu_blocks=300, block_size=16)
    assert (finding.severity, finding.exact, finding.fields) == ("error", True, ("max_model_len", "num_gpu_blocks"))
    assert finding.message == (
        "The model's max seq len (5000) is larger than the maximum number of tokens that can be stored in KV cache (4800). Try increasing "
        "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    )
    assert "4800 / 5000 = 0.96" in finding.why
    first, second = finding.fixes
    assert (first.field, first.value, first.flag) == ("max_model_len", 4800, "--max-model-len 4800")
    assert (second.flag, second.amount_known) == ("--gpu-memory-utilization", False)


@pytest.mark.parametrize("length", [1, 4799, 4800])
def test_a_request_that_fits(length: int) -> None:
    assert validate_vllm(max_model_len=length, num_gpu_blocks=300, block_size=16) == []


def test_a_cache_without_blocks_has_a_sentence_of_its_own() -> None:
    [finding] = validate_vllm(max_model_len=1, num_gpu_blocks=0, block_size=16)
    assert finding.message == NO_BLOCKS


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((0, 1, 16), "max_model_len must be at least 1, got 0"),
        ((1, -1, 16), "num_gpu_blocks must be at least 0, got -1"),
        ((1, 1, 0), "block_size must be at least 1, got 0"),
    ],
)
def test_sizes_that_no_engine_has(sizes: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validate_vllm(max_model_len=sizes[0], num_gpu_blocks=sizes[1], block_size=sizes[2])
