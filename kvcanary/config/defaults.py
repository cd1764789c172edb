"""What SGLang chooses where a flag is missing, each choice with its rule, so that a plan of a bare launch command has all its inputs.

The rules are those of the published releases, read from 0.5.13, 0.5.18, 0.5.20, 0.5.22 and 0.5.23; they changed twice, so a rule set is
named by the release it begins with. All memory inside the rules is in MiB, as in SGLang; arguments and results are bytes or fractions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Any

from kvcanary.config.kv_parts import RankKv
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import MIB

MAX_PREFILL_TOKENS = 16384
REQUESTS_FLOOR, REQUESTS_CEILING, REQUESTS_PER_CONTEXT = 2048, 4096, 512
ROW_SPARE_TOKENS = 4
# Far above any batch that runs; a list of steps up to a number that somebody typed would fill any memory.
MAX_LISTED_BATCH = 1 << 20
POST_CAPTURE_RESERVE_MIB, META_RESERVE_MIB, LARGE_DEVICE_MIB, LARGE_DEVICE_RESERVE_MIB = 1536, 512, 60 * 1024, 10 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Choices for devices below `below_mib` of memory; the batch depends on whether tp_size is below 4."""

    below_mib: float
    chunked_prefill_size: int
    max_bs: int
    max_bs_tp4: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules of the releases from `release` on."""

    release: str
    tiers: tuple[Tier, ...]
    draft_reserve_mib: int
    standalone_reserve_mib: int
    fraction_without_memory: float


def _tiers(small_chunk: int, small_bs: int, small_bs_tp4: int) -> tuple[Tier, ...]:
    return (
        Tier(below_mib=20 * 1024, chunked_prefill_size=2048, max_bs=8, max_bs_tp4=8),
        Tier(below_mib=35 * 1024, chunked_prefill_size=small_chunk, max_bs=small_bs, max_bs_tp4=small_bs_tp4),
        Tier(below_mib=60 * 1024, chunked_prefill_size=4096, max_bs=32, max_bs_tp4=160),
        Tier(below_mib=160 * 1024, chunked_prefill_size=8192, max_bs=256, max_bs_tp4=512),
        Tier(below_mib=inf, chunked_prefill_size=16384, max_bs=512, max_bs_tp4=512),
    )


UNKNOWN_TIER = Tier(below_mib=inf, chunked_prefill_size=4096, max_bs=160, max_bs_tp4=160)
RULE_SETS = {
    rules.release: rules
    for rules in (
        RuleSet(release="0.5.20", tiers=_tiers(4096, 48, 160), draft_reserve_mib=0, standalone_reserve_mib=0, fraction_without_memory=0.95),
        RuleSet(release="0.5.18", tiers=_tiers(2048, 24, 80), draft_reserve_mib=0, standalone_reserve_mib=0, fraction_without_memory=0.88),
        RuleSet(
            release="0.5.13", tiers=_tiers(2048, 24, 80), draft_reserve_mib=4096, standalone_reserve_mib=6144, fraction_without_memory=0.88
        ),
    )
}
CURRENT = RULE_SETS["0.5.20"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A value the engine would choose: the settings field, the value, the arithmetic with the operator's numbers, and the rule."""

    field: str
    value: int | float
    formula: str
    rule: str
    release: str = "0.5.23"


def tier_of(device_memory_bytes: int | None, rules: RuleSet = CURRENT) -> Tier:
    """The tier of a device by its memory; None is a device whose memory SGLang cannot read."""
    if device_memory_bytes is None:
        return UNKNOWN_TIER
    return next(tier for tier in rules.tiers if device_memory_bytes / MIB < tier.below_mib)


def chunked_prefill_size(device_memory_bytes: int | None, rules: RuleSet = CURRENT) -> Derived:
    """Prefill chunk by device memory."""
    tier = tier_of(device_memory_bytes, rules)
    return Derived(
        field="chunked_prefill_size",
        value=tier.chunked_prefill_size,
        formula=f"{_tier_text(device_memory_bytes, tier)} -> {tier.chunked_prefill_size}",
        rule="prefill chunk by device memory",
        release=rules.release,
    )


def cuda_graph_max_bs(
    device_memory_bytes: int | None, tp_size: int, max_running_requests: int | None = None, rules: RuleSet = CURRENT
) -> Derived:
    """Largest captured decode batch by device memory and tensor-parallel size, at most the running requests asked for (from 0.5.20)."""
    tier = tier_of(device_memory_bytes, rules)
    batch = tier.max_bs if tp_size < 4 else tier.max_bs_tp4
    formula = f"{_tier_text(device_memory_bytes, tier)}, tp_size {tp_size} {'<' if tp_size < 4 else '>='} 4 -> {batch}"
    if rules is CURRENT and max_running_requests is not None and max_running_requests < batch:
        batch = max_running_requests
        formula += f", at most max_running_requests {batch}"
    return Derived(
        field="cuda_graph_max_bs", value=batch, formula=formula, rule="decode graph batch by device memory", release=rules.release
    )


def _tier_text(device_memory_bytes: int | None, tier: Tier) -> str:
    if device_memory_bytes is None:
        return "device memory unknown"
    limit = f"< {int(tier.below_mib)} MiB" if tier.below_mib != inf else f">= {160 * 1024} MiB"
    return f"{device_memory_bytes // MIB} MiB {limit}"


def capture_batch_sizes(max_bs: int, *, speculative: bool = False, padding: bool = True) -> tuple[int, ...]:
    """Decode batches that are captured, ascending; a max_bs that is no step of the list is added.

    Raises ConfigError for a batch that no list of batches is made for.
    """
    if max_bs < 1:
        return ()
    if max_bs > MAX_LISTED_BATCH:
        raise ConfigError(
            f"cuda_graph_max_bs must be at most {MAX_LISTED_BATCH} to list its batches, got {max_bs}; lower --cuda-graph-max-bs-decode"
        )
    if not padding:
        return tuple(range(1, max_bs + 1))
    if speculative:
        steps = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_bs + 1, 16)]
    else:
        steps = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    sizes = [size for size in steps if size <= max_bs]
    return tuple(sizes if max_bs in sizes else [*sizes, max_bs])


def prefill_captures(max_tokens: int) -> int:
    """How many token counts are captured for prefill graphs, of 4 up to `max_tokens`; counted and not listed, because any number can be asked."""
    steps = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256)]
    return len([size for size in steps if size <= max_tokens]) + len(range(4608, max_tokens + 1, 512))


def mem_fraction_static(settings: Settings, *, latent: bool = False, standalone_draft: bool = False, rules: RuleSet = CURRENT) -> Derived:
    """Share of the device for weights and KV: what is left after the reserve for activations, graphs and parallel buffers.

    Uses device_memory_bytes, chunk, prefill budget, graph batch, tp/pp/dp sizes and prefill graphs of the settings. Multimodal models,
    DeepEP and XPU reserve more; that is not modelled. Raises ConfigError where the reserve exceeds the device.
    """
    memory, batch = settings.memory, settings.batch
    if memory.device_memory_bytes is None:
        value = rules.fraction_without_memory
        return _fraction(value, f"device memory unknown -> {value}", rules)
    device_mib = memory.device_memory_bytes / MIB
    parallel = memory.tp_size * memory.pp_size / 8 * 1024
    if memory.post_capture_kv_sizing:
        terms = [f"{POST_CAPTURE_RESERVE_MIB}", f"{memory.tp_size} x {memory.pp_size} / 8 x 1024"]
        reserve: float = POST_CAPTURE_RESERVE_MIB + parallel
    else:
        chunk = batch.chunked_prefill_size or 0
        tokens = max(chunk if chunk > 0 else batch.max_prefill_tokens, 2048)
        terms = [f"{META_RESERVE_MIB}", f"{tokens} x 1.5", f"{memory.tp_size} x {memory.pp_size} / 8 x 1024"]
        reserve = META_RESERVE_MIB + tokens * 1.5 + parallel
        for text, size in _graph_reserve(settings, latent):
            terms.append(text)
            reserve += size
        if device_mib > LARGE_DEVICE_MIB and reserve < LARGE_DEVICE_RESERVE_MIB:
            terms, reserve = [f"at least {LARGE_DEVICE_RESERVE_MIB}"], LARGE_DEVICE_RESERVE_MIB
        if batch.speculative_num_draft_tokens and (draft := rules.standalone_reserve_mib if standalone_draft else rules.draft_reserve_mib):
            terms.append(str(draft))
            reserve += draft
    value = round((device_mib - reserve) / device_mib, 3) if device_mib > reserve else 0.0
    if value <= 0:
        raise ConfigError(
            f"device_memory_bytes must exceed the {reserve:.0f} MiB SGLang reserves, got {device_mib:.0f} MiB; give --mem-fraction-static"
        )
    return _fraction(value, f"({device_mib:.0f} - ({' + '.join(terms)})) / {device_mib:.0f} = {value}", rules)


def activation_reserve_bytes(settings: Settings) -> int:
    """What SGLang keeps free for eager batches when it sizes the pool after capture and decode graphs do not cover all requests."""
    batch, memory = settings.batch, settings.memory
    chunk = batch.chunked_prefill_size or 0
    tokens = max(chunk if chunk > 0 else batch.max_prefill_tokens, 2048)
    reserve = META_RESERVE_MIB + tokens * 1.5 + memory.tp_size * memory.pp_size / 8 * 1024
    if memory.device_memory_bytes is not None and memory.device_memory_bytes / MIB > LARGE_DEVICE_MIB:
        reserve = max(reserve, LARGE_DEVICE_RESERVE_MIB)
    return int(reserve * MIB)


def _fraction(value: float, formula: str, rules: RuleSet) -> Derived:
    return Derived(
        field="mem_fraction_static",
        value=value,
        formula=formula,
        rule="(device - reserve) / device in MiB, 3 digits",
        release=rules.release,
    )


def _graph_reserve(settings: Settings, latent: bool) -> list[tuple[str, float]]:
    batch = settings.batch
    max_bs = batch.cuda_graph_max_bs or 0
    found: list[tuple[str, float]] = []
    if batch.cuda_graph_backend_decode != "disabled" and max_bs:
        found.append((f"2 x {max_bs}", max_bs * 2))
    if batch.enable_dp_attention and max_bs:
        found.append((f"3 x {max_bs} x {batch.dp_size}", 3 * max_bs * batch.dp_size))
        if max_bs > 300:
            found.append((f"1.5 x {max_bs} x {batch.dp_size}", 1.5 * max_bs * batch.dp_size))
    if batch.cuda_graph_backend_prefill != "disabled":
        chunk = batch.chunked_prefill_size or 0
        sizes = prefill_captures(chunk)
        found.append(("1536", 1536) if latent else (f"8 x {sizes}", 8 * sizes))
    return found


def request_row_width(context_len: int, draft_tokens: int | None = None) -> Derived:
    """Width of the request table: the context, 4 spare tokens and the draft tokens. Speculation with pages above 1 may need a few more."""
    draft = draft_tokens or 0
    return Derived(
        field="max_seq_len_per_req",
        value=context_len + ROW_SPARE_TOKENS + draft,
        formula=f"{context_len} + {ROW_SPARE_TOKENS}" + (f" + {draft}" if draft else ""),
        rule="context length + 4 + draft tokens",
    )


def row_context(settings: Settings) -> int:
    """Context length behind the width of a request row, the inverse of `request_row_width`; below 1 where the row is too narrow."""
    draft = max(0, settings.batch.speculative_num_draft_tokens or 0)
    return settings.pool.max_seq_len_per_req - ROW_SPARE_TOKENS - draft


def running_requests(
    pool_slot_count: int, context_len: int, *, asked: int | None = None, attn_dp_size: int = 1, state_limit: int | None = None
) -> Derived:
    """Request rows of one data-parallel rank.

    Not asked for: pool / context x 512, held in 2048..4096; asked for: the share of one rank, at least 1. Either way at most half the
    pool, and at most what the state cache of a hybrid model can serve (`state_limit`).
    """
    if context_len < 1 or attn_dp_size < 1:
        raise ConfigError(f"context length and data-parallel size must be at least 1, got {context_len} and {attn_dp_size}")
    if asked is None:
        estimate = int(pool_slot_count / context_len * REQUESTS_PER_CONTEXT)
        wanted = max(min(estimate, REQUESTS_CEILING), REQUESTS_FLOOR)
        formula = f"{pool_slot_count} / {context_len} x {REQUESTS_PER_CONTEXT} = {estimate}, held in {REQUESTS_FLOOR}..{REQUESTS_CEILING}"
    else:
        wanted = max(1, asked // attn_dp_size)
        formula = f"max(1, {asked} // {attn_dp_size}) = {wanted}"
    value = min(wanted, pool_slot_count // 2)
    formula += f"; at most {pool_slot_count} // 2"
    if state_limit is not None:
        value = min(value, state_limit)
        formula += f"; at most {state_limit} by the state cache"
    return Derived(field="req_to_token_pool_size", value=value, formula=formula, rule="max_running_requests of one data-parallel rank")


def kv_budget_bytes(free_after_weights_bytes: int, free_before_load_bytes: int, fraction: float) -> int:
    """Bytes left for the KV pool: free memory after loading less the share of the free memory before it that is not static.

    Negative where weights leave less than that share; SGLang then refuses to start.
    """
    return int(free_after_weights_bytes - free_before_load_bytes * (1 - fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Slots of the full pool (max_total_num_tokens) and of the window pool (0 without one)."""

    full_slots: int
    window_slots: int
    cell_bytes: float


def pool_size(
    budget_bytes: int, rank: RankKv, page_size: int, *, window_ratio: float | None = None, draft_bytes: int = 0, cap: int | None = None
) -> PoolSize:
    """Slots that a budget buys, rounded down to whole pages; `window_ratio` is set where window layers have their own pool.

    A window pool is charged with its share (ratio) per full slot and then rounded to pages itself. `cap` is --max-total-tokens, which
    only lowers. The count may be zero or negative, as SGLang's own profile can be.
    """
    if page_size < 1:
        raise ConfigError(f"page_size must be at least 1, got {page_size}")
    cell: float = rank.pool_bytes("full") + draft_bytes
    if window_ratio is not None:
        cell += window_ratio * rank.pool_bytes("swa")
    if cell <= 0:
        raise ConfigError("the model keeps no token KV on this rank, so memory does not limit the pool; give --max-total-tokens")
    slots = int(budget_bytes // cell) // page_size * page_size
    if cap is not None:
        slots = min(slots, cap // page_size * page_size)
    return PoolSize(full_slots=slots, window_slots=window_slots(slots, page_size, window_ratio), cell_bytes=cell)


def window_slots(full_slots: int, page_size: int, window_ratio: float | None) -> int:
    """Slots of the window pool: the ratio of the full pool, down to whole pages; 0 without a ratio."""
    return 0 if window_ratio is None else int(full_slots * window_ratio) // page_size * page_size


def fill_missing(
    settings: Settings, missing: Collection[str], *, context_len: int | None = None, latent: bool = False, rules: RuleSet = CURRENT
) -> tuple[Settings, tuple[Derived, ...]]:
    """Put the engine's choices where the operator gave no flag; returns the new settings and what was derived, in SGLang's order.

    `missing` names settings fields. Fields whose inputs are unknown stay as they are (`pool_slot_count` needs a memory plan and is never
    filled here; the request limit needs the pool to be known and not missing).
    """
    derived: list[Derived] = []

    def choose(choice: Derived, more: dict[str, Any] | None = None) -> None:
        nonlocal settings
        derived.append(choice)
        settings = settings.replace(**{choice.field: choice.value}, **(more or {}))

    memory, batch = settings.memory, settings.batch
    if "chunked_prefill_size" in missing:
        choose(chunked_prefill_size(memory.device_memory_bytes, rules))
    # SGLang fills the batch in even where decode graphs are off, and the canary counts it.
    if "cuda_graph_max_bs" in missing:
        choose(cuda_graph_max_bs(memory.device_memory_bytes, memory.tp_size, batch.max_running_requests, rules))
    if "max_prefill_tokens" in missing:
        text = f"{MAX_PREFILL_TOKENS}"
        choose(Derived(field="max_prefill_tokens", value=MAX_PREFILL_TOKENS, formula=text, rule="default of --max-prefill-tokens"))
    if "mem_fraction_static" in missing:
        choose(mem_fraction_static(settings, latent=latent, rules=rules))
    if "max_seq_len_per_req" in missing and context_len is not None:
        choose(request_row_width(context_len, batch.speculative_num_draft_tokens))
    if "req_to_token_pool_size" in missing and "pool_slot_count" not in missing and context_len is not None:
        attn_dp_size = batch.dp_size if batch.enable_dp_attention else 1
        choose(running_requests(settings.pool.pool_slot_count, context_len, asked=batch.max_running_requests, attn_dp_size=attn_dp_size))
    return settings, tuple(derived)
