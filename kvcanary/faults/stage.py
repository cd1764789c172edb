"""The mechanism that a kind of fault belongs to, switched on in the serving loop: drafts need speculation, a late page needs a transfer.

What has to be evicted or sent back first is staged in a pool that is short of slots.
"""

from __future__ import annotations

from dataclasses import replace

from kvcanary.serving.options import ServingOptions

_WINDOW = 16
_DRAFT_TOKENS = 3
_DRAFT_CHUNK, _RETRACTED_CHUNK = 16, 8
# Kinds that damage KV on its way back from the host or a storage tier.
RELOAD_KINDS = frozenset({"tier_reload", "storage_visible_garbage"})


def stage(options: ServingOptions, kind: str, variant: str = "") -> ServingOptions:
    """The options with what the kind needs, and the variant where it needs more; mechanisms that they have stay.

    RELOAD_KINDS without a host tier, and chunk_end_after_retraction, also get a smaller pool.
    """
    if kind == "swa_eviction" and options.sliding_window is None:
        return replace(options, sliding_window=_WINDOW, swa_pool_slot_count=options.pool_slot_count)
    if kind in ("spec_rollback", "draft_pool"):
        drafts = options.speculative_num_draft_tokens or _DRAFT_TOKENS
        drafting = replace(options, enable_mixed_chunk=False, speculative_num_draft_tokens=drafts)
        if kind == "spec_rollback":
            return drafting
        # Short chunks, so that prompts have chunk ends to go wrong at; shorter ones for what a request has said until it was sent back.
        retracted = variant == "chunk_end_after_retraction"
        chunk = max(1, (_RETRACTED_CHUNK if retracted else _DRAFT_CHUNK) // options.page_size) * options.page_size
        drafting = replace(drafting, disaggregation_mode="null", draft_pool=True, chunked_prefill_size=chunk)
        return replace(_tight(drafting), new_token_ratio=0.0) if retracted else drafting
    if kind in RELOAD_KINDS and not options.host_slot_count:
        return _with_host_tier(options)
    if kind == "padding_slot" and options.dp_size == 1:
        return replace(options, dp_size=2)
    if kind == "pd_transfer" and options.disaggregation_mode == "null":
        # The decode side keeps no prefix tree, and so no host tier and no prompt of its own to mix in.
        return replace(options, disaggregation_mode="decode", radix_cache=False, host_slot_count=0, draft_pool=False)
    return options


def _with_host_tier(options: ServingOptions) -> ServingOptions:
    """A host tier as large as the pool was, and so little left on the device that prefixes leave it and come back."""
    mode = "null" if options.disaggregation_mode == "decode" else options.disaggregation_mode
    return replace(_tight(options), host_slot_count=options.pool_slot_count, radix_cache=True, disaggregation_mode=mode)


def _tight(options: ServingOptions) -> ServingOptions:
    """Slots for one longest request and a quarter of another, in the window's pool too, so that prefixes are evicted and requests sent back."""
    longest = -(-5 * options.max_seq_len_per_req // (4 * options.page_size)) * options.page_size
    pool, window = options.pool_slot_count, options.swa_pool_slot_count
    return replace(options, pool_slot_count=min(pool, longest), swa_pool_slot_count=None if window is None else min(window, longest))
