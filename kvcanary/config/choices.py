"""What SGLang would choose for the flags that nobody gave, in the order in which it chooses: each choice builds on the ones before it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kvcanary.config.defaults import Derived, fill_missing, row_context, running_requests
from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import memory_plan
from kvcanary.config.settings import Settings
from kvcanary.config.solve import changed, largest_pool
from kvcanary.errors import ConfigError

CHOSEN_FIELDS = (
    "chunked_prefill_size",
    "cuda_graph_max_bs",
    "max_prefill_tokens",
    "mem_fraction_static",
    "pool_slot_count",
    "req_to_token_pool_size",
)
_BY_DEVICE = {"chunked_prefill_size", "cuda_graph_max_bs", "mem_fraction_static"}


def choose_missing(settings: Settings, missing: Collection[str]) -> tuple[Settings, tuple[Derived, ...], tuple[Unknown, ...]]:
    """Fill some of CHOSEN_FIELDS as SGLang does; returns the settings, what was chosen by which rule, and what could not be.

    Without the memory of the device its choices are not known: the engine reads that memory, we may not.
    """
    wanted = set(missing) & set(CHOSEN_FIELDS)
    open_fields: list[Unknown] = []
    if settings.memory.device_memory_bytes is None and wanted & _BY_DEVICE:
        text, settle = "SGLang chooses it by the memory of the device, which is not stated", "the accelerator"
        open_fields += [Unknown(field=name, text=text, settle=settle) for name in CHOSEN_FIELDS if name in wanted & _BY_DEVICE]
        wanted -= _BY_DEVICE
    latent = settings.model.kv_lora_rank is not None
    first = wanted - {"pool_slot_count", "req_to_token_pool_size"}
    derived: list[Derived] = []
    try:
        settings, found = fill_missing(settings, first, latent=latent)
        derived += found
    except ConfigError as error:
        open_fields.append(Unknown(field="mem_fraction_static", text=str(error), settle="--mem-fraction-static"))
    if "pool_slot_count" in wanted:
        pool = _pool(settings)
        if isinstance(pool, Derived):
            derived.append(pool)
            settings = changed(settings, pool_slot_count=pool.value)
        else:
            open_fields.append(pool)
    if "req_to_token_pool_size" in wanted:
        pool_known = "pool_slot_count" not in {entry.field for entry in open_fields}
        rows = _rows(settings) if pool_known else _follows_from_pool()
        if isinstance(rows, Derived):
            derived.append(rows)
            settings = changed(settings, req_to_token_pool_size=rows.value)
        else:
            open_fields.append(rows)
    return settings, tuple(derived), tuple(open_fields)


def _pool(settings: Settings) -> Derived | Unknown:
    if settings.memory.mem_fraction_static is None:
        return Unknown(field="pool_slot_count", text="the static fraction is not known", settle="--mem-fraction-static, or the accelerator")
    try:
        answer = largest_pool(memory_plan(settings), static_only=True)
    except ConfigError as error:
        return Unknown(field="pool_slot_count", text=str(error), settle="settings that can be planned")
    if isinstance(answer, Unknown):
        return replace(answer, field="pool_slot_count")
    budget = "free memory before loading" if settings.memory.free_before_load_bytes is not None else "device memory"
    return Derived(
        field="pool_slot_count",
        value=answer.slots,
        formula=f"{settings.memory.mem_fraction_static} of the {budget}, less weights, over the bytes of a slot, in whole pages",
        rule="largest pool of the static share",
    )


def _follows_from_pool() -> Unknown:
    return Unknown(field="req_to_token_pool_size", text="it follows from the pool, which is not known", settle="--max-running-requests")


def _rows(settings: Settings) -> Derived | Unknown:
    batch, context = settings.batch, row_context(settings)
    if context < 1 or batch.dp_size < 1:
        return Unknown(field="req_to_token_pool_size", text="the context length is not known", settle="--context-length")
    ranks = batch.dp_size if batch.enable_dp_attention else 1
    return running_requests(settings.pool.pool_slot_count, context, asked=batch.max_running_requests, attn_dp_size=ranks)
