"""Messages of SGLang when it shares out memory between pools: a state cache, a window pool or a unified pool that leaves no room."""

from __future__ import annotations

import re

from kvcanary.importers.error_entries import Entry, F, N, towards

_FEWER_REQUESTS = towards("max_running_requests", "--max-running-requests", "lower")
_LARGER_SHARE = towards("mem_fraction_static", "--mem-fraction-static", "raise", "for a larger pool")
_LARGER_STATES = towards("mem_fraction_static", "--mem-fraction-static", "raise", "for a larger state cache")

SIZING = (
    Entry(
        label="state_cache_empty",
        pattern=re.compile(
            rf"Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache\.\s*Computed max_mamba_cache_size=(?P<slots>{N})"
            rf"(?:\s*\(total_rest_memory=(?P<rest>{F}) ?GB,\s*mamba_cache_per_req=(?P<each>{F}) ?MB\))?"
        ),
        explanation="The state cache of the linear layers came out with {slots} slots: the weights leave too little of the static share for one.",
        causes=(
            "The static fraction is too small for weights and states: it has to go up.",
            "Draft tokens make the state of each request larger.",
            "The weights are too large for this many ranks.",
        ),
        fixes=lambda groups: (_LARGER_STATES, _FEWER_REQUESTS),
        values=lambda groups: (
            {"mamba_cache_size": int(groups["slots"])}
            | ({"state_rest_gb": float(groups["rest"]), "state_mb_per_request": float(groups["each"])} if groups["rest"] else {})
        ),
    ),
    Entry(
        label="state_cache_too_small",
        pattern=re.compile(
            rf"state cache is too small to serve\s*any requests\.\s*max_mamba_cache_size=(?P<slots>{N}),\s*mamba_ratio=(?P<ratio>{N})"
        ),
        explanation="The state cache of the linear layers has {slots} slots and one request takes {ratio}, so not one request can run.",
        causes=(
            "The static fraction is small for weights, states and KV.",
            "--max-mamba-cache-size, or the state's share of memory, is small.",
        ),
        fixes=lambda groups: (_LARGER_STATES, _FEWER_REQUESTS),
        values=lambda groups: {"mamba_cache_size": int(groups["slots"]), "mamba_slots_per_request": int(groups["ratio"])},
    ),
    Entry(
        label="window_pool_takes_all",
        pattern=re.compile(
            rf"SWA pool cap \((?P<tokens>\d+) tokens,\s*(?P<size>{F}) ?Gi?B\) leaves no room for the full\s*"
            rf"KV pool within the available (?P<available>{F}) ?Gi?B"
        ),
        explanation="The window pool of {tokens} tokens takes {size} GiB first, and only {available} GiB are there for KV: nothing is left for the "
        "full pool.",
        causes=(
            "Each running request has a window of its own, so many of them make the window pool large.",
            "The static fraction is small.",
        ),
        fixes=lambda groups: (_FEWER_REQUESTS, _LARGER_SHARE),
        values=lambda groups: {"swa_pool_gib": float(groups["size"]), "available_kv_gib": float(groups["available"])},
    ),
    Entry(
        label="unified_pool_below_one_request",
        pattern=re.compile(rf"byte budget (?P<budget>{N}) cannot fit\s*ONE worst-case request \(bs=1 floor (?P<floor>\d+)"),
        explanation="The unified pool has {budget} bytes, and one request of full length takes {floor}.",
        causes=("The static fraction is small for the weights.", "The context is longer than the memory allows."),
        fixes=lambda groups: (
            towards("mem_fraction_static", "--mem-fraction-static", "raise"),
            towards("max_seq_len_per_req", "--context-length", "lower"),
        ),
        values=lambda groups: {"unified_pool_bytes": int(groups["budget"]), "one_request_bytes": int(groups["floor"])},
    ),
    Entry(
        label="compressed_pool_exhausted",
        pattern=re.compile(
            r"DSV4 c(?P<ratio>\d+) (?P<kind>\w+) pool exhausted: need (?P<need>\d+) new slots,\s*available=(?P<available>\d+)"
        ),
        explanation="The pool of keys compressed {ratio}-fold has {available} free slots, and this step needs {need}.",
        causes=("More requests run than this pool holds.", "Requests ended without giving back their slots."),
        fixes=lambda groups: (_FEWER_REQUESTS, _LARGER_SHARE),
    ),
    Entry(
        # Where it is only a warning, the server goes on.
        label="memory_unbalanced",
        pattern=re.compile(
            r"Error: The memory capacity is unbalanced\. Some GPUs may be occupied by other processes\."
            rf"(?:\s*pre_model_load_memory=(?P<smallest>{F}),\s*local_gpu_memory=(?P<own>{F}))?"
        ),
        explanation="One of the devices has much less free memory than another, so the ranks cannot have pools of one size.",
        causes=("Another process, or one that did not end, holds memory on a device.", "The devices are not alike."),
        values=lambda groups: {"free_gib_min": float(groups["smallest"]), "free_gib": float(groups["own"])} if groups["smallest"] else {},
    ),
)
