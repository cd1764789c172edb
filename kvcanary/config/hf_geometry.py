"""KV geometry from a Hugging Face config.json: which layers keep KV, how wide, and in which SGLang pool.

The rules are those of SGLang 0.5.23 (configs/model_config.py) where it has one, else of the model's own config class. A key that is
missing is never replaced by a guess: the part stays unknown and says what would settle it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcanary.config.geometry import (
    DSA_POOL,
    DSV4_POOL,
    LINEAR_POOL,
    MAX_LAYERS,
    MHA_POOL,
    MLA_POOL,
    MXFP8_POOL,
    SWA_POOL,
    KvGeometry,
    LayerKind,
    LayerKv,
    Unknown,
    resolve_kv_dtype,
)
from kvcanary.config.hf_layers import LayerPlan, layer_plan
from kvcanary.config.hf_reader import ConfigReader
from kvcanary.config.hf_state import state_shape

# Architectures whose window layers get a pool of their own; every other one keeps all tokens in all layers.
WINDOW_POOL_ARCHITECTURES = frozenset(
    {
        "BeamForCausalLM", "Llama4ForConditionalGeneration", "GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM",
        "IQuestQ1ForCausalLM", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration",
        "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "EmbeddingGemma2Model", "Gemma4UnifiedForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion", "LagunaForCausalLM", "MellumForCausalLM", "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration", "InklingForConditionalGeneration", "UnlimitedOCRForCausalLM",
    }
)  # fmt: skip
SPARSE_MLA_ARCHITECTURES = frozenset(
    {
        "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM", "Glm5NextForConditionalGeneration", "LongcatFlashForCausalLM",
    }
)  # fmt: skip
LOG_SETTLES = "'K size', 'V size' and '#tokens' of a start-up log"


@dataclass(frozen=True, slots=True)
class _Dims:
    kv_heads: int
    k_dim: int
    v_dim: int


def geometry_from_hf_config(config: Mapping[str, Any], kv_dtype: str = "auto") -> KvGeometry:
    """Read a parsed config.json; nested text configs of multimodal models are found.

    `kv_dtype` is the value of --kv-cache-dtype. Raises ConfigError for a key of the wrong type or out of range; what is merely missing
    or beyond these rules is listed in `.unknowns`.
    """
    reader = ConfigReader(config)
    unknowns: list[Unknown] = []
    notes: list[str] = []
    num_layers = reader.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", limit=MAX_LAYERS)
    dtype = _kv_dtype(reader, kv_dtype, unknowns)
    if num_layers is None:
        unknowns.append(
            Unknown(
                field="num_layers", text="num_hidden_layers is not in the file", settle=f"the text model's config.json, or {LOG_SETTLES}"
            )
        )
        return KvGeometry(kv_dtype=dtype, model=reader.name, unknowns=tuple(unknowns))
    plan = layer_plan(reader, num_layers)
    if plan.note:
        notes.append(plan.note)
    if nextn := reader.count("num_nextn_predict_layers", zero=True):
        notes.append(f"The file has {nextn} layers for multi-token prediction; if they are the draft, draft_num_layers is {nextn}.")
    unknowns += plan.unknowns
    unknowns += _unsupported(reader)
    layers = _layers(reader, plan, unknowns, notes)
    return KvGeometry(
        layers=layers,
        kv_dtype=dtype,
        window=plan.window,
        pool_class=_pool_class(reader, layers, dtype, unknowns),
        state=state_shape(reader, sum(layer.state for layer in layers), unknowns),
        index_pool=reader.count("index_kpool") or 1,
        max_position_embeddings=reader.count("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
        model=reader.name,
        unknowns=tuple(unknowns),
        notes=tuple(notes),
    )


def _kv_dtype(reader: ConfigReader, kv_dtype: str, unknowns: list[Unknown]) -> str | None:
    quantization = reader.mapping("quantization_config") or {}
    algorithm = quantization.get("kv_cache_quant_algo")
    if kv_dtype == "auto" and isinstance(algorithm, str) and algorithm.upper() == "FP8":
        return "fp8_e4m3"
    model_dtype = reader.text("torch_dtype", "dtype")
    resolved = resolve_kv_dtype(kv_dtype, model_dtype.removeprefix("torch.") if model_dtype else None)
    if resolved is None:
        unknowns.append(
            Unknown(
                field="kv_dtype",
                text="torch_dtype is not in the file, so a KV dtype of auto is not settled",
                settle="--kv-cache-dtype, or the dtype of the 'KV Cache is allocated' line",
            )
        )
    return resolved


def _layers(reader: ConfigReader, plan: LayerPlan, unknowns: list[Unknown], notes: list[str]) -> tuple[LayerKv, ...]:
    if not any(kind is not LayerKind.NONE for kind in plan.kinds):
        return tuple(LayerKv(kind=LayerKind.NONE, state=state) for state in plan.states)
    rank = reader.count("kv_lora_rank")
    if rank is not None and reader.flag("use_mla") is not False:
        rope = reader.count("qk_rope_head_dim")
        if rope is None:
            unknowns.append(Unknown(field="head_dim", text="kv_lora_rank without qk_rope_head_dim", settle=LOG_SETTLES))
            return ()
        index = _index_layers(reader, plan)
        return tuple(
            LayerKv(kind=kind, state=state)
            if kind is LayerKind.NONE
            else LayerKv(kind=kind, kv_heads=1, k_dim=rank + rope, latent=True, rope_dim=rope, state=state, index_dim=index.get(i, 0))
            for i, (kind, state) in enumerate(zip(plan.kinds, plan.states, strict=True))
        )
    full = _full_dims(reader, plan, unknowns, notes)
    if full is None:
        return ()
    window = _window_dims(reader, full)
    return tuple(_layer(plan, i, full, window) for i in range(len(plan.kinds)))


def _layer(plan: LayerPlan, i: int, full: _Dims, window: _Dims) -> LayerKv:
    kind = plan.kinds[i]
    if kind is LayerKind.NONE:
        return LayerKv(kind=kind, state=plan.states[i])
    dims = window if kind is LayerKind.WINDOW else full
    heads = plan.kv_heads[i] if plan.kv_heads else dims.kv_heads
    return LayerKv(kind=kind, kv_heads=heads, k_dim=dims.k_dim, v_dim=dims.v_dim, state=plan.states[i])


def _full_dims(reader: ConfigReader, plan: LayerPlan, unknowns: list[Unknown], notes: list[str]) -> _Dims | None:
    heads = _kv_heads(reader, notes) if plan.kv_heads is None else max(plan.kv_heads)
    # Gemma 4 keeps wider heads in its full layers; SGLang reads the plain names as those of the window layers there.
    if reader.count("num_global_key_value_heads") is not None:
        heads = reader.count("num_global_key_value_heads")
    k_dim = reader.count("global_head_dim") or _head_dim(reader)
    if heads is None:
        unknowns.append(
            Unknown(field="num_kv_heads", text="neither num_key_value_heads nor num_attention_heads is in the file", settle=LOG_SETTLES)
        )
    if k_dim is None:
        unknowns.append(
            Unknown(
                field="head_dim",
                text="head_dim is not in the file and hidden_size / num_attention_heads is no whole number",
                settle=LOG_SETTLES,
            )
        )
    if heads is None or k_dim is None:
        return None
    return _Dims(heads, k_dim, reader.count("v_head_dim", zero=True) or k_dim)


def _window_dims(reader: ConfigReader, full: _Dims) -> _Dims:
    other = ConfigReader(reader.mapping("attention_other_setting") or {})
    wide_full = reader.count("global_head_dim") is not None
    heads = reader.count("swa_num_key_value_heads") or other.count("num_attention_groups")
    if heads is None:
        heads = _kv_heads(reader, []) if wide_full else full.kv_heads
    k_dim = reader.count("swa_head_dim") or other.count("head_dim")
    if k_dim is None and wide_full:
        k_dim = _head_dim(reader)
    assert heads is not None
    v_dim = reader.count("swa_v_head_dim") or k_dim or full.v_dim
    return _Dims(heads, k_dim or full.k_dim, v_dim)


def _head_dim(reader: ConfigReader) -> int | None:
    stated = reader.count("head_dim", "attention_head_dim", "kv_channels")
    if stated is not None:
        return stated
    hidden, heads = reader.count("hidden_size", "n_embd", "d_model"), reader.count("num_attention_heads", "n_head", "n_heads")
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _kv_heads(reader: ConfigReader, notes: list[str]) -> int | None:
    attention = ConfigReader(reader.mapping("attn_config") or {})
    # Falcon's first layout shares one K/V head and says so with a flag instead of a count.
    shared = reader.flag("multi_query") and not reader.flag("new_decoder_architecture")
    if shared and reader.count("multi_query_group_num") is None:
        return 1
    heads = reader.count("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
    heads = heads or attention.count("kv_n_heads")
    if heads is not None:
        return heads
    heads = reader.count("num_attention_heads", "n_head", "n_heads")
    if heads is not None:
        notes.append("No count of KV heads in the file: one per attention head, as SGLang takes it.")
    return heads


def _index_layers(reader: ConfigReader, plan: LayerPlan) -> dict[int, int]:
    """Layers that keep an index key of their own, and its size; SGLang's dsa_layer_skips_topk."""
    size = reader.count("index_head_dim")
    if size is None:
        return {}
    attention = [i for i, kind in enumerate(plan.kinds) if kind is not LayerKind.NONE]
    own = [i for i in attention if not _shares_index(reader, i)]
    # A summary that only counts the layers with an index says nothing about which; only the number enters the bytes.
    count = reader.count("indexer_full_layers")
    return dict.fromkeys(own if count is None else attention[:count], size)


def _shares_index(reader: ConfigReader, layer: int) -> bool:
    types: Sequence[Any] | None = reader.sequence("indexer_types")
    if types is not None:
        return layer < len(types) and types[layer] == "shared"
    factor = reader.count("cli_factor") or 1
    if factor > 1:
        return layer % factor != 0
    pattern = reader.raw("index_topk_pattern")
    if isinstance(pattern, str | list):
        return layer < len(pattern) and pattern[layer] == "S"
    every = reader.count("index_topk_freq") or 1
    offset = reader.count("index_skip_topk_offset") or 2
    return max(layer - offset + 1, 0) % every != 0


def _unsupported(reader: ConfigReader) -> list[Unknown]:
    found: list[Unknown] = []
    if reader.sequence("compress_ratios") is not None:
        found.append(
            Unknown(
                field="kv_layout",
                text="compressed attention (compress_ratios): bytes per token depend on the backend and the window pool",
                settle="'bytes_per_full_token' of the 'DSV4 memory calculation' line of a start-up log",
            )
        )
    if reader.flag("is_encoder_decoder"):
        found.append(
            Unknown(field="kv_layout", text="an encoder-decoder model keeps cross-attention KV beside the decoder's", settle=LOG_SETTLES)
        )
    if reader.sequence("cross_attention_layers") is not None:
        found.append(
            Unknown(field="kv_layout", text="cross_attention_layers keep the KV of an image and not of tokens", settle=LOG_SETTLES)
        )
    if reader.mapping("sparse_attention_config") is not None:
        found.append(
            Unknown(
                field="kv_layout",
                text="sparse_attention_config adds an index pool beside the KV",
                settle="'KV pool sizing: ... cell_size=' of a start-up log",
            )
        )
    return found


def _pool_class(reader: ConfigReader, layers: tuple[LayerKv, ...], dtype: str | None, unknowns: list[Unknown]) -> str | None:
    architecture = reader.architecture
    if reader.sequence("compress_ratios") is not None:
        return DSV4_POOL
    windowed = any(layer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.UNSTATED) for layer in layers)
    if windowed and (architecture in WINDOW_POOL_ARCHITECTURES or reader.flag("is_hybrid_swa")):
        return SWA_POOL
    if windowed and architecture is None:
        unknowns.append(
            Unknown(
                field="pool_class",
                text="without architectures it is open whether SGLang gives the window layers a pool of their own",
                settle="architectures of config.json, or the 'Use sliding window memory pool' line of a start-up log",
            )
        )
        return None
    if any(layer.state for layer in layers):
        return LINEAR_POOL
    if any(layer.latent for layer in layers):
        sparse = any(layer.index_dim for layer in layers) and (architecture is None or architecture in SPARSE_MLA_ARCHITECTURES)
        return DSA_POOL if sparse else MLA_POOL
    return MXFP8_POOL if dtype == "mxfp8" else MHA_POOL
