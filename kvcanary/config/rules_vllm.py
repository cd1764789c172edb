"""vLLM's start-up rule about its cache, under its own names: one request of full length has to fit.

Sentences are vLLM's own, as its releases up to 0.10 print them; newer ones compare bytes and say so in other words.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary.config.findings import Finding, Fix
from kvcanary.config.rule_parts import error
from kvcanary.errors import ConfigError

CACHE_CHECK = "vLLM, check of the KV cache size after profiling"
NO_BLOCKS = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."


def validate_vllm(*, max_model_len: int, num_gpu_blocks: int, block_size: int) -> list[Finding]:
    """The finding that stops the start, or none. Fields are named as vLLM names them; ConfigError for sizes that no engine has."""
    for name, value, least in (("max_model_len", max_model_len, 1), ("num_gpu_blocks", num_gpu_blocks, 0), ("block_size", block_size, 1)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    return list(_request_fits(max_model_len, num_gpu_blocks, block_size))


def _request_fits(max_model_len: int, num_gpu_blocks: int, block_size: int) -> Iterator[Finding]:
    tokens = num_gpu_blocks * block_size
    more_memory = Fix(
        field="gpu_memory_utilization",
        value=None,
        flag="--gpu-memory-utilization",
        text="raise --gpu-memory-utilization",
        amount_known=False,
    )
    if tokens == 0:
        why = "After weights and activations nothing of the engine's share of memory is left for the KV cache."
        yield error("vllm_no_blocks", ("num_gpu_blocks",), NO_BLOCKS, why, more_memory, source=CACHE_CHECK)
    elif max_model_len > tokens:
        message = (
            f"The model's max seq len ({max_model_len}) is larger than the maximum number of tokens that can be stored in KV cache ({tokens}). "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
        why = (
            f"{num_gpu_blocks} blocks of {block_size} tokens hold {tokens}, so not one request of {max_model_len} tokens fits: "
            f"concurrency {tokens} / {max_model_len} = {tokens / max_model_len:.2f}."
        )
        shorter = Fix(field="max_model_len", value=tokens, flag=f"--max-model-len {tokens}", text=f"set --max-model-len to {tokens}")
        yield error("vllm_request_fits", ("max_model_len", "num_gpu_blocks"), message, why, shorter, more_memory, source=CACHE_CHECK)
