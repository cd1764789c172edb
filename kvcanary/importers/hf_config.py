"""A model's config.json, or the index of its safetensors files, as settings fields with the key each came from.

Nothing is fetched; the caller hands over what was pasted or uploaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcanary.config.geometry import KvGeometry, LayerKind, LayerKv, Split, Unknown
from kvcanary.config.hf_geometry import geometry_from_hf_config
from kvcanary.config.kv_parts import RankKv
from kvcanary.errors import ConfigError, ImportTextError
from kvcanary.units import INT64_MAX

CONFIG_KEYS = frozenset({"architectures", "model_type", "num_hidden_layers", "hidden_size", "n_layer", "text_config", "layer_types"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadField:
    """A settings field's value and the key or rule it came from."""

    value: int | str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """What a config.json says: the exact geometry, the settings fields that carry it, and what stays open.

    `fields` lead to the same bytes per token as `geometry` where the settings can express it; else `kv_bytes_per_token` carries the
    figure for the tensor-parallel size the reading was made for.
    """

    geometry: KvGeometry
    fields: Mapping[str, ReadField]
    unknowns: tuple[Unknown, ...]
    notes: tuple[str, ...]


def is_hf_config(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a model's config.json."""
    return len(CONFIG_KEYS & set(document)) >= 2


def parse_hf_config(text: str, *, kv_dtype: str = "auto", tp_size: int = 1) -> ModelReading:
    """Read config.json text; ImportTextError if it is no JSON object or holds a value that is no legal size."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImportTextError(f"config.json: not JSON: {str(error)[:80]}") from None
    if not isinstance(document, dict):
        raise ImportTextError(f"config.json: must be an object, got {type(document).__name__}")
    return read_hf_config(document, kv_dtype=kv_dtype, tp_size=tp_size)


def read_hf_config(config: Mapping[str, Any], *, kv_dtype: str = "auto", tp_size: int = 1) -> ModelReading:
    """Read a parsed config.json; `kv_dtype` is --kv-cache-dtype, `tp_size` the ranks that attention is cut over."""
    try:
        geometry = geometry_from_hf_config(config, kv_dtype)
        fields, more = _fields(geometry, Split(attn_tp_size=tp_size))
    except ConfigError as error:
        raise ImportTextError(str(error)) from None
    return ModelReading(geometry=geometry, fields=fields, unknowns=(*geometry.unknowns, *more), notes=geometry.notes)


def weight_bytes_from_index(index: Mapping[str, Any], *, tp_size: int = 1, pp_size: int = 1) -> ReadField:
    """Weights of one rank from model.safetensors.index.json: metadata.total_size over the ranks, rounded up.

    What SGLang replicates (norms, embeddings in some models) or quantizes while loading is not in it; the log's 'mem usage' is exact.
    """
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or not 1 <= total <= INT64_MAX:
        rule = f"metadata.total_size must be a whole number in 1..{INT64_MAX}"
        raise ImportTextError(f"model.safetensors.index.json: {rule}, got {str(total)[:40]!r}")
    ranks = tp_size * pp_size
    if ranks < 1:
        raise ImportTextError(f"ranks must be at least 1, got tp_size={tp_size} pp_size={pp_size}")
    return ReadField(value=-(-total // ranks), source=f"metadata.total_size {total} / {ranks} ranks")


def _fields(geometry: KvGeometry, split: Split) -> tuple[dict[str, ReadField], list[Unknown]]:
    fields: dict[str, ReadField] = {}
    unknowns: list[Unknown] = []

    def put(name: str, value: int | str | None, source: str) -> None:
        if value is not None:
            fields[name] = ReadField(value=value, source=source)

    put("model", geometry.model or None, "_name_or_path or architectures")
    put("pool_class", geometry.pool_class, "architectures and layer kinds")
    put("sliding_window", geometry.window, "sliding_window or attention_chunk_size")
    if geometry.kv_dtype in ("bfloat16", "float16", "float32"):
        put("model_dtype", geometry.kv_dtype, "torch_dtype")
    elif geometry.kv_dtype is not None:
        put("kv_dtype", geometry.kv_dtype, "--kv-cache-dtype or quantization_config.kv_cache_quant_algo")
    _state_fields(geometry, split, put, unknowns)
    rank = geometry.rank(split)
    if not _expressible(geometry):
        if isinstance(rank, RankKv) and geometry.window_pool is False:
            size = rank.pool_bytes("full")
            put("kv_bytes_per_token", size, f"{rank.pool_formula('full')}, for {split.attn_tp_size} tensor-parallel ranks")
        elif isinstance(rank, RankKv):
            text = "the layers differ in more ways than the settings can hold"
            unknowns.append(Unknown(field="kv_bytes_per_token", text=text, settle="the plan made from config.json itself"))
        return fields, unknowns
    _layer_fields(geometry, put)
    return fields, unknowns


def _state_fields(geometry: KvGeometry, split: Split, put: Any, unknowns: list[Unknown]) -> None:
    put("num_state_layers", geometry.state_layers or None, "layer kinds")
    if geometry.state is None:
        return
    try:
        put("state_bytes_per_request", geometry.state.bytes_per_request(split.attn_tp_size), geometry.state.formula(split.attn_tp_size))
    except ConfigError as error:
        unknowns.append(Unknown(field="state_bytes_per_request", text=str(error), settle="another tensor-parallel size"))


def _attention(geometry: KvGeometry) -> tuple[list[LayerKv], list[LayerKv]]:
    """Full and window layers; layers that are open between the two count as full."""
    near = (LayerKind.WINDOW, LayerKind.CHUNKED)
    window = [layer for layer in geometry.layers if layer.kind in near]
    return [layer for layer in geometry.layers if layer.kind not in (*near, LayerKind.NONE)], window


def _expressible(geometry: KvGeometry) -> bool:
    full, window = _attention(geometry)
    shapes = [{(layer.kv_heads, layer.k_dim, layer.v_dim, layer.latent) for layer in layers} for layers in (full, window)]
    latent_window = any(layer.latent for layer in window)
    return bool(full or window) and all(len(shape) <= 1 for shape in shapes) and not latent_window


def _layer_fields(geometry: KvGeometry, put: Any) -> None:
    full, window = _attention(geometry)
    first = (full or window)[0]
    idle = sum(layer.kind is LayerKind.NONE and not layer.state for layer in geometry.layers)
    put("num_layers", len(full) + len(window), "num_hidden_layers less those without token KV")
    put("num_idle_layers", idle or None, "layers without attention or state")
    if first.latent:
        put("kv_lora_rank", first.k_dim - first.rope_dim, "kv_lora_rank")
        put("qk_rope_head_dim", first.rope_dim, "qk_rope_head_dim")
    else:
        put("num_kv_heads", first.kv_heads, "num_key_value_heads")
        put("head_dim", first.k_dim, "head_dim, or hidden_size / num_attention_heads")
        put("v_head_dim", first.v_dim if first.v_dim != first.k_dim else None, "v_head_dim")
    indexed = [layer for layer in full if layer.index_dim]
    if indexed:
        put("index_head_dim", indexed[0].index_dim, "index_head_dim")
        put("index_num_layers", len(indexed), "layers that do not share an index")
    if window:
        other = window[0]
        put("swa_num_layers", len(window), "layer kinds")
        put("swa_num_kv_heads", other.kv_heads if other.kv_heads != first.kv_heads else None, "swa_num_key_value_heads")
        if (other.k_dim, other.v_dim) != (first.k_dim, first.v_dim):
            put("swa_head_dim", other.k_dim, "swa_head_dim")
            put("swa_v_head_dim", other.v_dim, "swa_v_head_dim")
