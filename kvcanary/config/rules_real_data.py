"""Rules about the hash of real KV bytes: rows that it cannot read, and what it cannot see."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary import layout
from kvcanary.config.capacities import DSV4_POOL_CLASS, SUPPORTED_POOL_CLASSES, SWA_POOL_CLASS
from kvcanary.config.findings import Finding
from kvcanary.config.geometry import Split, resolve_kv_dtype
from kvcanary.config.kv_parts import STORAGE, heads_per_rank
from kvcanary.config.rule_parts import canary_on, error, fix, note
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError


def _rows(settings: Settings) -> list[tuple[str, int, int]]:
    """(field of the head size, head size, bits per unit of it) of one layer-0 row on one rank, for each row that a hash would read.

    K before V, the full pool before the window pool, as SGLang attaches them. DeepSeek-V4 pools are never hashed.
    """
    pool, model = settings.pool, settings.model
    kv_dtype = resolve_kv_dtype(model.kv_dtype, None if model.model_dtype == "unknown" else model.model_dtype)
    try:
        ranks = Split.from_settings(settings).attn_tp_size
    except ConfigError:
        return []
    if kv_dtype is None or pool.pool_class == DSV4_POOL_CLASS or model.kv_lora_rank is not None:
        return []
    v_field = "head_dim" if model.v_head_dim is None else "v_head_dim"
    wanted = [("head_dim", model.num_kv_heads), (v_field, model.num_kv_heads)]
    if pool.pool_class == SWA_POOL_CLASS and model.swa_head_dim is not None:
        heads = model.num_kv_heads if model.swa_num_kv_heads is None else model.swa_num_kv_heads
        wanted += [("swa_head_dim", heads), ("swa_head_dim" if model.swa_v_head_dim is None else "swa_v_head_dim", heads)]
    rows = []
    for field, heads in wanted:
        size = getattr(model, field)
        on_rank = heads_per_rank(heads, ranks) if heads is not None and heads > 0 else None
        if on_rank is not None and size is not None and size > 0:
            rows.append((field, size, on_rank * STORAGE[kv_dtype].bits))
    return rows


def row_bytes(settings: Settings) -> Iterator[Finding]:
    """The real-KV hash reads 16 bytes at a time; K and V rows are made ready even while the V half is off."""
    if not canary_on(settings) or settings.canary.real_data == "none":
        return
    align = layout.REAL_KV_ALIGNMENT
    for field, size, bits in _rows(settings):
        if (row := size * bits // 8) % align:
            message = f"kv-canary: num_bytes_per_token must be a positive multiple of {align}, got {row}"
            why = "The hash of real KV reads 16 bytes at a time and cannot read such a row. Without the hash the same pool is fine."
            # Bits are a multiple of 4, so one of 32 sizes in a row fills whole 16 bytes.
            nearest = next(dim for dim in range(size + 1, size + 33) if dim * bits // 8 % align == 0)
            heads = "swa_num_kv_heads" if field.startswith("swa_") and settings.model.swa_num_kv_heads is not None else "num_kv_heads"
            yield error(
                "row_bytes", ("real_data", heads, field, "kv_dtype"), message, why, fix("real_data", "none"),
                fix(field, nearest, f"another model: {field} {nearest}"), source="SGLang 0.5.23, make_row_source",
            )  # fmt: skip
            return


def real_data_coverage(settings: Settings) -> Iterator[Finding]:
    """What the chosen hash depth cannot see."""
    if not canary_on(settings):
        return
    depth, rows = settings.canary.real_data, _rows(settings)
    row = f"{rows[0][1] * rows[0][2] // 8} bytes" if rows else "the bytes"
    if settings.pool.pool_class == DSV4_POOL_CLASS and depth != "none":
        message = "this pool has no real-KV hash: its 584 bytes per token are no multiple of 16"
        yield note("real_data_coverage", ("real_data",), message, "Changed KV bytes are not seen, whatever is chosen here.")
    elif depth == "none":
        message = "no KV byte is hashed: overwritten KV is not seen, only wrong mappings, positions and tokens are"
        yield note(
            "real_data_coverage", ("real_data",), message, "The cheapest mode; it checks records, not data.", fix("real_data", "partial")
        )
    elif depth == "partial":
        first = f"the first 16 of {row}" if rows else "the first 16 bytes"
        message = f"partial hashes {first} of one K row in layer 0; a change elsewhere is not seen"
        yield note("real_data_coverage", ("real_data",), message, "A clean report says nothing about the rest.", fix("real_data", "all"))
    else:
        message = f"all hashes {row} of one K row in layer 0; other layers, and V unless its half is on, are not seen"
        yield note("real_data_coverage", ("real_data",), message, "A clean report says nothing about the rest.")


def v_half_off(settings: Settings) -> Iterator[Finding]:
    """V buffers are allocated even while nobody verifies them."""
    canary = settings.canary
    if not canary_on(settings) or canary.verify_v_half or settings.pool.pool_class not in SUPPORTED_POOL_CLASSES:
        return
    if settings.pool.pool_class == DSV4_POOL_CLASS or canary.real_data == "none":
        return
    message = "the V half is off: V rows are not verified although their buffers are allocated"
    yield note("v_half_off", ("verify_v_half",), message, "Half of the buffers cost memory and see nothing.", fix("verify_v_half", True))


def real_data_without_mode(settings: Settings) -> Iterator[Finding]:
    """Options of a canary that is off."""
    if not canary_on(settings) and settings.canary.real_data != "none":
        message = "real_data has no effect while the canary mode is none"
        yield note("real_data_without_mode", ("real_data", "mode"), message, "Nothing is hashed.", fix("mode", "log"))
