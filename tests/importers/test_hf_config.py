from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.geometry import Split
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.settings import Settings
from kvcanary.config.stated_geometry import geometry_from_settings
from kvcanary.errors import ImportTextError
from kvcanary.importers.hf_config import ModelReading, is_hf_config, parse_hf_config, read_hf_config, weight_bytes_from_index

PLAIN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 14,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "_name_or_path": "acme/plover-2b",
}
MLA = {**PLAIN, "architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": 320, "qk_rope_head_dim": 32, "v_head_dim": 64}


def values(reading: ModelReading) -> dict[str, int | str]:
    return {name: field.value for name, field in reading.fields.items()}


def test_fields_of_a_plain_model() -> None:
    reading = read_hf_config(PLAIN)
    assert values(reading) == {
        "model": "acme/plover-2b",
        "pool_class": "MHATokenToKVPool",
        "model_dtype": "bfloat16",
        "num_layers": 14,
        "num_kv_heads": 4,
        "head_dim": 64,
    }
    assert all(field.source for field in reading.fields.values())
    assert reading.unknowns == ()


def test_latent_fields_keep_both_parts() -> None:
    found = values(read_hf_config(MLA))
    assert (found["kv_lora_rank"], found["qk_rope_head_dim"], found["pool_class"]) == (320, 32, "MLATokenToKVPool")
    assert "num_kv_heads" not in found


def test_asked_dtype_is_a_field() -> None:
    found = values(read_hf_config(PLAIN, kv_dtype="fp8_e4m3"))
    assert found["kv_dtype"] == "fp8_e4m3"
    assert "model_dtype" not in found


def test_heads_that_differ_by_layer_become_bytes_per_token() -> None:
    mixed = {**PLAIN, "num_hidden_layers": 3, "num_key_value_heads": [4, 2, 4]}
    assert values(read_hf_config(mixed, tp_size=2))["kv_bytes_per_token"] == (2 + 1 + 2) * 128 * 2
    assert "2 tensor-parallel ranks" in read_hf_config(mixed, tp_size=2).fields["kv_bytes_per_token"].source


def test_open_points_are_handed_on() -> None:
    reading = read_hf_config({key: value for key, value in PLAIN.items() if key not in ("torch_dtype", "num_hidden_layers")})
    assert {unknown.field for unknown in reading.unknowns} == {"kv_dtype", "num_layers"}
    assert "num_layers" not in values(reading)


def test_prediction_layers_are_a_note_and_no_field() -> None:
    reading = read_hf_config({**PLAIN, "num_nextn_predict_layers": 2})
    assert "draft_num_layers" not in values(reading)
    assert "draft_num_layers is 2" in reading.notes[0]


def test_state_that_cannot_be_cut_is_open() -> None:
    gdn = {
        "full_attention_interval": 7, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    whole = read_hf_config({**PLAIN, **gdn})
    assert whole.fields["num_state_layers"].value == 12
    assert whole.fields["state_bytes_per_request"].value == 12 * ((96 + 64) * 3 * 2 + 6 * 256 * 4)
    cut = read_hf_config({**PLAIN, **gdn}, tp_size=4)
    assert "state_bytes_per_request" not in values(cut)
    assert [unknown.field for unknown in cut.unknowns] == ["state_bytes_per_request"]


def test_index_of_weights() -> None:
    field = weight_bytes_from_index({"metadata": {"total_size": 1_000_001}, "weight_map": {}}, tp_size=2, pp_size=2)
    assert (field.value, field.source) == (250_001, "metadata.total_size 1000001 / 4 ranks")
    wrong: list[dict[str, Any]] = [
        {},
        {"metadata": {}},
        {"metadata": {"total_size": "many"}},
        {"metadata": {"total_size": 0}},
        {"metadata": 3},
    ]
    for bad in wrong:
        with pytest.raises(ImportTextError, match="total_size"):
            weight_bytes_from_index(bad)
    with pytest.raises(ImportTextError, match="ranks"):
        weight_bytes_from_index({"metadata": {"total_size": 8}}, tp_size=0)


def test_recognition() -> None:
    assert is_hf_config(PLAIN)
    assert is_hf_config({"text_config": {}, "architectures": []})
    assert not is_hf_config({"architectures": ["x"]})
    assert not is_hf_config({"status": "ready", "max_total_num_tokens": 5})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"num_hidden_layers": 4', "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "not JSON"),
        ("[1]", "must be an object, got list"),
        ('{"num_hidden_layers": -3}', "num_hidden_layers must be a whole number"),
        ('{"num_hidden_layers": 1e99}', "num_hidden_layers must be a whole number"),
    ],
)
def test_bad_text_is_one_clear_sentence(text: str, message: str) -> None:
    with pytest.raises(ImportTextError, match=message):
        parse_hf_config(text)


configs = st.fixed_dictionaries(
    {"num_key_value_heads": st.sampled_from([1, 2, 4, 12])},
    optional={
        "head_dim": st.sampled_from([32, 64, 128]),
        "v_head_dim": st.sampled_from([0, 32, 96]),
        "sliding_window": st.sampled_from([None, 128]),
        "use_sliding_window": st.booleans(),
        "max_window_layers": st.integers(0, 14),
        "architectures": st.sampled_from([["Qwen2ForCausalLM"], ["GptOssForCausalLM"], ["MiMoV2FlashForCausalLM"]]),
        "layer_types": st.lists(
            st.sampled_from(["full_attention", "sliding_attention", "linear_attention", "mlp"]), min_size=14, max_size=14
        ),
        "swa_num_key_value_heads": st.sampled_from([1, 6]),
        "swa_head_dim": st.sampled_from([16, 64]),
        "swa_v_head_dim": st.sampled_from([32, 64]),
        "kv_lora_rank": st.sampled_from([None, 128]),
        "qk_rope_head_dim": st.just(32),
        "index_head_dim": st.sampled_from([None, 128]),
        "num_kv_shared_layers": st.integers(0, 5),
    },
)


@settings(deadline=None, max_examples=300)
@given(configs, st.sampled_from([1, 2, 4]), st.sampled_from(["auto", "fp8_e5m2", "mxfp8"]))
def test_the_settings_lead_to_the_bytes_of_the_file(extra: dict[str, Any], tp_size: int, kv_dtype: str) -> None:
    reading = read_hf_config({**PLAIN, **extra}, kv_dtype=kv_dtype, tp_size=tp_size)
    exact = reading.geometry.rank(Split(attn_tp_size=tp_size))
    if not isinstance(exact, RankKv):
        return
    # A model without any KV has no plan to compare; the settings refuse a token of 0 bytes.
    if exact.bytes_per_token == 0 or any(unknown.field == "kv_bytes_per_token" for unknown in reading.unknowns):
        return
    through = geometry_from_settings(Settings().replace(**values(reading), tp_size=tp_size)).rank(Split(attn_tp_size=tp_size))
    assert isinstance(through, RankKv)
    assert through.bytes_per_token == exact.bytes_per_token or "kv_bytes_per_token" in reading.fields
    if reading.geometry.window_pool is not None:
        assert [through.pool_bytes(pool) for pool in ("full", "swa")] == [exact.pool_bytes(pool) for pool in ("full", "swa")]


@settings(deadline=None, max_examples=2000)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_random_text_raises_nothing_else(text: str) -> None:
    try:
        reading = parse_hf_config(text)
    except ImportTextError:
        return
    json.dumps({name: field.value for name, field in reading.fields.items()})
