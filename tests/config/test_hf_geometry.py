from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.geometry import LayerKind, Split, Unknown
from kvcanary.config.hf_geometry import geometry_from_hf_config
from kvcanary.config.kv_parts import RankKv
from kvcanary.errors import ConfigError

PLAIN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 10,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 3,
}


def per_token(config: dict[str, Any], tp_size: int = 1, kv_dtype: str = "auto") -> int:
    rank = geometry_from_hf_config(config, kv_dtype).rank(Split(attn_tp_size=tp_size))
    assert isinstance(rank, RankKv), rank
    return rank.bytes_per_token


def counts(config: dict[str, Any]) -> dict[str, int]:
    return geometry_from_hf_config(config).counts


def test_head_size_is_derived_or_explicit() -> None:
    assert per_token(PLAIN) == 10 * 3 * 2 * (1536 // 12) * 2
    assert per_token({**PLAIN, "head_dim": 80}) == 10 * 3 * 2 * 80 * 2
    assert per_token({**PLAIN, "head_dim": 80, "v_head_dim": 48}) == 10 * 3 * (80 + 48) * 2


def test_v_head_dim_zero_means_as_k() -> None:
    assert per_token({**PLAIN, "v_head_dim": 0}) == per_token(PLAIN)


def test_one_kv_head_per_attention_head_without_a_count() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"}
    assert per_token(config) == 10 * 12 * 2 * 128 * 2
    assert "one per attention head" in geometry_from_hf_config(config).notes[0]


@pytest.mark.parametrize(
    ("extra", "heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 4}, 4),
        ({"multi_query_group_num": 2, "kv_channels": 128}, 2),
        ({"attn_config": {"kv_n_heads": 6}}, 6),
    ],
)
def test_old_names_of_kv_heads(extra: dict[str, Any], heads: int) -> None:
    config = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"} | extra
    assert per_token(config) == 10 * heads * 2 * 128 * 2


def test_gpt2_names() -> None:
    assert per_token({"torch_dtype": "float32", "n_layer": 4, "n_embd": 320, "n_head": 5}) == 4 * 5 * 2 * 64 * 4


def test_tensor_parallel_replication() -> None:
    assert [per_token({**PLAIN, "num_key_value_heads": 4}, tp) for tp in (1, 2, 4, 8)] == [20480, 10240, 5120, 5120]


MLA = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "dtype": "bfloat16",
    "num_hidden_layers": 7,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "hidden_size": 2048,
    "kv_lora_rank": 384,
    "qk_rope_head_dim": 48,
    "v_head_dim": 128,
}


def test_latent_attention() -> None:
    geometry = geometry_from_hf_config(MLA)
    assert [per_token(MLA, tp) for tp in (1, 4, 16)] == [7 * 432 * 2] * 3
    assert geometry.pool_class == "MLATokenToKVPool"
    assert not geometry.has_v_half
    assert per_token(MLA, kv_dtype="fp8_e4m3") == 7 * 432
    assert per_token({**MLA, "architectures": ["DeepseekVLV2ForCausalLM"], "use_mla": False, "head_dim": 128, "v_head_dim": None}) == 57344


def test_sparse_latent_attention_keeps_index_keys_apart() -> None:
    sparse = {**MLA, "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128}
    geometry = geometry_from_hf_config(sparse)
    rank = geometry.rank()
    assert isinstance(rank, RankKv)
    assert geometry.pool_class == "DSATokenToKVPool"
    assert rank.bytes_per_token == 7 * 432 * 2
    assert rank.pool_bytes("full") == 7 * 432 * 2 + 7 * 132
    fp8 = geometry_from_hf_config(sparse, "fp8_e4m3").rank()
    assert isinstance(fp8, Unknown)
    assert fp8.field == "kv_dtype"


@pytest.mark.parametrize(
    ("extra", "own"),
    [
        ({"indexer_types": ["full", "shared", "shared", "full", "shared", "shared", "full"]}, 3),
        ({"cli_factor": 3}, 3),
        ({"index_topk_pattern": "FSSFSSF"}, 3),
        ({"index_topk_freq": 2}, 4),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, 3),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 4),
        ({"indexer_full_layers": 5}, 5),
        ({}, 7),
    ],
)
def test_layers_that_share_an_index(extra: dict[str, Any], own: int) -> None:
    rank = geometry_from_hf_config({**MLA, "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128, **extra}).rank()
    assert isinstance(rank, RankKv)
    assert rank.pool_bytes("full") - rank.bytes_per_token == own * 132


def window(**extra: Any) -> dict[str, Any]:
    return {**PLAIN, "sliding_window": 256, **extra}


def test_window_switched_off_beats_its_number() -> None:
    geometry = geometry_from_hf_config(window(use_sliding_window=False, max_window_layers=4))
    assert (geometry.counts, geometry.window) == ({"full": 10}, None)


def test_upper_layers_use_the_window() -> None:
    geometry = geometry_from_hf_config(window(use_sliding_window=True, max_window_layers=4))
    assert geometry.counts == {"full": 4, "swa": 6}
    assert geometry.layers[3].kind is LayerKind.FULL
    assert geometry.window == 256
    # Its architecture has no window pool in SGLang: all tokens stay in all layers.
    assert geometry.pool_class == "MHATokenToKVPool"
    assert geometry.window_pool is False


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"sliding_window_pattern": 5}, {"swa": 8, "full": 2}),
        ({"model_type": "gemma3_text"}, {"swa": 9, "full": 1}),
        ({"model_type": "gpt_oss"}, {"swa": 5, "full": 5}),
        ({"model_type": "mistral"}, {"swa": 10}),
        ({"layer_types": ["full_attention"] + ["sliding_attention"] * 9}, {"full": 1, "swa": 9}),
        ({"hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]}, {"full": 3, "swa": 7}),
    ],
)
def test_window_patterns(extra: dict[str, Any], expected: dict[str, int]) -> None:
    assert counts(window(**extra)) == expected


def test_window_without_a_pattern_is_open_but_bytes_are_known() -> None:
    config = window()
    del config["architectures"]
    geometry = geometry_from_hf_config(config)
    assert geometry.counts == {"attention": 10}
    assert [item.field for item in geometry.unknowns] == ["swa_num_layers", "pool_class"]
    assert geometry.window_pool is None
    assert per_token(config) == per_token(PLAIN)


def test_window_layers_with_their_own_heads_and_pool() -> None:
    config = window(
        architectures=["MiMoV2FlashForCausalLM"],
        head_dim=96,
        v_head_dim=64,
        swa_num_key_value_heads=6,
        swa_head_dim=48,
        hybrid_layer_pattern=[0, 1] * 5,
    )
    geometry = geometry_from_hf_config(config)
    rank = geometry.rank()
    assert isinstance(rank, RankKv)
    assert geometry.pool_class == "SWAKVPool"
    assert rank.pool_bytes("full") == 5 * 3 * (96 + 64) * 2
    # Without swa_v_head_dim V is as wide as K in the window layers.
    assert rank.pool_bytes("swa") == 5 * 6 * (48 + 48) * 2


def test_wide_full_layers() -> None:
    config = window(
        architectures=["Gemma4ForCausalLM"], head_dim=64, global_head_dim=128, num_global_key_value_heads=2,
        layer_types=["sliding_attention"] * 8 + ["full_attention"] * 2,
    )  # fmt: skip
    rank = geometry_from_hf_config(config).rank()
    assert isinstance(rank, RankKv)
    assert (rank.pool_bytes("full"), rank.pool_bytes("swa")) == (2 * 2 * 256 * 2, 8 * 3 * 128 * 2)


def test_text_section_of_a_multimodal_model_wins() -> None:
    inner = {key: value for key, value in PLAIN.items() if key != "architectures"}
    outer = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "hidden_size": 99,
        "text_config": inner,
        "vision_config": {"num_hidden_layers": 50},
    }
    assert per_token(outer) == per_token(PLAIN)
    assert per_token({"architectures": ["X"], "thinker_config": {"text_config": inner}}) == per_token(PLAIN)


def test_chunked_attention_of_llama4() -> None:
    config = {**PLAIN, "architectures": ["Llama4ForConditionalGeneration"], "attention_chunk_size": 512}
    geometry = geometry_from_hf_config(config)
    assert geometry.counts == {"chunked": 8, "full": 2}
    assert geometry.pool_class == "SWAKVPool"
    assert per_token(config) == per_token(PLAIN)


GDN = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


def test_linear_layers_by_interval_and_their_state() -> None:
    geometry = geometry_from_hf_config({**PLAIN, "full_attention_interval": 3, **GDN})
    assert geometry.counts == {"state": 7, "full": 3}
    assert [i for i, layer in enumerate(geometry.layers) if layer.kind is LayerKind.FULL] == [2, 5, 8]
    assert geometry.pool_class == "HybridLinearKVPool"
    assert geometry.state is not None
    conv = (8 * 64 + 2 * 4 * 32) * 3 * 2
    assert geometry.state.bytes_per_request() == 7 * (conv + 8 * 64 * 32 * 4)
    assert geometry.state.bytes_per_request(4) == 7 * (conv // 4 + 2 * 64 * 32 * 4)
    with pytest.raises(ConfigError, match="state heads"):
        geometry.state.bytes_per_request(3)


def test_mamba_letters() -> None:
    config = {**PLAIN, "num_hidden_layers": 8, "hybrid_override_pattern": "MEM*-EM*"}
    geometry = geometry_from_hf_config(config)
    assert geometry.counts == {"state": 3, "none": 3, "full": 2}
    assert [item.field for item in geometry.unknowns] == ["state_bytes_per_request"]
    # A hybrid pool has buffers for its attention layers alone.
    rank = geometry.rank()
    assert isinstance(rank, RankKv)
    assert rank.pool_bytes("full") == rank.bytes_per_token == 2 * 3 * 256 * 2


def test_mamba2_state_replicates_groups_that_do_not_divide() -> None:
    mamba = {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 64,
        "n_groups": 1,
        "conv_kernel": 4,
        "mamba_ssm_dtype": "bfloat16",
    }
    geometry = geometry_from_hf_config({**PLAIN, "layers_block_type": ["mamba"] * 9 + ["attention"], **mamba})
    assert geometry.state is not None
    assert geometry.state.bytes_per_request(1) == 9 * ((128 + 2 * 64) * 3 * 2 + 8 * 16 * 64 * 2)
    assert geometry.state.bytes_per_request(4) == 9 * ((128 + 2 * 4 * 64) // 4 * 3 * 2 + 2 * 16 * 64 * 2)


def test_list_of_full_layers_counts_from_one() -> None:
    kda = {"full_attn_layers": [4, 8, 10], "num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}
    geometry = geometry_from_hf_config({**PLAIN, "linear_attn_config": kda})
    assert [i for i, layer in enumerate(geometry.layers) if layer.kind is LayerKind.FULL] == [3, 7, 9]
    assert geometry.state is not None
    assert geometry.state.bytes_per_request() == 7 * (3 * 4 * 32 * 3 * 2 + 4 * 32 * 32 * 4)


def test_attention_period_and_offset() -> None:
    geometry = geometry_from_hf_config({**PLAIN, "attn_layer_period": 4, "attn_layer_offset": 2})
    assert [i for i, layer in enumerate(geometry.layers) if layer.kind is LayerKind.FULL] == [2, 6]


def test_blocks_without_attention() -> None:
    blocks = [{"attention": {"no_op": True}}, {"attention": {"n_heads_in_group": 4}}, {"attention": {"replace_with_linear": True}}]
    config = {**PLAIN, "num_hidden_layers": 3, "num_key_value_heads": None, "block_configs": blocks}
    geometry = geometry_from_hf_config(config)
    assert geometry.counts == {"none": 2, "full": 1}
    assert per_token(config) == 3 * 256 * 2
    rank = geometry.rank()
    assert isinstance(rank, RankKv)
    assert rank.pool_bytes("full") == 3 * 3 * 256 * 2


def test_layers_that_read_the_kv_of_others() -> None:
    geometry = geometry_from_hf_config({**PLAIN, "num_kv_shared_layers": 4})
    assert geometry.counts == {"full": 6, "none": 4}


def test_kv_dtype_of_a_quantized_checkpoint() -> None:
    assert per_token({**PLAIN, "quantization_config": {"kv_cache_quant_algo": "FP8"}}) * 2 == per_token(PLAIN)
    assert per_token({**PLAIN, "quantization_config": {"kv_cache_quant_algo": "FP8"}}, kv_dtype="bfloat16") == per_token(PLAIN)


def test_missing_dtype_is_unknown() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "torch_dtype"}
    geometry = geometry_from_hf_config(config)
    assert [item.field for item in geometry.unknowns] == ["kv_dtype"]
    assert isinstance(geometry.rank(), Unknown)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "num_layers"),
        ({"num_hidden_layers": 4, "hidden_size": 64}, "num_kv_heads"),
        ({"num_hidden_layers": 4, "num_attention_heads": 3, "hidden_size": 64}, "head_dim"),
        ({**PLAIN, "compress_ratios": [0, 4, 128]}, "kv_layout"),
        ({**PLAIN, "is_encoder_decoder": True}, "kv_layout"),
        ({**PLAIN, "layer_types": ["full_attention"] * 9 + ["holographic"]}, "num_layers"),
    ],
)
def test_what_the_file_does_not_settle_is_named(config: dict[str, Any], field: str) -> None:
    geometry = geometry_from_hf_config({"torch_dtype": "bfloat16", **config})
    rank = geometry.rank()
    assert isinstance(rank, Unknown)
    assert rank.field == field
    assert rank.settle


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers must be a whole number in 1..4096"),
        ({"num_hidden_layers": "ten"}, "num_hidden_layers must be a whole number"),
        ({"num_key_value_heads": True}, "num_key_value_heads must be a whole number"),
        ({"num_key_value_heads": -1}, "num_key_value_heads must be a whole number"),
        ({"layer_types": ["full_attention"]}, "layer_types must have an entry for each of 10 layers, got 1"),
        ({"layer_types": "full"}, "layer_types must be a list"),
        ({"hybrid_layer_pattern": [0, 1, 2] * 4}, "hybrid_layer_pattern must hold 0 and 1"),
        ({"hybrid_override_pattern": "MMMMMMMMM?"}, r"hybrid_override_pattern may hold .* got '\?'"),
        ({"linear_attn_config": {"full_attn_layers": [0]}}, r"layer numbers 1..10"),
        ({"block_configs": [{}] * 10}, "block_configs must have an object 'attention'"),
        ({"use_sliding_window": "no", "sliding_window": 4}, "use_sliding_window must be true or false"),
        ({"torch_dtype": 16}, "torch_dtype must be text"),
        ({"num_kv_shared_layers": 11}, "num_kv_shared_layers must be at most 10"),
    ],
)
def test_wrong_values_name_the_key(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        geometry_from_hf_config({**PLAIN, **extra})


KEYS = [
    *PLAIN, "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "sliding_window", "use_sliding_window", "max_window_layers",
    "layer_types", "hybrid_layer_pattern", "hybrid_override_pattern", "block_configs", "linear_attn_config", "full_attention_interval",
    "text_config", "quantization_config", "compress_ratios", "index_head_dim", "num_nextn_predict_layers", "index_topk_pattern",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=10))
def test_any_mapping_gives_a_geometry_or_a_clear_error(config: dict[str, Any]) -> None:
    try:
        geometry = geometry_from_hf_config({**PLAIN, **config})
    except ConfigError as error:
        message = str(error)
        geometry = None
    if geometry is None:
        assert message.startswith("config.json: ")
        return
    rank = geometry.rank()
    assert isinstance(rank, RankKv) or rank.settle
    json.dumps([item.text for item in geometry.unknowns])
