"""Rules about the pool, the request table and the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from kvcanary.config.capacities import PAGE_SIZE_RULE, SWA_POOL_CLASS, SWA_RATIO_RULE, capacity_problems, swa_slot_count
from kvcanary.config.defaults import row_context
from kvcanary.config.findings import Finding, Fix
from kvcanary.config.memory import memory_plan
from kvcanary.config.rule_parts import CAPACITIES, SERVER_ARGS, error, fix, note, round_up, warning
from kvcanary.config.settings import Settings
from kvcanary.config.solve import PoolAnswer, changed, largest_pool
from kvcanary.errors import ConfigError
from kvcanary.units import format_count

NOT_ENOUGH_MEMORY = "Not enough memory. Please try to increase --mem-fraction-static."
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
        if canary_off:
            # Without a canary nobody prints the canary's sentence; the pool has one of its own.
            message = NOT_ENOUGH_MEMORY if field == "pool_slot_count" else message.removeprefix("kv-canary: ")
        fixes: list[Fix] = [fix(field, _NEAREST.get(field, 1))]
        if field == "pool_slot_count":
            fixes = [*_larger_fraction(settings), *_pool_that_fits(settings), fix(field, max(1, settings.pool.page_size))]
        exact = not canary_off or field == "pool_slot_count"
        source = SERVER_ARGS if canary_off else CAPACITIES
        yield error(f"{field}_positive", (field,), message, _WHY[field], *fixes, exact=exact, source=source)


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
    message = NOT_ENOUGH_MEMORY
    if settings.memory.mem_fraction_static is not None:
        message += f" Current value: mem_fraction_static={settings.memory.mem_fraction_static}"
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


def window_ratio(settings: Settings) -> Iterator[Finding]:
    """The window pool is a share of the full pool; SGLang checks the flag for every pool class."""
    ratio = settings.pool.swa_full_tokens_ratio
    if not 0 < ratio <= 1:
        why = f"The window pool is this share of the full pool, and {ratio:g} is none. Every pool class has to pass the check."
        yield error(
            "swa_ratio_range", ("swa_full_tokens_ratio",), SWA_RATIO_RULE, why, fix("swa_full_tokens_ratio", 1.0 if ratio > 1 else 0.8),
            source=SERVER_ARGS,
        )  # fmt: skip


def window_pool_too_small(settings: Settings) -> Iterator[Finding]:
    """The sliding-window pool has to hold more than a window and a page, which is what admitting one request takes."""
    pool = settings.pool
    if pool.pool_class != SWA_POOL_CLASS or pool.page_size <= 0 or pool.pool_slot_count < pool.page_size:
        return
    window, page, share = pool.sliding_window or 0, pool.page_size, pool.swa_full_tokens_ratio
    if window <= 0 or not 0 < share <= 1 or (slots := swa_slot_count(settings)) > window + page:
        return
    least = (window // page + 2) * page
    ratio = ceil(least / (pool.pool_slot_count // page * page) * 10_000) / 10_000
    needed = round_up(ceil(least / share), page)
    message = (
        f"SWA pool ({slots} tokens) cannot hold even one request: the prefill admission floor is sliding_window_size ({window}) + "
        f"page_size ({page}). Increase --swa-full-tokens-ratio or the total KV budget."
    )
    why = (
        f"A request needs more than {window + page} window slots, so {least} in whole pages; the pool gets {share:g} of "
        f"{pool.pool_slot_count}, rounded down. Older releases start and then hang at warm-up without a word."
    )
    fixes = [fix("pool_slot_count", needed)]
    if ratio <= 1:
        fixes.insert(0, fix("swa_full_tokens_ratio", ratio))
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


def request_does_not_fit(settings: Settings) -> Iterator[Finding]:
    """One request of full length has to fit into the pool."""
    pool, context = settings.pool, row_context(settings)
    if not 0 < pool.pool_slot_count < context:
        return
    message = f"a request can hold at most {pool.pool_slot_count} tokens although the context is {context}; longer inputs are rejected"
    why = "The pool is smaller than one request of full length. The server starts and turns long inputs away."
    spare = pool.max_seq_len_per_req - context
    larger = round_up(context, pool.page_size) if pool.page_size > 0 else context
    fixes = (fix("pool_slot_count", larger), _shorter_context(pool.pool_slot_count, spare))
    yield warning("request_does_not_fit", ("max_seq_len_per_req", "pool_slot_count"), message, why, *fixes)


def _shorter_context(context: int, spare: int) -> Fix:
    """The row width for a context; the flag states the context itself."""
    return replace(fix("max_seq_len_per_req", context + spare), flag=f"--context-length {context}")


def single_row(settings: Settings) -> Iterator[Finding]:
    """Row 0 of the request table is padding."""
    if settings.pool.req_to_token_pool_size == 1:
        message = "row 0 of the request table is reserved: a size of 1 needs 2 rows; builds that keep row 0 inside the size have none left"
        why = "Legal in current releases; in older ones the first request waits for ever."
        yield note("single_row", ("req_to_token_pool_size",), message, why, fix("req_to_token_pool_size", 2))
