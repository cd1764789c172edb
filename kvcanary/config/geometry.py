"""What one token of KV costs on one rank: layers, heads, sizes, storage type, and the split into SGLang's pools.

Two figures are kept apart because they differ on real models. `RankKv.bytes_per_token` is what the model's attention layers need; the
pools of `RankKv.pools` are what SGLang 0.5.23 allocates per slot, which adds index keys and buffers of layers without attention.
Whatever the model config does not settle stays None and is named in `unknowns` together with what would settle it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import ceil

from kvcanary.config.kv_parts import (
    INDEX_BLOCK,
    INDEX_SCALE_BYTES,
    STORAGE,
    KvPart,
    PartRole,
    RankKv,
    heads_per_rank,
    pipeline_slice,
    stored_bytes,
)
from kvcanary.config.linear_state import StateShape
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError

MAX_LAYERS = 4096
MHA_POOL, MXFP8_POOL = "MHATokenToKVPool", "MHATokenToKVPoolMXFP8"
MLA_POOL, MLA_FP4_POOL, DSA_POOL = "MLATokenToKVPool", "MLATokenToKVPoolFP4", "DSATokenToKVPool"
SWA_POOL, LINEAR_POOL, DSV4_POOL = "SWAKVPool", "HybridLinearKVPool", "DeepSeekV4TokenToKVPool"


class LayerKind(StrEnum):
    """How far back a layer looks. UNSTATED: attention, but the config does not say whether a window applies."""

    FULL = "full"
    WINDOW = "swa"
    CHUNKED = "chunked"
    UNSTATED = "attention"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKv:
    """KV of one layer for the whole model, before tensor parallelism.

    `k_dim` and `v_dim` are elements per head. A `latent` layer (MLA) keeps one row of k_dim elements that every rank holds whole
    and that has no V half. `state` marks a layer that (also) keeps a state per request (linear attention, Mamba). `index_dim` is the
    size of a sparse-attention index key stored beside the KV, 0 for none.
    """

    kind: LayerKind
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    latent: bool = False
    rope_dim: int = 0
    state: bool = False
    index_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Something the input does not settle: the settings field or part, why, and what would settle it."""

    field: str
    text: str
    settle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the model is cut: attention tensor-parallel ranks, pipeline ranks, and which pipeline rank (None: the one with most KV)."""

    attn_tp_size: int = 1
    pp_size: int = 1
    pp_rank: int | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Split:
        """Under DP attention the attention of one rank is cut over tp_size / dp_size ranks only."""
        memory, batch = settings.memory, settings.batch
        for name, size in (("tp_size", memory.tp_size), ("pp_size", memory.pp_size), ("dp_size", batch.dp_size)):
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")
        if not batch.enable_dp_attention:
            return cls(attn_tp_size=memory.tp_size, pp_size=memory.pp_size)
        if memory.tp_size % batch.dp_size:
            raise ConfigError(
                f"tp_size must be a multiple of dp_size under DP attention, got tp_size={memory.tp_size} dp_size={batch.dp_size}"
            )
        return cls(attn_tp_size=memory.tp_size // batch.dp_size, pp_size=memory.pp_size)


@dataclass(frozen=True, kw_only=True)
class KvGeometry:
    """KV layout of a model. `layers` in model order where `ordered`; `kv_dtype` None means not settled.

    `pool_class` is the class SGLang 0.5.23 builds for it, None where the architecture is not stated. `stated_bytes_per_token` is a figure
    the operator gave or a log stated for one rank; it replaces the arithmetic.
    """

    layers: tuple[LayerKv, ...] = ()
    kv_dtype: str | None = None
    window: int | None = None
    pool_class: str | None = None
    ordered: bool = True
    state: StateShape | None = None
    index_pool: int = 1
    max_position_embeddings: int | None = None
    draft_layers: int | None = None
    model: str = ""
    stated_bytes_per_token: int | None = None
    unknowns: tuple[Unknown, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def counts(self) -> dict[str, int]:
        """Layers by what they keep: each kind of attention, 'state' for layers with a per-request state only, 'none'."""
        names = ("state" if layer.state and layer.kind is LayerKind.NONE else layer.kind.value for layer in self.layers)
        return dict(Counter(names))

    @property
    def state_layers(self) -> int:
        """Layers that keep a state per request; the canary does not cover that state."""
        return sum(layer.state for layer in self.layers)

    @property
    def window_pool(self) -> bool | None:
        """Whether SGLang keeps window layers in a pool of their own; None where that depends on what is not stated."""
        kinds = {layer.kind for layer in self.layers}
        if not kinds & {LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.UNSTATED}:
            return False
        if self.pool_class is None or (self.pool_class == SWA_POOL and LayerKind.UNSTATED in kinds):
            return None
        return self.pool_class == SWA_POOL

    @property
    def has_v_half(self) -> bool:
        """Whether there is a V half at all: a latent has none."""
        return not any(layer.latent for layer in self.layers)

    def rank(self, split: Split = Split()) -> RankKv | Unknown:
        """Bytes of one token on one rank, or what keeps them from being known."""
        if self.stated_bytes_per_token is not None:
            return _stated(self.stated_bytes_per_token)
        if blocking := next((unknown for unknown in self.unknowns if unknown.field in BLOCKING), None):
            return blocking
        if not self.layers:
            return Unknown(field="num_layers", text="no layers are stated", settle="config.json of the model, or its number of layers")
        if self.kv_dtype is None:
            return Unknown(field="kv_dtype", text="the KV dtype is not settled", settle="--kv-cache-dtype, or torch_dtype of config.json")
        if split.pp_size > 1 and not self.ordered and len(set(self.layers)) > 1:
            return Unknown(
                field="num_layers",
                text=f"the order of the layer kinds is not stated, so the share of each of {split.pp_size} pipeline ranks is not known",
                settle="config.json of the model",
            )
        ranks = range(split.pp_size) if split.pp_rank is None else (split.pp_rank,)
        best: RankKv | None = None
        for pp_rank in ranks:
            parts = self._parts(pipeline_slice(len(self.layers), split.pp_size, pp_rank), split.attn_tp_size)
            if isinstance(parts, Unknown):
                return parts
            candidate = RankKv(parts=parts)
            if best is None or _allocated(candidate) > _allocated(best):
                best = candidate
        assert best is not None
        return best

    def _parts(self, layer_slice: slice, tp_size: int) -> tuple[KvPart, ...] | Unknown:
        assert self.kv_dtype is not None
        parts: list[KvPart] = []
        attention_layers = [layer for layer in self.layers[layer_slice] if layer.kind is not LayerKind.NONE]
        alike: Counter[LayerKv] = Counter()
        for layer, count in Counter(attention_layers).items():
            alike[replace(layer, index_dim=0, state=False)] += count
        for layer, count in alike.items():
            part = self._kv_part(layer, count, tp_size, PartRole.KV)
            if isinstance(part, Unknown):
                return part
            parts.append(part)
        for size, count in Counter(layer.index_dim for layer in attention_layers if layer.index_dim).items():
            parts.append(self._index_part(size, count))
        idle = sum(layer.kind is LayerKind.NONE and not layer.state for layer in self.layers[layer_slice])
        candidates = [layer for layer in self.layers if layer.kind is not LayerKind.NONE]
        attention = next((layer for layer in candidates if layer.kind is LayerKind.FULL), candidates[0] if candidates else None)
        # SGLang's MHA pool has one buffer pair per decoder layer whether or not it has attention; only hybrid pools skip layers.
        if idle and attention is not None and self.pool_class in (MHA_POOL, MXFP8_POOL):
            part = self._kv_part(attention, idle, tp_size, PartRole.IDLE)
            if isinstance(part, Unknown):
                return part
            parts.append(part)
        return tuple(parts)

    def _kv_part(self, layer: LayerKv, count: int, tp_size: int, role: PartRole) -> KvPart | Unknown:
        storage = STORAGE[self.kv_dtype or ""]
        heads = 1 if layer.latent else heads_per_rank(layer.kv_heads, tp_size)
        if heads is None:
            return Unknown(
                field="tp_size",
                text=f"{layer.kv_heads} KV heads cannot be cut or replicated evenly over {tp_size} tensor-parallel ranks",
                settle=f"a tensor-parallel size that divides {layer.kv_heads} or is a multiple of it",
            )
        if layer.latent and storage.bits == 8 and any(other.index_dim for other in self.layers):
            return Unknown(
                field="kv_dtype",
                text="with fp8 the row of a sparse MLA layer depends on the attention backend (656 B scaled or 576 B raw for 512 + 64)",
                settle="--dsa-decode-backend and --dsa-prefill-backend, or 'KV size' and '#tokens' of a start-up log",
            )
        k_bytes, v_bytes = (stored_bytes(count * heads * dim, storage) for dim in (layer.k_dim, layer.v_dim))
        if k_bytes is None or v_bytes is None:
            return Unknown(
                field="kv_dtype",
                text=f"{heads} x {layer.k_dim} elements are no multiple of the scale block of {storage.block} for {self.kv_dtype}",
                settle="'K size' and '#tokens' of a start-up log",
            )
        first, second = (layer.k_dim - layer.rope_dim, layer.rope_dim) if layer.latent else (layer.k_dim, layer.v_dim)
        dims = f"({first} + {second})" if second else str(first)
        head_text = "" if layer.latent else f"{heads} x "
        in_window = self.pool_class == SWA_POOL and layer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED)
        return KvPart(
            name="idle" if role is PartRole.IDLE else layer.kind.value,
            role=role,
            pool="swa" if in_window else "full",
            layers=count,
            heads=heads,
            k_dim=layer.k_dim,
            v_dim=layer.v_dim,
            k_bytes=k_bytes,
            v_bytes=v_bytes,
            formula=f"{count} x {head_text}{dims} x {storage.text}",
        )

    def _index_part(self, size: int, count: int) -> KvPart:
        # One byte an element and a 4-byte scale per 128 of them, whatever the KV dtype (DSATokenToKVPool).
        row = ceil((size + size // INDEX_BLOCK * INDEX_SCALE_BYTES) / self.index_pool)
        return KvPart(
            name="index",
            role=PartRole.INDEX,
            pool="full",
            layers=count,
            heads=1,
            k_dim=size,
            v_dim=0,
            k_bytes=count * row,
            v_bytes=0,
            formula=f"{count} x {row}",
        )

    def draft(self, layers: int) -> KvGeometry:
        """Geometry of a draft model of `layers` layers with this model's attention.

        SGLang charges EAGLE, MTP and standalone drafts like that, see DefaultPoolConfigurator of release 0.5.23.
        """
        if not 1 <= layers <= MAX_LAYERS:
            raise ConfigError(f"draft_num_layers must be in 1..{MAX_LAYERS}, got {layers}")
        attention = [layer for layer in self.layers if layer.kind is not LayerKind.NONE]
        repeated = tuple(replace(attention[0], state=False) for _ in range(layers)) if attention else ()
        return replace(
            self, layers=repeated, state=None, draft_layers=None, stated_bytes_per_token=None, model=f"{self.model} draft".strip()
        )


BLOCKING = ("num_layers", "num_kv_heads", "head_dim", "kv_layout")


def resolve_kv_dtype(kv_dtype: str, model_dtype: str | None) -> str | None:
    """The storage type behind --kv-cache-dtype: auto is the model's own type; None where that is not stated."""
    resolved = model_dtype if kv_dtype == "auto" else kv_dtype
    return resolved if resolved in STORAGE else None


def _allocated(rank: RankKv) -> int:
    return rank.pool_bytes("full") + rank.pool_bytes("swa")


def _stated(size: int) -> RankKv:
    part = KvPart(
        name="stated", role=PartRole.KV, pool="full", layers=0, heads=0, k_dim=0, v_dim=0, k_bytes=size, v_bytes=0, formula=str(size)
    )
    return RankKv(parts=(part,))
