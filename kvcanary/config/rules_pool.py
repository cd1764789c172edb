"""Rules about the pool, the request table and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from kvcanary import layout
from kvcanary.config.capacities import PAGE_SIZE_RULE, SWA_POOL_CLASS, SWA_RATIO_RULE, LaunchCapacities, capacity_problems, swa_slot_count
from kvcanary.config.defaults import ROW_SPARE_TOKENS
from kvcanary.config.findings import Finding, Fix
from kvcanary.config.memory import memory_plan
from kvcanary.config.rule_parts import SERVER_ARGS, error, fix, note, warning
from kvcanary.config.settings import Settings
from kvcanary.config.solve import PoolAnswer, changed, largest_pool
from kvcanary.errors import ConfigError
from kvcanary.units import format_count

# Below this share of the request rows a missing graph is the normal case and not the exception.
GRAPH_SHARE_WORTH_A_WARNING = 0.5
GRAPH_GAP_WORTH_A_WARNING = 512
_NEAREST = {"cuda_graph_max_bs": 0, "speculative_num_draft_tokens": 0}
_WHY = {
    "req_to_token_pool_size": "There is no request row. -1 does not mean unlimited here, and fewer requests than data-parallel ranks round to 0.",
    "max_seq_len_per_req": "The request table would have rows without tokens; it is as wide as the context length plus a few spare tokens.",
    "pool_slot_count": (
        "The KV pool came out empty: after the weights, the static share of the memory has no room for one token, or the cap on tokens is 0."
    ),
    "cuda_graph_max_bs": "0 or empty means that no decode graph is captured; a negative batch means nothing.",
    "speculative_num_draft_tokens": "Empty or 0 means no speculative decoding, which writes one token per request.",
    "max_prefill_tokens": "The budget of one prefill has to hold at least one token; the chunk size alone does not replace it.",
}


def positive_inputs(settings: Settings) -> Iterator[Finding]:
    """The checks that install_canary makes, in its order; without a canary only an empty pool stops the start."""
    canary_off = settings.canary.mode == "none"
    pool = settings.pool
    cap_is_the_cause = pool.max_total_tokens is not None and pool.max_total_tokens < pool.page_size
    for field, message in capacity_problems(settings):
        if field == "pool_slot_count" and cap_is_the_cause:
            continue
        if canary_off and field in ("cuda_graph_max_bs", "speculative_num_draft_tokens"):
            continue
        fixes: list[Fix] = [fix(field, _NEAREST.get(field, 1))]
        if field == "pool_slot_count":
            fixes = [*_larger_fraction(settings), *_pool_that_fits(settings), fix(field, max(1, settings.pool.page_size))]
        yield error(f"{field}_positive", (field,), message, _WHY[field], *fixes)


def _pool_that_fits(settings: Settings) -> list[Fix]:
    """The largest pool for the memory, where that is known, else room for one request of full length."""
    try:
        answer = largest_pool(memory_plan(changed(settings, pool_slot_count=max(1, settings.pool.page_size), mode="none")))
    except ConfigError:
        return []
    if isinstance(answer, PoolAnswer):
        text = f"set pool_slot_count to {format_count(answer.slots)}, the largest pool for this memory"
        return [fix("pool_slot_count", answer.slots, text)] if answer.slots > 0 else []
    page, width = settings.pool.page_size, settings.pool.max_seq_len_per_req
    if width <= 0:
        return []
    slots = ceil(width / page) * page
    return [fix("pool_slot_count", slots, f"set pool_slot_count to {format_count(slots)}, room for one request of full length")]


def _larger_fraction(settings: Settings) -> list[Fix]:
    """The smallest static fraction whose share is larger than the weights, where memory and weights are known."""
    memory = settings.memory
    total = memory.free_before_load_bytes or memory.device_memory_bytes
    if not total or memory.weight_bytes is None or memory.weight_bytes >= total:
        return []
    least = (memory.weight_bytes * 1000 // total + 1) / 1000
    if least >= 1 or (memory.mem_fraction_static or 0) >= least:
        return []
    return [fix("mem_fraction_static", least)]


def page_size_positive(settings: Settings) -> Iterator[Finding]:
    """A page holds at least one slot."""
    if settings.pool.page_size <= 0:
        message = PAGE_SIZE_RULE.format(settings.pool.page_size)
        why = "Slots are handed out in whole pages; 1 means slot by slot."
        yield error("page_size_positive", ("page_size",), message, why, fix("page_size", 1), exact=False, source=SERVER_ARGS)


def page_rounds_to_zero(settings: Settings) -> Iterator[Finding]:
    """The cap or the pool is smaller than one page."""
    pool, cap = settings.pool, settings.pool.max_total_tokens
    if pool.page_size <= 0:
        return
    message = "Not enough memory. Please try to increase --mem-fraction-static."
    if cap is not None and cap < pool.page_size:
        share = "is no room for a token" if cap <= 0 else f"is smaller than one page of {pool.page_size} and rounds to 0"
        why = f"The cap of {cap} tokens {share}. More memory does not help, whatever the engine says: raise the cap or use smaller pages."
        fixes = [fix("max_total_tokens", pool.page_size), fix("max_total_tokens", None, "remove the cap")]
        if cap > 0:
            fixes.append(fix("page_size", 1 << (cap.bit_length() - 1)))
        fields = ("page_size", "max_total_tokens", "pool_slot_count")
        yield error("page_rounds_to_zero", fields, message, why, *fixes, source=SERVER_ARGS)
    elif cap is not None and cap < pool.pool_slot_count:
        yield note(
            "cap_below_pool", ("max_total_tokens", "pool_slot_count"),
            f"the cap of {cap} tokens is below the pool of {pool.pool_slot_count}; the engine uses the cap",
            "The plan is computed for the larger pool.", fix("pool_slot_count", cap), source=SERVER_ARGS,
        )  # fmt: skip
    elif 0 < pool.pool_slot_count < pool.page_size:
        why = f"A pool of {pool.pool_slot_count} slots is smaller than one page of {pool.page_size} and rounds to 0."
        page = 1 << (pool.pool_slot_count.bit_length() - 1)
        yield error(
            "page_rounds_to_zero", ("page_size", "pool_slot_count"), message, why,
            fix("pool_slot_count", pool.page_size), fix("page_size", page), source=SERVER_ARGS,
        )  # fmt: skip
    elif pool.pool_slot_count % pool.page_size:
        whole = pool.pool_slot_count // pool.page_size * pool.page_size
        if whole > 0:
            yield note(
                "page_remainder", ("pool_slot_count", "page_size"),
                f"{pool.pool_slot_count} slots are no whole number of pages of {pool.page_size}; the engine uses {whole}",
                "The engine rounds the pool down to whole pages, so a log will show the smaller number.",
                fix("pool_slot_count", whole), source=SERVER_ARGS,
            )  # fmt: skip


def window_pool_too_small(settings: Settings) -> Iterator[Finding]:
    """The sliding-window pool has to admit one request: a window and a page."""
    pool = settings.pool
    if pool.pool_class != SWA_POOL_CLASS or pool.page_size <= 0 or pool.pool_slot_count <= 0:
        return
    if not 0 < pool.swa_full_tokens_ratio <= 1:
        why = "The window pool is this share of the full pool."
        yield error(
            "swa_ratio_range", ("swa_full_tokens_ratio",), SWA_RATIO_RULE, why, fix("swa_full_tokens_ratio", 0.8), source=SERVER_ARGS
        )
        return
    window, page, slots = pool.sliding_window or 0, pool.page_size, swa_slot_count(settings)
    floor = window + page
    if window <= 0 or slots >= floor:
        return
    pages = ceil(floor / page)
    ratio = pages * page / (pool.pool_slot_count // page * page)
    needed = ceil(pages * page / pool.swa_full_tokens_ratio / page) * page
    message = (
        f"SWA pool ({slots} tokens) cannot hold even one request: the prefill admission floor is sliding_window_size ({window}) + "
        f"page_size ({page}). Increase --swa-full-tokens-ratio or the total KV budget."
    )
    why = "Older releases start and then hang at warm-up without a word. Rounding down to whole pages can cost most of a small window pool."
    fixes = [fix("pool_slot_count", needed)]
    if ratio <= 1:
        fixes.insert(0, fix("swa_full_tokens_ratio", ceil(ratio * 10_000) / 10_000))
    fields = ("swa_full_tokens_ratio", "pool_slot_count", "page_size", "sliding_window")
    yield error("window_pool_too_small", fields, message, why, *fixes, source=SERVER_ARGS)


def fraction_range(settings: Settings) -> Iterator[Finding]:
    """mem_fraction_static is a share."""
    fraction = settings.memory.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        message = f"mem_fraction_static must be between 0 and 1, got {fraction:g}"
        why = "It is the share of the free memory that weights and KV pool may take."
        yield error(
            "mem_fraction_range", ("mem_fraction_static",), message, why, fix("mem_fraction_static", 0.875), exact=False, source=SERVER_ARGS
        )


def parallel_sizes(settings: Settings) -> Iterator[Finding]:
    """Parallel sizes count ranks, and DP attention splits the tensor-parallel ranks."""
    memory, batch = settings.memory, settings.batch
    sizes = (("tp_size", memory.tp_size), ("pp_size", memory.pp_size), ("dp_size", batch.dp_size))
    for name, size in sizes:
        if size < 1:
            why = "A parallel size counts ranks; 1 means not parallel."
            yield error(
                f"{name}_positive", (name,), f"{name} must be at least 1, got {size}", why, fix(name, 1), exact=False, source=SERVER_ARGS
            )
    # A tensor-parallel size of 1 is the default and says nothing about a server with DP attention.
    if batch.enable_dp_attention and memory.tp_size > 1 and batch.dp_size >= 1 and memory.tp_size % batch.dp_size:
        message = f"tp_size must be a multiple of dp_size under DP attention, got tp_size={memory.tp_size} dp_size={batch.dp_size}"
        why = "DP attention cuts the tensor-parallel ranks into equal groups."
        larger = ceil(memory.tp_size / batch.dp_size) * batch.dp_size
        yield error("dp_divides_tp", ("tp_size", "dp_size"), message, why, fix("tp_size", larger), exact=False, source=SERVER_ARGS)


def more_requests_than_a_plan(settings: Settings) -> Iterator[Finding]:
    """The plan kernel takes at most 4096 requests per launch."""
    if _canary_off_or_refused(settings):
        return
    capacity, limit = LaunchCapacities.from_settings(settings).write_req_capacity, layout.PLAN_MAX_REQUESTS
    if capacity <= limit:
        return
    rows, graph = settings.pool.req_to_token_pool_size, settings.batch.cuda_graph_max_bs or 0
    message = (
        f"kv-canary: launch_canary_plan_kernels supports at most bs={limit} reqs per launch, got bs={limit + 1}. "
        "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this."
    )
    why = f"The server starts with {capacity} rows and fails with this sentence when a real batch passes {limit} requests."
    fixes = [fix(name, limit) for name, value in (("req_to_token_pool_size", rows), ("cuda_graph_max_bs", graph)) if value > limit]
    yield warning("plan_requests", ("req_to_token_pool_size", "cuda_graph_max_bs"), message, why, *fixes, exact=True)


def chunk_of_zero(settings: Settings) -> Iterator[Finding]:
    """0 is 'off' for the scheduler and 'no tokens' for the canary."""
    if settings.batch.chunked_prefill_size != 0 or _canary_off_or_refused(settings):
        return
    capacity = LaunchCapacities.from_settings(settings).write_entry_capacity
    longest = min(settings.batch.max_prefill_tokens, settings.pool.max_seq_len_per_req - ROW_SPARE_TOKENS)
    if longest <= capacity:
        return
    why = (
        f"The scheduler reads 0 as 'no chunking', the canary as a limit of zero tokens: the first prompt above {capacity} tokens raises. "
        "-1 means off on both sides."
    )
    fixes = (fix("chunked_prefill_size", -1), fix("chunked_prefill_size", 8192))
    shown = 4000 if capacity < 4000 <= longest else longest
    yield warning("chunk_of_zero", ("chunked_prefill_size",), _entries_message(shown, capacity), why, *fixes, exact=True)


def long_prompt_without_chunks(settings: Settings) -> Iterator[Finding]:
    """Without chunking one prompt longer than the prefill budget is still admitted alone."""
    chunk = settings.batch.chunked_prefill_size
    if (chunk is not None and chunk >= 0) or _canary_off_or_refused(settings):
        return
    capacity = LaunchCapacities.from_settings(settings).write_entry_capacity
    context = settings.pool.max_seq_len_per_req - ROW_SPARE_TOKENS
    longest = min(context, settings.pool.pool_slot_count)
    if longest <= capacity:
        return
    why = (
        f"Chunking is off, so a prompt above max_prefill_tokens is scheduled alone: any prompt of {capacity + 1} to {longest} tokens raises. "
        "Either chunk, or allow the whole context in max_prefill_tokens."
    )
    shown = 20_000 if capacity < 20_000 <= longest else longest
    fields = ("chunked_prefill_size", "max_prefill_tokens", "max_seq_len_per_req")
    fixes = (fix("max_prefill_tokens", context), fix("chunked_prefill_size", settings.batch.max_prefill_tokens))
    yield warning("long_prompt", fields, _entries_message(shown, capacity), why, *fixes, exact=True)


def _entries_message(tokens: int, capacity: int) -> str:
    return (
        f"kv-canary: forward_batch token count={tokens} exceeds pre-allocated write_entry_capacity={capacity}; raise "
        "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args"
    )


def request_does_not_fit(settings: Settings) -> Iterator[Finding]:
    """One request of full length has to fit into the pool."""
    pool = settings.pool
    context = pool.max_seq_len_per_req - ROW_SPARE_TOKENS
    if not 0 < pool.pool_slot_count < context:
        return
    message = f"a request can hold at most {pool.pool_slot_count} tokens although the context is {context}; longer inputs are rejected"
    why = "The pool is smaller than one request of full length. The server starts and turns long inputs away."
    fixes = (fix("pool_slot_count", context), fix("max_seq_len_per_req", pool.pool_slot_count + ROW_SPARE_TOKENS))
    yield warning("request_does_not_fit", ("max_seq_len_per_req", "pool_slot_count"), message, why, *fixes)


def graph_batch_against_requests(settings: Settings) -> Iterator[Finding]:
    """The largest captured batch and the number of running requests come from independent defaults."""
    rows, graph = settings.pool.req_to_token_pool_size, settings.batch.cuda_graph_max_bs or 0
    if rows <= 0 or graph < 0 or settings.batch.cuda_graph_backend_decode == "disabled":
        return
    fields = ("cuda_graph_max_bs", "req_to_token_pool_size")
    if graph == 0:
        message = f"no decode graph is captured: batches of 1 to {rows} run without one"
        yield note("no_decode_graph", fields, message, "Decode without graphs is slower on an accelerator.", fix("cuda_graph_max_bs", rows))
    elif graph > rows:
        message = f"graphs reach {graph} but a rank never runs more than {rows} requests"
        yield note(
            "graphs_unused", fields, message, "The larger graphs cost memory and are never replayed.", fix("cuda_graph_max_bs", rows)
        )
    elif graph < rows * GRAPH_SHARE_WORTH_A_WARNING and rows - graph > GRAPH_GAP_WORTH_A_WARNING and rows <= layout.PLAN_MAX_REQUESTS:
        message = (
            f"decode graphs end at {graph} while {rows} requests may run: larger batches run without graphs, and post-capture sizing then "
            "keeps extra headroom"
        )
        why = (
            f"Batches of {graph + 1} to {rows} are slower per token than smaller ones, and a busy server may never get below {graph} again."
        )
        yield warning("graph_gap", fields, message, why, fix("cuda_graph_max_bs", rows), fix("req_to_token_pool_size", graph))
    elif graph < rows:
        message = f"batches of {graph + 1} to {rows} run without a decode graph"
        yield note("graph_gap", fields, message, "They are slower per token than captured batches.", fix("cuda_graph_max_bs", rows))


def mixed_chunk(settings: Settings) -> Iterator[Finding]:
    """Mixed chunks looked like an overflow of the entry capacity; release 0.5.23 takes the decode rows off the chunk."""
    chunk = settings.batch.chunked_prefill_size
    if not settings.batch.enable_mixed_chunk:
        return
    shown = f" ({chunk} - running)" if chunk and chunk > 0 else ""
    message = (
        f"mixed chunk adds decode rows to a prefill step; release 0.5.23 takes them off the chunk{shown}, so the entry capacity holds; "
        "check older releases"
    )
    why = "In releases that add the rows on top, a full chunk with decode rows passes the entry capacity and the forward raises."
    yield note("mixed_chunk", ("enable_mixed_chunk", "chunked_prefill_size"), message, why)


def single_row(settings: Settings) -> Iterator[Finding]:
    """Row 0 of the request table is padding."""
    if settings.pool.req_to_token_pool_size == 1:
        message = "row 0 of the request table is reserved: a size of 1 needs 2 rows; builds that keep row 0 inside the size have none left"
        why = "Legal in current releases; in older ones the first request waits for ever."
        yield note("single_row", ("req_to_token_pool_size",), message, why, fix("req_to_token_pool_size", 2))


def limits_are_global(settings: Settings) -> Iterator[Finding]:
    """Under DP attention the command line states limits over all ranks, and all canary numbers are per rank."""
    batch = settings.batch
    if not batch.enable_dp_attention or batch.dp_size <= 1:
        return
    asked, ranks = batch.max_running_requests, batch.dp_size
    if asked is not None and asked > 0 and asked % ranks:
        shared, lost = divmod(asked, ranks)
        message = f"limits are global under DP attention: {asked} // {ranks} = {shared} requests per rank, {lost} are lost to rounding"
        why = "Every number of the canary is per rank."
        nearest = ceil(asked / ranks) * ranks
        yield note("requests_per_rank", ("max_running_requests", "dp_size"), message, why, fix("max_running_requests", nearest))
    chunk, own = batch.global_chunked_prefill_size, batch.chunked_prefill_size
    if chunk is not None and chunk > 0:
        usual = 8192
        message = f"a chunk of {chunk} is {chunk // ranks} tokens per rank"
        why = "The chunk given on the command line is shared out over the ranks; small chunks cost throughput."
        fixes = (fix("global_chunked_prefill_size", usual * ranks),) if own is None or own < usual else ()
        yield note("chunk_per_rank", ("global_chunked_prefill_size", "dp_size"), message, why, *fixes)


def _canary_off_or_refused(settings: Settings) -> bool:
    return settings.canary.mode == "none" or bool(capacity_problems(settings))
