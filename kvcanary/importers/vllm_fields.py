"""From vLLM's names to the settings fields that have a counterpart, and its own check that one request fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcanary.config.findings import Finding, Fix
from kvcanary.config.rules_vllm import validate_vllm
from kvcanary.importers.fields import KV_DTYPES, MODEL_DTYPES, FieldSet, Place
from kvcanary.importers.result import Rank
from kvcanary.units import GIB


def vllm_arguments(found: FieldSet, arguments: Mapping[str, Any], place: Place, rank: Rank) -> None:
    """Fields that vLLM's arguments have a counterpart for."""
    get = arguments.get
    pairs = (
        ("model", "model"), ("tp_size", "tensor_parallel_size"), ("pp_size", "pipeline_parallel_size"), ("dp_size", "data_parallel_size"),
        ("max_seq_len_per_req", "max_model_len"), ("req_to_token_pool_size", "max_num_seqs"), ("max_prefill_tokens", "max_num_batched_tokens"),
        ("page_size", "block_size"), ("mem_fraction_static", "gpu_memory_utilization"),
    )  # fmt: skip
    for name, argument in pairs:
        if not (argument == "max_model_len" and get(argument) == -1):
            found.put(name, get(argument), place(argument), rank)
    found.put("kv_dtype", KV_DTYPES.get(str(get("kv_cache_dtype"))), place("kv_cache_dtype"), rank)
    found.put("model_dtype", MODEL_DTYPES.get(str(get("dtype"))), place("dtype"), rank)
    if isinstance(get("enable_prefix_caching"), bool):
        found.put("disable_radix_cache", not get("enable_prefix_caching"), place("enable_prefix_caching"), rank)
    if get("enforce_eager") is True:
        found.put("cuda_graph_backend_decode", "disabled", place("enforce_eager"), rank)
    # The override is a flag; the other name is that of the engine's own configuration.
    name = "num_gpu_blocks_override" if get("num_gpu_blocks_override") is not None else "num_gpu_blocks"
    blocks, size, speculative = get(name), get("block_size"), get("speculative_config")
    if isinstance(blocks, int) and isinstance(size, int):
        found.put("pool_slot_count", blocks * size, place(name), rank, f"{blocks} blocks x {size} tokens")
    found.findings += _cache_findings(get("max_model_len"), blocks, size)
    drafts = speculative.get("num_speculative_tokens") if isinstance(speculative, Mapping) else get("num_speculative_tokens")
    if isinstance(drafts, int):
        found.put("speculative_num_draft_tokens", drafts + 1, place("speculative_config"), rank, f"{drafts} drafts + the token itself")


def vllm_log(found: FieldSet, observed: Mapping[str, Any], lines: Mapping[str, int]) -> None:
    """Fields of vLLM's start-up log."""

    def where(what: str, name: str) -> str:
        return f"{what}, line {lines[name]}" if name in lines else what

    config = observed.get("config")
    if isinstance(config, Mapping):
        source = where("config", "config")
        vllm_arguments(found, config, lambda name: f"{name} in {source}", Rank.SERVER_ARGS)
    tokens = observed.get("gpu_kv_tokens", observed.get("kv_capacity_tokens"))
    if isinstance(tokens, list):
        found.put("pool_slot_count", min(tokens), where("GPU KV cache size", "gpu_kv_tokens"), Rank.READY, "smallest over engine cores")
        found.put("dp_size", len(tokens), where("GPU KV cache size", "gpu_kv_tokens"), Rank.LOG, "one line per engine core")
    elif tokens is not None:
        found.put(
            "pool_slot_count", tokens, where("GPU KV cache size", "gpu_kv_tokens" if "gpu_kv_tokens" in lines else "gpu_blocks"), Rank.READY
        )
    if "max_model_len" in lines:
        found.put("max_seq_len_per_req", observed.get("max_model_len"), where("Maximum concurrency", "max_model_len"), Rank.READY)
    elif not isinstance(config, Mapping) or "max_model_len" not in config:
        found.put("max_seq_len_per_req", observed.get("max_model_len"), "error message", Rank.LOG)
    found.put("page_size", observed.get("block_size"), where("GPU blocks", "gpu_blocks"), Rank.LOG, "tokens / blocks")
    if "error" not in observed:
        found.findings += _cache_findings(observed.get("max_model_len"), observed.get("gpu_blocks"), observed.get("block_size"))
    found.put("mem_fraction_static", observed.get("gpu_memory_utilization"), where("memory line", "gpu_memory_utilization"), Rank.LOG)
    for name, key, what in (
        ("weight_bytes", "weights_gib", "model weights"),
        ("weight_bytes", "weights_gb", "model weights"),
        ("device_memory_bytes", "total_gpu_gib", "total_gpu_memory"),
        ("device_memory_bytes", "total_gib", "memory of the device"),
        ("graph_bytes", "cuda_graph_mem_gib", "Graph capturing finished"),
    ):
        if isinstance(observed.get(key), int | float):
            found.put(name, round(observed[key] * GIB), where(what, key), Rank.LOG)


_SETTINGS_NAMES = {
    "max_model_len": "max_seq_len_per_req",
    "num_gpu_blocks": "pool_slot_count",
    "gpu_memory_utilization": "mem_fraction_static",
}


def _cache_findings(max_model_len: Any, blocks: Any, size: Any) -> list[Finding]:
    """vLLM's check of its cache, under the names of our settings, where a text states all of its sizes."""
    if type(max_model_len) is not int or type(blocks) is not int or type(size) is not int or max_model_len < 1 or blocks < 0 or size < 1:
        return []
    found = validate_vllm(max_model_len=max_model_len, num_gpu_blocks=blocks, block_size=size)
    return [
        replace(entry, fields=tuple(_SETTINGS_NAMES[name] for name in entry.fields), fixes=tuple(_as_settings(fix) for fix in entry.fixes))
        for entry in found
    ]


def _as_settings(fix: Fix) -> Fix:
    return replace(fix, field=_SETTINGS_NAMES[fix.field])
