"""Rules about what one forward may hold: chunks, prompts, graphs, requests."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from kvcanary import layout
from kvcanary.config.capacities import LaunchCapacities, capacity_problems
from kvcanary.config.defaults import row_context
from kvcanary.config.findings import Finding
from kvcanary.config.rule_parts import SERVER_ARGS, error, fix, note, warning
from kvcanary.config.settings import Settings

# Below this share of the request rows a missing graph is the normal case and not the exception.
GRAPH_SHARE_WORTH_A_WARNING = 0.5
GRAPH_GAP_WORTH_A_WARNING = 512


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


def chunk_in_pages(settings: Settings) -> Iterator[Finding]:
    """A positive prefill chunk is a whole number of pages."""
    chunk, page = settings.batch.chunked_prefill_size, settings.pool.page_size
    if page <= 0 or chunk is None or chunk <= 0 or chunk % page == 0:
        return
    why = (
        f"A chunk ends at the end of a page, and {chunk} tokens are no whole number of pages of {page}. "
        "Only decode servers of a disaggregated pair are exempt."
    )
    yield error(
        "chunk_in_pages", ("chunked_prefill_size", "page_size"), "chunked_prefill_size must be divisible by page_size", why,
        fix("chunked_prefill_size", max(page, chunk // page * page)), source=SERVER_ARGS,
    )  # fmt: skip


def chunk_of_zero(settings: Settings) -> Iterator[Finding]:
    """0 is 'off' for the scheduler and 'no tokens' for the canary."""
    if settings.batch.chunked_prefill_size != 0 or _canary_off_or_refused(settings):
        return
    capacity = LaunchCapacities.from_settings(settings).write_entry_capacity
    # One prompt is admitted whatever its length; several together up to the prefill budget.
    longest = min(settings.pool.pool_slot_count, max(settings.batch.max_prefill_tokens, row_context(settings)))
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
    context = row_context(settings)
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


def chunk_above_budget(settings: Settings) -> Iterator[Finding]:
    """A chunk is cut to its own size alone; the canary sizes its entries by the prefill budget where that is smaller."""
    chunk, budget = settings.batch.chunked_prefill_size, settings.batch.max_prefill_tokens
    if chunk is None or chunk <= budget or _canary_off_or_refused(settings):
        return
    capacity = LaunchCapacities.from_settings(settings).write_entry_capacity
    longest = min(chunk, row_context(settings), settings.pool.pool_slot_count)
    if longest <= capacity:
        return
    why = (
        f"The scheduler admits a first chunk of up to {chunk} tokens although max_prefill_tokens is {budget}, and the canary has room for "
        f"{capacity}: any longer piece of a prompt raises."
    )
    fixes = (fix("max_prefill_tokens", chunk), fix("chunked_prefill_size", budget))
    fields = ("chunked_prefill_size", "max_prefill_tokens")
    yield warning("chunk_above_budget", fields, _entries_message(longest, capacity), why, *fixes, exact=True)


def _entries_message(tokens: int, capacity: int) -> str:
    return (
        f"kv-canary: forward_batch token count={tokens} exceeds pre-allocated write_entry_capacity={capacity}; raise "
        "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args"
    )


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
