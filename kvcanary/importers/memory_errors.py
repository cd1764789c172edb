"""Messages about KV memory: a pool that came out empty, too small, exhausted or wrongly accounted, in SGLang and vLLM."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kvcanary.config.defaults import request_row_width
from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix
from kvcanary.importers.error_entries import Entry, F, Groups, N, raised, towards
from kvcanary.units import format_count

# SGLang 0.5.23, tp_worker.py: max_req_input_len = min(context_len, pool) - 1 - 5, and a prompt has to be shorter than that.
PROMPT_SPARE_TOKENS = 6


def _leak(groups: Groups) -> Mapping[str, Any]:
    names = ("total", "available", "evictable", "protected", "uncached")
    values = {name: int(groups[name]) for name in names if groups.get(name)}
    total = values["available"] + values["evictable"] + values["protected"]
    return {**values, "sum": total, "overcount": total - values["total"]}


def _utilization(groups: Groups) -> Iterable[Fix]:
    share = math.floor(float(groups["free"]) / float(groups["total"]) * 100) / 100 if float(groups["total"]) > 0 else 0
    if 0 < share < 1:
        yield Fix(
            field="mem_fraction_static",
            value=share,
            flag=f"--gpu-memory-utilization {share:g}",
            text=f"set --gpu-memory-utilization to {share:g}",
        )


def _shorter(tokens: str) -> Fix:
    length = int(tokens or 0)
    if length < 1:
        return towards("max_seq_len_per_req", "--max-model-len", "lower")
    return Fix(field="max_seq_len_per_req", value=length, flag=f"--max-model-len {length}", text=f"set --max-model-len to {length}")


def _room_for(length: int) -> Iterable[Fix]:
    """The least pool, and the least context, for a prompt that was turned away; the message does not say which of them is the limit."""
    needed = length + PROMPT_SPARE_TOKENS + 1
    yield fix("pool_slot_count", needed, f"where the pool is the limit: at least {format_count(needed)} slots")
    yield Fix(
        field="max_seq_len_per_req",
        value=request_row_width(needed, None).value,
        flag=f"--context-length {needed}",
        text=f"where the context is the limit: set --context-length to {needed}",
    )


MEMORY = (
    Entry(
        label="no_kv_memory",
        pattern=re.compile(
            rf"Loaded weights leave no GPU memory for the KV cache under\s*--mem-fraction-static=(?P<current>{F})\."
            rf"(?:\s*Raise --mem-fraction-static above (?P<suggested>{F}))?(?:\s*\(minimum viable = 1 - available/pre = (?P<minimum>{F})\))?"
        ),
        explanation="The weights take more than the share of memory that --mem-fraction-static={current} allows for weights and KV together.",
        causes=(
            "The fraction is too small for this model on this device: it has to go up, not down.",
            "The weights of a draft model are counted too.",
            "Another process holds memory on the device.",
        ),
        fixes=raised,
        values=lambda groups: {
            "mem_fraction_static": float(groups["current"]),
            **({"suggested_mem_fraction_static": float(groups["suggested"])} if groups.get("suggested") else {}),
            **({"minimum_mem_fraction_static": float(groups["minimum"])} if groups.get("minimum") else {}),
        },
    ),
    Entry(
        label="no_kv_memory",
        pattern=re.compile(
            r"Not enough memory[.;]? ?Please try to increase --mem-fraction-static\.?"
            rf"(?:\s*Current value: (?:mem_fraction_static=|self\.\w+=)?(?P<current>{F}))?"
        ),
        explanation="After the weights were loaded, nothing is left of the static share for the KV pool.",
        causes=(
            "The static fraction is too small for the weights: it has to go up.",
            "The weights are too large for this many ranks: more tensor-parallel ranks or a smaller dtype.",
            "Another process holds memory on the device.",
        ),
        fixes=raised,
        values=lambda groups: {"mem_fraction_static": float(groups["current"])} if groups.get("current") else {},
    ),
    Entry(
        label="swa_pool_too_small",
        pattern=re.compile(
            r"SWA pool \((?P<tokens>\d+) tokens\) cannot hold even one request: the prefill admission floor is "
            r"sliding_window_size \((?P<window>\d+)\) \+\s*page_size \((?P<page>\d+)\)"
        ),
        explanation="The window pool has {tokens} slots; one request needs the window of {window} and a page of {page}.",
        causes=("The window pool's share is small.", "The whole KV budget is small."),
        fixes=lambda groups: (fix("swa_full_tokens_ratio", 1.0),),
    ),
    Entry(
        label="input_exceeds_pool",
        pattern=re.compile(r"Input length \((?P<length>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)"),
        explanation="A prompt of {length} tokens was turned away: it has to be shorter than {limit}. The limit is the smaller of the context and "
        "the pool.",
        causes=("The pool is smaller than the context length, so one long prompt does not fit.", "The prompt is longer than the context."),
        fixes=lambda groups: _room_for(int(groups["length"])),
        values=lambda groups: {"rejected_input_len": int(groups["length"]), "max_allowed_input_len": int(groups["limit"])},
    ),
    Entry(
        label="alloc_req_slots_oom",
        pattern=re.compile(
            r"alloc_req_slots runs out of memory\.(?:.{0,120}?available_size\(\)=(?P<available>\d+), num_reqs=(?P<requests>\d+))?",
            re.DOTALL,
        ),
        explanation="The request table has no free row, although tokens may still be free.",
        causes=(
            "More requests run or are held than --max-running-requests has rows for: retracted, streaming or aborted ones keep their row.",
            "Requests were ended without giving back their row.",
        ),
        fixes=lambda groups: (towards("req_to_token_pool_size", "--max-running-requests", "raise"),),
        values=lambda groups: (
            {"req_pool_available": int(groups["available"]), "num_reqs": int(groups["requests"])} if groups["available"] else {}
        ),
    ),
    Entry(
        label="kv_pool_exhausted",
        pattern=re.compile(
            r"(?P<phase>Prefill|Decode) out of memory\. Try to lower your batch size\.(?:\s*Try to allocate (?P<tokens>\d+) tokens)?"
        ),
        explanation="The pool had too few free slots for this {phase} step, also after everything that can be evicted was.",
        causes=(
            "The scheduler admitted more than the pool holds: its estimate of new tokens was too hopeful.",
            "Slots were not given back, so less is free than should be.",
        ),
        fixes=lambda groups: (
            towards("max_running_requests", "--max-running-requests", "lower"),
            towards("mem_fraction_static", "--mem-fraction-static", "raise", "for a larger pool"),
        ),
    ),
    Entry(
        label="swa_pool_leak",
        pattern=re.compile(
            r"SWA Pool Mem Leak Detected!\s*(?:\[\w+\] )?total=(?P<total>\d+), available=(?P<available>\d+), evictable=(?P<evictable>\d+), "
            r"protected=(?P<protected>\d+)(?:, uncached=(?P<uncached>\d+))?",
            re.IGNORECASE,
        ),
        explanation="The window pool's books do not close: free, evictable and protected slots do not add up to its {total} slots.",
        causes=(
            "More than the total: some slots were given back twice. Fewer: some were never given back.",
            "It is an accounting fault of the engine; the contents of the slots are not checked here.",
        ),
        values=lambda groups: _leak(groups),
    ),
    Entry(
        label="pool_leak",
        pattern=re.compile(r"\b(?P<pool>\w{1,60}) memory leak detected!"),
        explanation="The books of the {pool} do not close while the server is idle: some entries are neither free nor in use.",
        causes=("A request ended without giving back what it held.", "An abort, a disaggregated transfer or a draft worker kept slots."),
    ),
    Entry(
        label="committed_kv_already_freed",
        pattern=re.compile(r"Committed KV cache already freed(?: \((?:self\.)?kv_committed_len=(?P<length>\d+)\))?"),
        explanation="A request's KV was given back a second time. Between the two, its slots may have belonged to another request.",
        causes=("An abort or a retraction met the normal end of the request.", "A custom cache or a streaming session frees on its own."),
        values=lambda groups: {"kv_committed_len": int(groups["length"])} if groups.get("length") else {},
    ),
    Entry(
        label="kv_memory_insufficient",
        pattern=re.compile(
            r"(?:To serve at least one request with the models?'s )?max seq len\s*\((?P<length>\d+)\),?\s*"
            rf"\(?(?P<needed>{F}) ?GiB KV cache is needed, which is larger than\s*the available KV cache memory\s*\((?P<available>{F}) ?GiB\)"
            r"(?:.{0,120}?model length is (?P<estimate>\d+))?",
            re.DOTALL,
        ),
        explanation="One request of {length} tokens needs {needed} GiB of KV, and {available} GiB are left for it.",
        causes=("The context is longer than the memory allows.", "The share of memory for the engine is small."),
        values=lambda groups: {
            "max_model_len": int(groups["length"]),
            "kv_needed_gib": float(groups["needed"]),
            "available_kv_gib": float(groups["available"]),
            **({"estimated_max_model_len": int(groups["estimate"])} if groups.get("estimate") else {}),
        },
        fixes=lambda groups: (
            _shorter(groups["estimate"]),
            towards("mem_fraction_static", "--gpu-memory-utilization", "raise"),
        ),
    ),
    Entry(
        label="max_model_len_exceeds_kv",
        pattern=re.compile(
            r"(?:The model's )?max seq len\s*\((?P<length>\d+)\) is larger than the maximum number of tokens that can\s*be stored in KV cache\s*"
            r"\((?P<tokens>\d+)\)"
        ),
        explanation="The context of {length} tokens is longer than the {tokens} tokens that the KV cache holds.",
        causes=("The context is longer than the memory allows.", "The share of memory for the engine is small."),
        values=lambda groups: {"max_model_len": int(groups["length"]), "kv_capacity_tokens": int(groups["tokens"])},
        fixes=lambda groups: (
            _shorter(groups["tokens"]),
            towards("mem_fraction_static", "--gpu-memory-utilization", "raise"),
        ),
    ),
    Entry(
        label="free_memory_below_target",
        pattern=re.compile(
            rf"Free memory on device (?:\S+ )?\((?P<free>{F})/(?P<total>{F}) ?GiB\) on startup is less than\s*desired GPU memory utilization\s*"
            rf"\((?P<share>{F}), (?P<wanted>{F}) ?GiB\)"
        ),
        explanation="{free} of {total} GiB are free, and the utilization of {share} asks for {wanted} GiB.",
        causes=("Another process holds memory on the device.", "The utilization is too high beside the desktop or another server."),
        values=lambda groups: {
            "free_gib": float(groups["free"]),
            "total_gib": float(groups["total"]),
            "gpu_memory_utilization": float(groups["share"]),
            "wanted_gib": float(groups["wanted"]),
        },
        fixes=lambda groups: _utilization(groups),
    ),
    Entry(
        label="no_kv_memory",
        pattern=re.compile(r"No available memory for the cache blocks"),
        explanation="After weights and activations nothing is left of the engine's share of memory for the KV cache.",
        causes=("--gpu-memory-utilization is too small for the weights.", "The model is too large for this many ranks."),
        fixes=lambda groups: (
            towards("mem_fraction_static", "--gpu-memory-utilization", "raise"),
            towards("tp_size", "--tensor-parallel-size", "raise"),
        ),
    ),
)

NEGATIVE = Entry(
    label="negative_pool",
    pattern=re.compile(rf"max_total_tokens=(?P<asked>{N}) is larger than the profiled value (?P<profiled>-\d+)"),
    explanation="The profile of memory gave a pool of {profiled} tokens: after the weights less is left than has to stay free. No KV fits.",
    causes=(
        "The static fraction is too small for the weights: it has to go up.",
        "The weights are too large for this many ranks, or another process holds memory.",
    ),
    fixes=raised,
)
