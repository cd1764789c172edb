"""The KV geometry that the model fields of the settings state; what is empty there is unknown here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from kvcanary.config.geometry import MAX_LAYERS, SWA_POOL, KvGeometry, LayerKind, LayerKv, Split, Unknown, resolve_kv_dtype
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.settings import ModelSettings, Settings
from kvcanary.errors import ConfigError


def geometry_from_settings(settings: Settings) -> KvGeometry:
    """Geometry from the model fields of the settings; what is empty there is unknown here."""
    return _geometry(settings.model, settings.pool.sliding_window, settings.pool.pool_class)


def rank_from_settings(settings: Settings, split: Split) -> RankKv | Unknown:
    """What the geometry of the settings costs on one rank."""
    return _rank(settings.model, settings.pool.sliding_window, settings.pool.pool_class, split)


# A plan is solved by planning again and again with the same model.
@lru_cache(maxsize=64)
def _rank(model: ModelSettings, window: int | None, pool_class: str, split: Split) -> RankKv | Unknown:
    return _geometry(model, window, pool_class).rank(split)


@lru_cache(maxsize=64)
def _geometry(model: ModelSettings, window: int | None, pool_class: str) -> KvGeometry:
    unknowns: list[Unknown] = []
    kv_dtype = resolve_kv_dtype(model.kv_dtype, None if model.model_dtype == "unknown" else model.model_dtype)
    base = KvGeometry(
        kv_dtype=kv_dtype,
        window=window,
        pool_class=pool_class or None,
        model=model.model,
        draft_layers=model.draft_num_layers,
        ordered=False,
    )
    if model.kv_bytes_per_token is not None:
        _require_positive("kv_bytes_per_token", model.kv_bytes_per_token)
        return replace(base, stated_bytes_per_token=model.kv_bytes_per_token)
    needed = ("num_layers", "kv_lora_rank") if model.kv_lora_rank is not None else ("num_layers", "num_kv_heads", "head_dim")
    for name in needed:
        value = getattr(model, name)
        if value is None:
            unknowns.append(Unknown(field=name, text=f"{name} is not stated", settle="config.json of the model, or 'kv_bytes_per_token'"))
        else:
            _require_positive(name, value)
    if model.kv_lora_rank is not None and model.qk_rope_head_dim is None:
        unknowns.append(Unknown(field="head_dim", text="qk_rope_head_dim is not stated", settle="config.json of the model"))
    if unknowns:
        return replace(base, unknowns=tuple(unknowns))
    assert model.num_layers is not None
    layers = tuple(_stated_layers(model, model.num_layers))
    if pool_class == SWA_POOL and model.swa_num_layers is None:
        text = "the pool class has a window pool, but how many layers use the window is not stated"
        unknowns.append(Unknown(field="swa_num_layers", text=text, settle="layer_types of config.json"))
        layers = tuple(replace(layer, kind=LayerKind.UNSTATED) if layer.kind is LayerKind.FULL else layer for layer in layers)
    return replace(base, layers=layers, unknowns=tuple(unknowns))


def _stated_layers(model: ModelSettings, num_layers: int) -> Iterable[LayerKv]:
    for name in ("v_head_dim", "qk_rope_head_dim", "swa_num_kv_heads", "swa_head_dim", "swa_v_head_dim", "index_head_dim"):
        if (value := getattr(model, name)) is not None:
            _require_positive(name, value)
    window_layers = model.swa_num_layers or 0
    index_layers = model.index_num_layers if model.index_num_layers is not None else (num_layers if model.index_head_dim else 0)
    for name, value in (
        ("num_layers", num_layers),
        ("num_state_layers", model.num_state_layers or 0),
        ("num_idle_layers", model.num_idle_layers or 0),
    ):
        if not 0 <= value <= MAX_LAYERS:
            raise ConfigError(f"{name} must be in 0..{MAX_LAYERS}, got {value}")
    for name, value in (("swa_num_layers", window_layers), ("index_num_layers", index_layers)):
        if not 0 <= value <= num_layers:
            raise ConfigError(f"{name} must be in 0..{num_layers} (num_layers), got {value}")
    full = _full_layer(model)
    indexed = replace(full, index_dim=model.index_head_dim or 0)
    yield from (indexed if i < index_layers else full for i in range(num_layers - window_layers))
    swa_k = model.swa_head_dim or full.k_dim
    swa_v = 0 if full.latent else (model.swa_v_head_dim or (model.swa_head_dim if model.swa_head_dim else full.v_dim))
    window = replace(full, kind=LayerKind.WINDOW, kv_heads=model.swa_num_kv_heads or full.kv_heads, k_dim=swa_k, v_dim=swa_v)
    yield from (window for _ in range(window_layers))
    yield from (LayerKv(kind=LayerKind.NONE, state=True) for _ in range(model.num_state_layers or 0))
    yield from (LayerKv(kind=LayerKind.NONE) for _ in range(model.num_idle_layers or 0))


def _full_layer(model: ModelSettings) -> LayerKv:
    """The full-attention layer that the model fields describe; they must be set."""
    if model.kv_lora_rank is not None:
        assert model.qk_rope_head_dim is not None
        rope = model.qk_rope_head_dim
        return LayerKv(kind=LayerKind.FULL, kv_heads=1, k_dim=model.kv_lora_rank + rope, latent=True, rope_dim=rope)
    assert model.num_kv_heads is not None
    assert model.head_dim is not None
    return LayerKv(kind=LayerKind.FULL, kv_heads=model.num_kv_heads, k_dim=model.head_dim, v_dim=model.v_head_dim or model.head_dim)


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
