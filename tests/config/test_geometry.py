from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.geometry import (
    DSA_POOL,
    MHA_POOL,
    MLA_POOL,
    SWA_POOL,
    KvGeometry,
    LayerKind,
    LayerKv,
    Split,
    Unknown,
    resolve_kv_dtype,
)
from kvcanary.config.kv_parts import STORAGE, PartRole, RankKv, heads_per_rank, pipeline_slice
from kvcanary.config.settings import Settings
from kvcanary.config.stated_geometry import geometry_from_settings
from kvcanary.errors import ConfigError

GQA = LayerKv(kind=LayerKind.FULL, kv_heads=6, k_dim=96, v_dim=96)
WINDOW = LayerKv(kind=LayerKind.WINDOW, kv_heads=12, k_dim=160, v_dim=128)
LATENT = LayerKv(kind=LayerKind.FULL, kv_heads=1, k_dim=448, latent=True)
NO_ATTENTION = LayerKv(kind=LayerKind.NONE)
STATE = LayerKv(kind=LayerKind.NONE, state=True)


def known(geometry: KvGeometry, **split: int) -> RankKv:
    rank = geometry.rank(Split(**split))
    assert isinstance(rank, RankKv), rank
    return rank


def unknown(geometry: KvGeometry, **split: int) -> Unknown:
    rank = geometry.rank(Split(**split))
    assert isinstance(rank, Unknown), rank
    return rank


def evaluate(formula: str) -> Fraction:
    """The printed arithmetic, read as a calculator would; only digits, + x / and brackets may occur."""
    assert set(formula) <= set("0123456789+x/() "), formula
    tokens = formula.replace("(", " ( ").replace(")", " ) ").split()
    exact = [f"Fraction('{token}')" if token[0].isdigit() else token.replace("x", "*") for token in tokens]
    value: Fraction = eval("".join(exact), {"Fraction": Fraction})
    return value


def test_grouped_query_bytes() -> None:
    rank = known(KvGeometry(layers=(GQA,) * 22, kv_dtype="bfloat16"))
    assert rank.bytes_per_token == 22 * 6 * (96 + 96) * 2 == 50688
    assert rank.formula == "22 x 6 x (96 + 96) x 2"
    assert rank.half_bytes("full", "k") == rank.half_bytes("full", "v") == 25344


@pytest.mark.parametrize(("tp_size", "heads"), [(1, 6), (2, 3), (3, 2), (6, 1), (12, 1), (24, 1)])
def test_heads_are_cut_then_replicated(tp_size: int, heads: int) -> None:
    assert heads_per_rank(6, tp_size) == heads
    assert known(KvGeometry(layers=(GQA,) * 5, kv_dtype="bfloat16"), attn_tp_size=tp_size).bytes_per_token == 5 * heads * 192 * 2


@pytest.mark.parametrize("tp_size", [4, 5, 8, 9])
def test_heads_that_neither_divide_nor_replicate_are_unknown(tp_size: int) -> None:
    found = unknown(KvGeometry(layers=(GQA,), kv_dtype="bfloat16"), attn_tp_size=tp_size)
    assert found.field == "tp_size"
    assert "6 KV heads" in found.text


def test_different_k_and_v_sizes_and_two_pools() -> None:
    rank = known(KvGeometry(layers=(GQA, WINDOW, WINDOW), kv_dtype="bfloat16", pool_class=SWA_POOL), attn_tp_size=2)
    assert rank.pool_bytes("full") == 3 * 192 * 2
    assert rank.pool_bytes("swa") == 2 * 6 * (160 + 128) * 2
    assert (rank.half_bytes("swa", "k"), rank.half_bytes("swa", "v")) == (2 * 6 * 160 * 2, 2 * 6 * 128 * 2)
    assert rank.bytes_per_token == rank.pool_bytes("full") + rank.pool_bytes("swa")


def test_window_layers_stay_in_the_one_pool_of_other_classes() -> None:
    geometry = KvGeometry(layers=(GQA, WINDOW), kv_dtype="bfloat16", pool_class=MHA_POOL)
    assert geometry.window_pool is False
    assert known(geometry).pool_bytes("swa") == 0
    assert known(geometry).pool_bytes("full") == known(geometry).bytes_per_token


def test_latent_is_not_cut_and_has_no_v_half() -> None:
    geometry = KvGeometry(layers=(LATENT,) * 30, kv_dtype="bfloat16", pool_class=MLA_POOL)
    assert {known(geometry, attn_tp_size=tp).bytes_per_token for tp in (1, 2, 5, 16)} == {30 * 448 * 2}
    assert known(geometry).half_bytes("full", "v") == 0
    assert not geometry.has_v_half


def test_index_keys_are_allocated_but_no_kv() -> None:
    indexed = LayerKv(kind=LayerKind.FULL, kv_heads=1, k_dim=448, latent=True, index_dim=128)
    geometry = KvGeometry(layers=(indexed,) * 4 + (LATENT,) * 6, kv_dtype="bfloat16", pool_class=DSA_POOL)
    rank = known(geometry)
    assert rank.bytes_per_token == 10 * 448 * 2
    # 128 elements of one byte and one 4-byte scale per 128 of them.
    assert rank.pool_bytes("full") - rank.bytes_per_token == 4 * 132
    assert rank.half_bytes("full", "k") == rank.bytes_per_token


def test_fp8_row_of_a_sparse_latent_layer_is_unknown() -> None:
    indexed = LayerKv(kind=LayerKind.FULL, kv_heads=1, k_dim=448, latent=True, index_dim=128)
    found = unknown(KvGeometry(layers=(LATENT, indexed), kv_dtype="fp8_e4m3", pool_class=DSA_POOL))
    assert found.field == "kv_dtype"
    assert "dsa" in found.settle


def test_layers_without_attention_need_nothing_but_get_a_buffer_in_the_plain_pool() -> None:
    geometry = KvGeometry(layers=(GQA, NO_ATTENTION, GQA), kv_dtype="bfloat16", pool_class=MHA_POOL)
    rank = known(geometry)
    assert rank.bytes_per_token == 2 * 6 * 192 * 2
    assert rank.pool_bytes("full") == 3 * 6 * 192 * 2
    assert [part.layers for part in rank.parts if part.role is PartRole.IDLE] == [1]
    assert geometry.counts == {"full": 2, "none": 1}


def test_state_layers_are_counted_apart() -> None:
    geometry = KvGeometry(layers=(STATE, STATE, STATE, GQA), kv_dtype="bfloat16", pool_class="HybridLinearKVPool")
    assert geometry.counts == {"state": 3, "full": 1}
    assert geometry.state_layers == 3
    assert known(geometry).pool_bytes("full") == 6 * 192 * 2
    # A state layer gets no idle buffer, whatever pool class is stated.
    assert known(replace(geometry, pool_class=MHA_POOL)).pool_bytes("full") == 6 * 192 * 2


@pytest.mark.parametrize(
    ("dtype", "per_element"),
    [("float32", "4"), ("bfloat16", "2"), ("fp8_e5m2", "1"), ("fp4_e2m1", "9/16"), ("mxfp8", "33/32")],
)
def test_storage_types(dtype: str, per_element: str) -> None:
    assert STORAGE[dtype].bytes_per_element == Fraction(per_element)
    assert known(KvGeometry(layers=(GQA,) * 4, kv_dtype=dtype)).bytes_per_token == 4 * 6 * 192 * Fraction(per_element)


def test_elements_that_do_not_fill_a_scale_block_are_unknown() -> None:
    odd = LayerKv(kind=LayerKind.FULL, kv_heads=1, k_dim=36, v_dim=36)
    assert unknown(KvGeometry(layers=(odd,), kv_dtype="mxfp8")).field == "kv_dtype"


def test_pipeline_rank_with_the_most_bytes_decides() -> None:
    layers = (GQA,) * 3 + (WINDOW,) * 4
    geometry = KvGeometry(layers=layers, kv_dtype="bfloat16")
    # 7 layers over 2 ranks: 3 and 4, the last takes the extra one.
    assert known(geometry, pp_size=2, pp_rank=0).bytes_per_token == 3 * 6 * 192 * 2
    assert known(geometry, pp_size=2, pp_rank=1).bytes_per_token == 4 * 12 * 288 * 2
    assert known(geometry, pp_size=2) == known(geometry, pp_size=2, pp_rank=1)


@given(st.integers(1, 200), st.integers(1, 16))
def test_pipeline_slices_cover_all_layers_once(num_layers: int, pp_size: int) -> None:
    if num_layers < pp_size:
        with pytest.raises(ConfigError, match="pp_size"):
            pipeline_slice(num_layers, pp_size, 0)
        return
    slices = [pipeline_slice(num_layers, pp_size, rank) for rank in range(pp_size)]
    assert [i for piece in slices for i in range(piece.start, piece.stop)] == list(range(num_layers))
    sizes = [piece.stop - piece.start for piece in slices]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes)


def test_order_of_layers_matters_for_pipelines() -> None:
    mixed = KvGeometry(layers=(GQA, WINDOW), kv_dtype="bfloat16", ordered=False)
    assert unknown(mixed, pp_size=2).field == "num_layers"
    assert known(KvGeometry(layers=(GQA, GQA), kv_dtype="bfloat16", ordered=False), pp_size=2).bytes_per_token == 6 * 192 * 2


def test_draft_repeats_an_attention_layer() -> None:
    draft = KvGeometry(layers=(STATE, GQA), kv_dtype="bfloat16").draft(2)
    assert draft.layers == (GQA, GQA)
    with pytest.raises(ConfigError, match=r"draft_num_layers must be in 1\.\.4096, got 0"):
        draft.draft(0)


layer_lists = st.lists(
    st.one_of(
        st.just(NO_ATTENTION),
        st.just(STATE),
        st.builds(
            LayerKv,
            kind=st.sampled_from([LayerKind.FULL, LayerKind.WINDOW, LayerKind.UNSTATED]),
            kv_heads=st.integers(1, 16),
            k_dim=st.integers(1, 8).map(lambda n: 32 * n),
            v_dim=st.integers(1, 8).map(lambda n: 32 * n),
        ),
        st.builds(LayerKv, kind=st.just(LayerKind.FULL), kv_heads=st.just(1), k_dim=st.just(576), latent=st.just(True)),
    ),
    min_size=1,
    max_size=12,
).map(tuple)


@settings(deadline=None)
@given(
    layer_lists,
    st.sampled_from(sorted(STORAGE)),
    st.sampled_from([MHA_POOL, SWA_POOL, "HybridLinearKVPool", None]),
    st.integers(1, 32),
    st.integers(1, 4),
)
def test_printed_formula_gives_the_bytes(
    layers: tuple[LayerKv, ...], dtype: str, pool_class: str | None, tp_size: int, pp_size: int
) -> None:
    geometry = KvGeometry(layers=layers, kv_dtype=dtype, pool_class=pool_class)
    if pp_size > len(layers):
        return
    rank = geometry.rank(Split(attn_tp_size=tp_size, pp_size=pp_size))
    if isinstance(rank, Unknown):
        assert rank.field == "tp_size"
        return
    assert evaluate(rank.formula) == rank.bytes_per_token
    for pool in ("full", "swa"):
        assert evaluate(rank.pool_formula(pool)) == rank.pool_bytes(pool)
        index = sum(part.bytes_per_token for part in rank.parts if part.pool == pool and part.role is PartRole.INDEX)
        assert rank.half_bytes(pool, "k") + rank.half_bytes(pool, "v") + index == rank.pool_bytes(pool)


BASE = {"num_layers": 20, "num_kv_heads": 5, "head_dim": 64, "model_dtype": "float16"}


def test_settings_without_a_model_are_unknown() -> None:
    geometry = geometry_from_settings(Settings())
    assert [item.field for item in geometry.unknowns] == ["num_layers", "num_kv_heads", "head_dim"]
    assert unknown(geometry).field == "num_layers"


def test_settings_to_bytes() -> None:
    assert known(geometry_from_settings(Settings().replace(**BASE))).bytes_per_token == 20 * 5 * 128 * 2
    fp8 = Settings().replace(**BASE, kv_dtype="fp8_e4m3", v_head_dim=32)
    assert known(geometry_from_settings(fp8)).bytes_per_token == 20 * 5 * (64 + 32)


def test_auto_dtype_needs_the_model_dtype() -> None:
    assert resolve_kv_dtype("auto", None) is None
    assert resolve_kv_dtype("auto", "float16") == "float16"
    assert resolve_kv_dtype("fp8_e4m3", None) == "fp8_e4m3"
    assert unknown(geometry_from_settings(Settings().replace(**{**BASE, "model_dtype": "unknown"}))).field == "kv_dtype"


def test_settings_with_window_layers() -> None:
    settings = Settings().replace(**BASE, swa_num_layers=15, swa_num_kv_heads=10, swa_head_dim=32, pool_class=SWA_POOL)
    rank = known(geometry_from_settings(settings))
    assert rank.pool_bytes("full") == 5 * 5 * 128 * 2
    assert rank.pool_bytes("swa") == 15 * 10 * 64 * 2


def test_window_pool_without_a_count_of_window_layers_is_open() -> None:
    geometry = geometry_from_settings(Settings().replace(**BASE, pool_class=SWA_POOL))
    assert geometry.window_pool is None
    assert [item.field for item in geometry.unknowns] == ["swa_num_layers"]
    assert known(geometry).bytes_per_token == 20 * 5 * 128 * 2


def test_settings_with_a_latent_and_index_layers() -> None:
    settings = Settings().replace(
        num_layers=9, kv_lora_rank=256, qk_rope_head_dim=32, model_dtype="bfloat16", index_head_dim=128, index_num_layers=3, tp_size=4
    )
    geometry = geometry_from_settings(settings)
    rank = known(geometry, attn_tp_size=4)
    assert rank.bytes_per_token == 9 * 288 * 2
    assert rank.pool_bytes("full") == 9 * 288 * 2 + 3 * 132


def test_stated_bytes_replace_the_arithmetic() -> None:
    rank = known(geometry_from_settings(Settings().replace(**BASE, kv_bytes_per_token=777)), attn_tp_size=7)
    assert (rank.bytes_per_token, rank.formula) == (777, "777")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_layers": 5000}, "num_layers must be in 0..4096, got 5000"),
        ({"num_kv_heads": -2}, "num_kv_heads must be at least 1, got -2"),
        ({"v_head_dim": 0}, "v_head_dim must be at least 1, got 0"),
        ({"swa_num_layers": 21}, r"swa_num_layers must be in 0..20 \(num_layers\), got 21"),
        ({"kv_bytes_per_token": 0}, "kv_bytes_per_token must be at least 1, got 0"),
    ],
)
def test_illegal_model_fields_are_named(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        geometry_from_settings(Settings().replace(**{**BASE, **change}))


def test_attention_split_under_data_parallel_attention() -> None:
    assert Split.from_settings(Settings().replace(tp_size=8, dp_size=4)).attn_tp_size == 8
    assert Split.from_settings(Settings().replace(tp_size=8, dp_size=4, enable_dp_attention=True)).attn_tp_size == 2
    with pytest.raises(ConfigError, match="multiple of dp_size"):
        Split.from_settings(Settings().replace(tp_size=8, dp_size=3, enable_dp_attention=True))
