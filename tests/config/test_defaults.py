from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.config import defaults
from kvcanary.config.defaults import RULE_SETS, fill_missing, pool_size
from kvcanary.config.geometry import SWA_POOL, KvGeometry, LayerKind, LayerKv
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import GIB, MIB


@pytest.mark.parametrize(
    ("mib", "tp_size", "chunk", "batch"),
    [
        (15360, 1, 2048, 8),
        (20479, 4, 2048, 8),
        (20480, 3, 4096, 48),
        (32607, 4, 4096, 160),
        (35840, 1, 4096, 32),
        (49140, 8, 4096, 160),
        (61440, 2, 8192, 256),
        (97871, 4, 8192, 512),
        (163839, 1, 8192, 256),
        (163840, 1, 16384, 512),
        (None, 4, 4096, 160),
    ],
)
def test_tiers_of_the_current_releases(mib: int | None, tp_size: int, chunk: int, batch: int) -> None:
    memory = None if mib is None else mib * MIB
    assert defaults.chunked_prefill_size(memory).value == chunk
    assert defaults.cuda_graph_max_bs(memory, tp_size).value == batch


def test_small_devices_changed_with_release_0_5_20() -> None:
    before = RULE_SETS["0.5.18"]
    assert defaults.chunked_prefill_size(30000 * MIB, before).value == 2048
    assert [defaults.cuda_graph_max_bs(30000 * MIB, tp, rules=before).value for tp in (1, 4)] == [24, 80]


def test_graph_batch_follows_the_running_requests() -> None:
    assert defaults.cuda_graph_max_bs(80000 * MIB, 1, 100).value == 100
    assert defaults.cuda_graph_max_bs(80000 * MIB, 1, 1000).value == 256
    assert defaults.cuda_graph_max_bs(80000 * MIB, 1, 100, RULE_SETS["0.5.18"]).value == 256


def test_capture_list_lengths() -> None:
    assert defaults.capture_batch_sizes(16) == (1, 2, 4, 8, 12, 16)
    assert defaults.capture_batch_sizes(544)[-3:] == (496, 512, 544)
    assert defaults.capture_batch_sizes(36, speculative=True)[-4:] == (28, 30, 32, 36)
    assert defaults.capture_batch_sizes(5, padding=False) == (1, 2, 3, 4, 5)
    assert defaults.capture_batch_sizes(0) == ()


@pytest.mark.parametrize(
    ("max_bs", "speculative", "count", "head", "tail"),
    [
        (256, False, 36, (1, 2, 4, 8, 12, 16), (240, 248, 256)),
        (10, False, 5, (1, 2, 4), (4, 8, 10)),
        (1, False, 1, (1,), (1,)),
        (576, False, 54, (1, 2), (512, 544, 576)),
        (64, True, 27, (1, 2, 3, 4, 5, 6, 7, 8, 10), (56, 60, 64)),
    ],
)
def test_capture_list_by_its_ends(max_bs: int, speculative: bool, count: int, head: tuple[int, ...], tail: tuple[int, ...]) -> None:
    sizes = defaults.capture_batch_sizes(max_bs, speculative=speculative)
    assert len(sizes) == count
    assert sizes[: len(head)] == head
    assert sizes[-len(tail) :] == tail


def test_numbers_without_end_are_counted_or_refused_and_never_listed() -> None:
    # 8 + 14 + 8 + 8 + 12 steps up to 4096, then every 512.
    assert [defaults.prefill_captures(tokens) for tokens in (3, 4, 4096, 4607, 4608, 5120)] == [0, 1, 50, 50, 51, 52]
    assert defaults.prefill_captures(2**63 - 1) == 50 + (2**63 - 1 - 4096) // 512
    with pytest.raises(ConfigError, match=r"cuda_graph_max_bs must be at most 1048576 to list its batches, got 9223372036854775807"):
        defaults.capture_batch_sizes(2**63 - 1)


@given(st.integers(1, 1500), st.booleans(), st.booleans())
def test_capture_list_ascends_to_the_largest_batch(max_bs: int, speculative: bool, padding: bool) -> None:
    sizes = defaults.capture_batch_sizes(max_bs, speculative=speculative, padding=padding)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_bs


def static(rules: str = "0.5.20", latent: bool = False, standalone: bool = False, **changes: object) -> float:
    base = {"device_memory_bytes": 90000 * MIB, "chunked_prefill_size": 8192, "cuda_graph_max_bs": 256}
    derived = defaults.mem_fraction_static(
        Settings().replace(**{**base, **changes}), latent=latent, standalone_draft=standalone, rules=RULE_SETS[rules]
    )
    return derived.value


def test_static_fraction() -> None:
    # 512 + 1.5 * 8192 + 1024 / 8 + 2 * 256 = 13 440 MiB.
    assert static() == round((90000 - 13440) / 90000, 3)
    # On a large device at least 10 240 MiB stay free.
    assert static(chunked_prefill_size=2048, cuda_graph_max_bs=8) == round((90000 - 10240) / 90000, 3)
    assert static(device_memory_bytes=24000 * MIB, chunked_prefill_size=2048, cuda_graph_max_bs=8) == round((24000 - 3728) / 24000, 3)


def test_static_fraction_of_parallel_and_graph_settings() -> None:
    assert static(tp_size=8, pp_size=2) == round((90000 - 13312 - 2048) / 90000, 3)
    assert static(cuda_graph_max_bs=320, enable_dp_attention=True, dp_size=4, tp_size=8) == round(
        (90000 - (512 + 12288 + 1024 + 640 + 3 * 320 * 4 + 1.5 * 320 * 4)) / 90000, 3
    )
    assert static(cuda_graph_backend_decode="disabled") == round((90000 - 12928) / 90000, 3)
    sizes = defaults.prefill_captures(8192)
    assert static(cuda_graph_backend_prefill="breakable") == round((90000 - 13440 - 8 * sizes) / 90000, 3)
    assert static(cuda_graph_backend_prefill="breakable", latent=True) == round((90000 - 13440 - 1536) / 90000, 3)
    assert static(chunked_prefill_size=-1, max_prefill_tokens=20000) == round((90000 - 512 - 30000 - 128 - 512) / 90000, 3)
    assert static(post_capture_kv_sizing=True) == round((90000 - 1536 - 128) / 90000, 3)


def test_static_fraction_without_memory_and_in_older_releases() -> None:
    assert static(device_memory_bytes=None) == 0.95
    assert static("0.5.18", device_memory_bytes=None) == 0.88
    assert static("0.5.13", speculative_num_draft_tokens=4) == round((90000 - 13440 - 4096) / 90000, 3)
    assert static("0.5.13", standalone=True, speculative_num_draft_tokens=4) == round((90000 - 13440 - 6144) / 90000, 3)
    assert static("0.5.18", speculative_num_draft_tokens=4) == static()


def test_reserve_larger_than_the_device_is_an_error_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="--mem-fraction-static"):
        static(device_memory_bytes=8000 * MIB)


def test_running_requests() -> None:
    assert defaults.running_requests(500_000, 8192).value == 4096
    assert defaults.running_requests(100_000, 131072).value == 2048
    # 300 000 / 50 000 * 512 = 3072 lies between the limits.
    assert defaults.running_requests(300_000, 50_000).value == 3072
    assert defaults.running_requests(1000, 8192).value == 500
    assert defaults.running_requests(500_000, 8192, asked=100, attn_dp_size=8).value == 12
    assert defaults.running_requests(500_000, 8192, asked=3, attn_dp_size=8).value == 1
    assert defaults.running_requests(500_000, 8192, state_limit=37).value == 37
    with pytest.raises(ConfigError, match="context length"):
        defaults.running_requests(10, 0)


def test_row_width() -> None:
    assert defaults.request_row_width(5000).value == 5004
    assert defaults.request_row_width(5000, 6).value == 5010


RANK = KvGeometry(
    layers=(LayerKv(kind=LayerKind.FULL, kv_heads=4, k_dim=64, v_dim=64),) * 10
    + (LayerKv(kind=LayerKind.WINDOW, kv_heads=4, k_dim=32, v_dim=32),) * 20,
    kv_dtype="bfloat16",
    pool_class=SWA_POOL,
).rank()


def test_budget_to_slots() -> None:
    assert isinstance(RANK, RankKv)
    budget = defaults.kv_budget_bytes(30 * GIB, 40 * GIB, 0.9)
    assert budget == 26 * GIB
    plain = pool_size(budget, RANK, 64)
    assert plain.cell_bytes == 10 * 4 * 128 * 2
    assert plain.full_slots == 26 * GIB // 10240 // 64 * 64
    assert plain.window_slots == 0
    split = pool_size(budget, RANK, 64, window_ratio=0.25)
    assert split.cell_bytes == 10240 + 0.25 * 10240
    assert split.full_slots == 26 * GIB // 12800 // 64 * 64
    assert split.window_slots == int(split.full_slots * 0.25) // 64 * 64
    assert pool_size(budget, RANK, 64, cap=1000).full_slots == 960
    assert pool_size(budget, RANK, 1, draft_bytes=10240).full_slots == 26 * GIB // 20480


def test_a_budget_below_zero_gives_a_negative_pool() -> None:
    assert isinstance(RANK, RankKv)
    budget = defaults.kv_budget_bytes(9 * GIB, 90 * GIB, 0.85)
    assert budget < 0
    assert pool_size(budget, RANK, 1).full_slots == budget // 10240 < 0


@given(st.integers(0, 10**12), st.integers(1, 512), st.floats(0.01, 1.0))
def test_a_pool_never_costs_more_than_its_budget(budget: int, page_size: int, ratio: float) -> None:
    assert isinstance(RANK, RankKv)
    size = pool_size(budget, RANK, page_size, window_ratio=ratio)
    cost = size.full_slots * RANK.pool_bytes("full") + size.window_slots * RANK.pool_bytes("swa")
    assert cost <= budget
    assert size.full_slots % page_size == size.window_slots % page_size == 0


def test_missing_flags_are_filled_in_the_engine_s_order() -> None:
    bare = Settings().replace(device_memory_bytes=183359 * MIB, pool_slot_count=900_000, tp_size=8)
    names = ["mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs", "max_seq_len_per_req", "req_to_token_pool_size"]
    filled, derived = fill_missing(bare, names, context_len=65536)
    assert [choice.field for choice in derived] == [
        "chunked_prefill_size", "cuda_graph_max_bs", "mem_fraction_static", "max_seq_len_per_req", "req_to_token_pool_size",
    ]  # fmt: skip
    assert filled.batch.chunked_prefill_size == 16384
    assert filled.batch.cuda_graph_max_bs == 512
    # The fraction is derived from the filled chunk and batch, not from the form's defaults.
    assert filled.memory.mem_fraction_static == round((183359 - 512 - 24576 - 1024 - 1024) / 183359, 3)
    assert filled.pool.max_seq_len_per_req == 65540
    assert filled.pool.req_to_token_pool_size == 4096
    assert all(choice.rule and choice.formula for choice in derived)


def test_given_flags_are_not_touched() -> None:
    settings = Settings().replace(device_memory_bytes=183359 * MIB)
    assert fill_missing(settings, []) == (settings, ())
    assert fill_missing(settings, ["req_to_token_pool_size"])[1] == ()
