"""From SGLang's names to settings fields: units, the share of one data-parallel rank, and which flag decides where several speak.

Each field keeps the place it came from; one that needed arithmetic or a rule says which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kvcanary.config.defaults import request_row_width
from kvcanary.config.settings import FIELDS, format_field
from kvcanary.importers.fields import KV_DTYPES, MODEL_DTYPES, FieldSet, Place
from kvcanary.importers.flags import note
from kvcanary.importers.result import Rank
from kvcanary.units import GIB

_SAME_NAME = (
    "page_size", "max_total_tokens", "swa_full_tokens_ratio", "enable_hierarchical_cache", "disable_radix_cache", "enable_mixed_chunk",
    "speculative_num_draft_tokens", "speculative_eagle_topk", "max_prefill_tokens", "mem_fraction_static", "tp_size", "pp_size", "device",
)  # fmt: skip
_ENVIRONMENT = {
    "SGLANG_KV_CANARY_RING_CAPACITY": "ring_capacity",
    "SGLANG_KV_CANARY_ENABLE_MHA_V": "verify_v_half",
    "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "verify_token_assert",
    "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": "write_input_assert",
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "post_capture_kv_sizing",
}
_SWITCHES = {**dict.fromkeys(("true", "1", "yes", "y"), True), **dict.fromkeys(("false", "0", "no", "n"), False)}
_GEOMETRY = {
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "v_head_dim": "v_head_dim",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "sliding_window": "sliding_window",
}


def sglang_arguments(found: FieldSet, arguments: Mapping[str, Any], place: Place, rank: Rank) -> None:
    """Fields of SGLang's arguments: a command's, or the printed ones (which are already resolved, chunk size per rank included)."""

    def put(name: str, value: Any, argument: str, derived: str = "") -> None:
        found.put(name, value, place(argument), rank, derived)

    get = arguments.get
    put("model", get("model_path"), "model_path")
    for name in _SAME_NAME:
        put(name, get(name), name)
    put("kv_dtype", KV_DTYPES.get(str(get("kv_cache_dtype"))), "kv_cache_dtype")
    put("model_dtype", MODEL_DTYPES.get(str(get("dtype"))), "dtype")
    put("mode", get("kv_canary"), "kv_canary")
    put("real_data", get("kv_canary_real_data"), "kv_canary_real_data")
    put("sweep_interval", get("kv_canary_sweep_interval"), "kv_canary_sweep_interval")
    _ranks_and_limits(put, arguments, rank)
    _graphs(put, arguments)
    _row_width(put, get("context_length"), get("speculative_num_draft_tokens"), "context_length")
    overrides = get("json_model_override_args")
    if isinstance(overrides, Mapping):
        _overrides(put, overrides)


Put = Callable[..., None]


def _ranks_and_limits(put: Put, arguments: Mapping[str, Any], rank: Rank) -> None:
    """Limits on the command line are global under DP attention; a rank gets its share."""
    get = arguments.get
    attn_dp, dp = get("attn_dp_size"), get("dp_size")
    shared = get("enable_dp_attention") is True or (isinstance(attn_dp, int) and attn_dp > 1)
    ranks = attn_dp if isinstance(attn_dp, int) and attn_dp > 1 else dp
    put("dp_size", ranks, "attn_dp_size" if ranks is attn_dp and attn_dp is not None else "dp_size")
    if shared or get("enable_dp_attention") is False:
        put("enable_dp_attention", shared, "enable_dp_attention" if get("enable_dp_attention") is not None else "attn_dp_size")
    asked, chunk = get("max_running_requests"), get("chunked_prefill_size")
    put("max_running_requests", asked, "max_running_requests")
    # A command without --dp-size runs one data-parallel rank; one with an unresolved --dp-size runs nobody knows how many.
    known = ranks if isinstance(ranks, int) and ranks > 0 else int(ranks is None and rank is Rank.COMMAND)
    if isinstance(asked, int) and shared and known:
        put(
            "req_to_token_pool_size",
            max(1, asked // known),
            "max_running_requests",
            f"max(1, {asked} // {known}): limits are global under DP attention",
        )
    elif not shared:
        put("req_to_token_pool_size", asked, "max_running_requests")
    if isinstance(chunk, int) and chunk > 0 and shared and known and rank is Rank.COMMAND:
        put("global_chunked_prefill_size", chunk, "chunked_prefill_size")
        put("chunked_prefill_size", chunk // known, "chunked_prefill_size", f"{chunk} // {known}: limits are global under DP attention")
    elif not shared or rank is not Rank.COMMAND or (isinstance(chunk, int) and chunk <= 0):
        put("chunked_prefill_size", chunk, "chunked_prefill_size")  # Off, and the limit of zero, are the same for every rank.
    cap, page = get("max_total_tokens"), get("page_size")
    if isinstance(cap, int) and cap > 0 and rank is Rank.COMMAND:
        page = page if isinstance(page, int) and page > 0 else 1
        put("pool_slot_count", cap // page * page, "max_total_tokens", "upper limit; memory may allow less")


def _graphs(put: Put, arguments: Mapping[str, Any]) -> None:
    """The largest captured decode batch: an explicit list decides over a maximum. Prefill sizes are token counts and never batches."""
    get = arguments.get
    config = get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, Mapping) else None
    prefill = config.get("prefill") if isinstance(config, Mapping) else None
    decode, prefill = (phase if isinstance(phase, Mapping) else {} for phase in (decode, prefill))
    candidates = (
        ("cuda_graph_bs_decode", get("cuda_graph_bs_decode")),
        ("cuda_graph_config", decode.get("bs")),
        ("cuda_graph_max_bs_decode", get("cuda_graph_max_bs_decode")),
        ("cuda_graph_config", decode.get("max_bs")),
        ("cuda_graph_bs", get("cuda_graph_bs")),
        ("cuda_graph_max_bs", get("cuda_graph_max_bs")),
    )
    for name, value in candidates:
        if isinstance(value, list) and value and all(isinstance(size, int) for size in value):
            put("cuda_graph_max_bs", max(value), name, f"largest of {len(value)} listed batches")
            break
        if isinstance(value, int) and not isinstance(value, bool):
            put("cuda_graph_max_bs", value, name)
            break
    off = next((name for name in ("disable_cuda_graph", "disable_decode_cuda_graph") if get(name) is True), None)
    backend = get("cuda_graph_backend_decode") or decode.get("backend")
    if off or backend == "disabled":
        put("cuda_graph_backend_decode", "disabled", off or "cuda_graph_backend_decode")
    elif backend in ("full", "breakable"):
        put("cuda_graph_backend_decode", "full", "cuda_graph_backend_decode", "decode graphs are captured")
    off = next(
        (name for name in ("disable_cuda_graph", "disable_prefill_cuda_graph", "disable_piecewise_cuda_graph") if get(name) is True), None
    )
    backend = get("cuda_graph_backend_prefill") or prefill.get("backend")
    if off:
        put("cuda_graph_backend_prefill", "disabled", off)
    elif get("enable_piecewise_cuda_graph") is True:
        put("cuda_graph_backend_prefill", "tc_piecewise", "enable_piecewise_cuda_graph")
    else:
        put("cuda_graph_backend_prefill", backend, "cuda_graph_backend_prefill")


def _row_width(put: Put, context: Any, draft: Any, argument: str) -> None:
    if type(context) is int:
        derived = request_row_width(context, draft if type(draft) is int else None)
        put("max_seq_len_per_req", derived.value, argument, f"{derived.formula}: {derived.rule}")


def _overrides(put: Put, overrides: Mapping[str, Any]) -> None:
    """--json-model-override-args changes the model's own config, its text part included."""
    inner = overrides.get("text_config")
    for config in (overrides, inner if isinstance(inner, Mapping) else {}):
        for key, name in _GEOMETRY.items():
            if isinstance(config.get(key), int):
                put(name, config[key], "json_model_override_args", f"override of {key}")


def environment_fields(found: FieldSet, env: Mapping[str, str]) -> None:
    """Canary options that exist only as environment variables, read as SGLang reads them: it passes over what is no value, with a warning."""
    for variable, name in _ENVIRONMENT.items():
        if variable not in env:
            continue
        text = env[variable]
        switch = FIELDS[name].kind == "switch"
        value = _SWITCHES.get(text.lower()) if switch else _whole_number(text)
        if value is None:
            takes = "true, 1, yes or y, or false, 0, no or n" if switch else "a whole number in plain digits"
            why = f"SGLang warns and goes on with its default, {format_field(name, FIELDS[name].default)}."
            found.findings.append(note("environment-default", f"{variable} must be {takes}, got {text[:40]!r}", why, fields=(name,)))
            found.put(
                name, FIELDS[name].default, f"{variable}={text}", Rank.COMMAND, "the default, as SGLang takes it for what is no value"
            )
        else:
            found.put(name, value, f"{variable}={text}", Rank.COMMAND)


def _whole_number(text: str) -> int | None:
    try:
        return int(text) if len(text) <= 40 else None
    except ValueError:
        return None


def sglang_log(found: FieldSet, observed: Mapping[str, Any], lines: Mapping[str, int]) -> None:
    """Fields of a start-up log: install line, ready line, printed arguments and the lines between."""

    def where(what: str, name: str) -> str:
        return f"{what}, line {lines[name]}" if name in lines else what

    arguments = observed.get("server_args")
    if isinstance(arguments, Mapping):
        source = where("server_args", "server_args")
        sglang_arguments(found, arguments, lambda name: f"{name} in {source}", Rank.SERVER_ARGS)
    for name, value in (observed.get("rejected") or {}).items():
        # The canary names what it was to be installed with; names of its own capacities are no fields.
        if name in FIELDS:
            found.put(name, value, "error message", Rank.INSTALL)
    _install(found, observed, where("install line", "canary"))
    ready = where("pool statistics", "pool_statistics") if "pool_statistics" in lines else where("ready line", "max_total_num_tokens")
    if "max_total_num_tokens_values" not in observed:
        _put_smallest(found, observed, "pool_slot_count", "max_total_num_tokens", ready, Rank.READY)
        _put_smallest(found, observed, "req_to_token_pool_size", "max_running_requests", ready, Rank.READY)
    for name in ("chunked_prefill_size", "max_prefill_tokens"):
        _put_smallest(found, observed, name, name, ready, Rank.READY)
    draft = (arguments or {}).get("speculative_num_draft_tokens") if isinstance(arguments, Mapping) else None
    _row_width(lambda *entry: found.put(entry[0], entry[1], ready, Rank.READY, entry[3]), observed.get("context_len"), draft, "context_len")
    if observed.get("max_total_num_tokens") is None and not {"max_total_num_tokens_min", "max_total_num_tokens_values"} & set(observed):
        _put_smallest(found, observed, "pool_slot_count", "kv_tokens", where("KV Cache is allocated", "kv_tokens"), Rank.LOG)
        if observed.get("kv_tokens") is None and observed.get("dsv4"):
            found.put("pool_slot_count", observed["dsv4"]["full_token"], where("DSv4 memory calculation", "dsv4"), Rank.LOG)
    _memory(found, observed, where)


def _put_smallest(found: FieldSet, observed: Mapping[str, Any], name: str, key: str, source: str, rank: Rank) -> None:
    """The common value of all ranks, or the smallest with a note that ranks differ."""
    value = observed.get(key)
    if value is None and f"{key}_min" in observed:
        found.put(name, observed[f"{key}_min"], source, rank, "smallest over ranks, which differ")
    else:
        found.put(name, value, source, rank)


def _install(found: FieldSet, observed: Mapping[str, Any], source: str) -> None:
    canary = observed.get("canary")
    if not isinstance(canary, Mapping):
        return
    for name in ("mode", "real_data", "sweep_interval", "ring_capacity", "pool_class"):
        found.put(name, canary.get(name), source, Rank.INSTALL)
    if canary.get("swa_window_size"):
        found.put("sliding_window", canary["swa_window_size"], source, Rank.INSTALL)
    slots = observed.get("installed_pool_slot_count") or observed.get("installed_pool_slot_count_min")
    found.put("pool_slot_count", slots, source, Rank.INSTALL, "verify capacity / 3")


def _memory(found: FieldSet, observed: Mapping[str, Any], where: Callable[[str, str], str]) -> None:
    def put(name: str, sizes: Collection[float], most: bool, what: str, key: str) -> None:
        """The rank that has least decides where memory is given out, and the one that takes most where it is taken."""
        if sizes:
            each = {round(size * GIB) for size in sizes}
            differ = f", {'largest' if most else 'smallest'} over ranks, which differ" if len(each) > 1 else ""
            found.put(name, max(each) if most else min(each), where(what, key), Rank.LOG, f'"GB" in the log is GiB{differ}')

    weights, after = _by_rank(observed, "load_weight_mem_gb"), _by_rank(observed, "load_weight_avail_gb")
    put("weight_bytes", weights.values(), True, "Load weight end", "load_weight_mem_gb")
    ranks = ({*weights, *after} - {""}) or {""}
    sums = [weights.get(rank, weights.get("", 0.0)) + after.get(rank, after.get("", 0.0)) for rank in ranks] if weights and after else []
    put(
        "free_before_load_bytes",
        _by_rank(observed, "load_weight_begin_avail_gb").values() or sums,
        False,
        "Load weight",
        "load_weight_avail_gb",
    )
    put("graph_bytes", _by_rank(observed, "cuda_graph_mem_gb").values(), True, "Capture cuda graph end", "cuda_graph_mem_gb")
    total = next(
        (value for value in (_nested(observed, "oom", "total_gib"), _nested(observed, "memory_profiling", "total_gpu_memory_gb")) if value),
        None,
    )
    put("device_memory_bytes", [] if total is None else [total], False, "total memory in the log", "memory_profiling")
    found.put("kv_dtype", KV_DTYPES.get(str(observed.get("kv_cache_dtype"))), where("KV Cache is allocated", "kv_cache_dtype"), Rank.LOG)
    _bytes_per_token(found, observed, where("KV Cache is allocated", "kv_tokens"))
    if observed.get("cuda_graph_bs_max") is not None:
        found.put("cuda_graph_max_bs", observed["cuda_graph_bs_max"], where("captured batches", "cuda_graph_bs"), Rank.LOG)
    if observed.get("prefill_graph") == "disabled":
        # The arguments may ask for one; the line says what came of it.
        found.put("cuda_graph_backend_prefill", "disabled", where("Disable prefill CUDA graph", "prefill_graph"), Rank.READY)
    if observed.get("post_capture"):
        found.put("post_capture_kv_sizing", True, where("Post-capture KV sizing", "post_capture"), Rank.LOG)
    if observed.get("tree_cache") == "ChunkCache":
        found.put("disable_radix_cache", True, where("Tree cache initialized", "tree_cache"), Rank.LOG, "ChunkCache keeps no prefixes")
    if observed.get("hicache_host_gb_per_rank") is not None:
        found.put("enable_hierarchical_cache", True, where("host memory for hierarchical KV cache", "hicache_host_gb_per_rank"), Rank.LOG)
    if (fraction := observed.get("mem_fraction_static")) is not None:
        found.put("mem_fraction_static", fraction, "error message", Rank.LOG)


def _by_rank(observed: Mapping[str, Any], name: str) -> dict[str, float]:
    """A figure by rank; one that all ranks have alike stands under ''."""
    common = observed.get(name)
    values = {"": common} if common is not None else observed.get(f"{name}_by_rank") or {}
    return {rank: float(value) for rank, value in values.items() if isinstance(value, int | float)}


def _nested(observed: Mapping[str, Any], name: str, key: str) -> float | None:
    inner = observed.get(name)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _bytes_per_token(found: FieldSet, observed: Mapping[str, Any], source: str) -> None:
    """Printed sizes include one extra page of rows. Two pools of unlike layers have no single figure."""
    tokens, sizes = observed.get("kv_tokens"), [observed.get(name) for name in ("k_size_gb", "v_size_gb", "kv_size_gb")]
    kinds = {pool.get("kind") for pool in observed.get("kv_pools") or []}
    known = [size for size in sizes if isinstance(size, int | float)]
    if not isinstance(tokens, int) or tokens < 1 or not known or kinds & {"swa", "full"}:
        return
    pages = [entry.value for entry in found.candidates.get("page_size", [])]
    rows = tokens + (pages[0] if pages else 1)
    size = sum(known)
    if size > 0:
        found.put(
            "kv_bytes_per_token", round(size * GIB / rows), source, Rank.LOG, f"{size:.2f} GiB / {rows} rows, as exact as two digits allow"
        )
