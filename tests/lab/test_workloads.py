"""What a benchmark will run, from the settings alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape, scene_bytes
from kvcanary.lab.workloads import PRESETS, BenchmarkPlan, plan_benchmark
from kvcanary.layout import RealKvHashMode
from kvcanary.units import GIB, parse_integer

SERVER = {
    "req_to_token_pool_size": 4096, "max_seq_len_per_req": 40960, "pool_slot_count": 392_920, "cuda_graph_max_bs": 256,
    "chunked_prefill_size": 8192, "max_prefill_tokens": 16384,
}  # fmt: skip


def planned(preset: str = "quick", available_bytes: int = 64 * GIB, **changes: Any) -> BenchmarkPlan:
    return plan_benchmark(BenchmarkSpec(settings={**SERVER, **changes}, preset=preset), available_bytes)


def of(plan: BenchmarkPlan, kind: str) -> list[tuple[int, int, int]]:
    return [(item.shape.requests, item.prefix, item.extend) for item in plan.workloads if item.kind == kind]


def test_quick_takes_the_smallest_and_the_largest_batch_and_what_the_pool_can_give_each_request() -> None:
    decode = of(planned(), "decode")
    assert decode[0] == (1, 512, 1)
    # 392 920 slots over 4096 requests are 95 each, of which one is the token that decode writes.
    assert decode[-1] == (4096, 94, 1)
    assert len(decode) == PRESETS["quick"].batches


def test_long_measures_every_captured_batch_and_the_request_capacity() -> None:
    plan = planned("long", cuda_graph_max_bs=24)
    batches = {requests for requests, _, _ in of(plan, "decode")}
    assert batches == {1, 2, 4, 8, 12, 16, 24, 4096}
    variants = {(item.layout, item.shape.hash_mode) for item in plan.workloads if item.kind == "decode"}
    assert variants == {(name, mode) for name in ("contiguous", "shuffled") for mode in RealKvHashMode}


def test_speculation_writes_draft_tokens_and_has_its_own_capture_list() -> None:
    decode = of(planned(speculative_num_draft_tokens=4, cuda_graph_max_bs=6, req_to_token_pool_size=6), "decode")
    assert {extend for _, _, extend in decode} == {4}
    assert [requests for requests, _, _ in decode] == [1, 3, 4, 6]


def test_prefill_fills_the_write_entry_capacity_as_one_prompt_as_many_and_as_a_second_chunk() -> None:
    assert of(planned(), "prefill") == [(1, 0, 8192), (1, 8192, 8192), (16, 0, 512)]


def test_requests_take_whole_pages_and_the_padding_page_comes_on_top() -> None:
    plan = planned(page_size=64)
    assert plan.final.num_slots == 392_920 // 64 * 64 + 64
    for item in plan.workloads:
        Scene(replace(item.shape, hash_mode=RealKvHashMode.NONE, row_bytes=0), 1)
    assert of(plan, "decode")[-1] == (4096, 63, 1)


@pytest.mark.parametrize(
    ("page_size", "said"), [(1, "a pool of 392 920 slots;"), (64, "a pool of 392 896 slots, 6 139 whole pages of 64;")]
)
def test_the_sentence_counts_the_slots_that_plan_counts(page_size: int, said: str) -> None:
    assert said in planned(page_size=page_size).sentence.replace("\u202f", " ")


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    plan = planned(pool_slot_count=1000)
    assert any(reason.startswith("decode batch 4096: 4096 requests of 2 tokens do not fit into 1000 slots") for reason in plan.skipped)


def test_a_pool_without_a_whole_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool_slot_count 63 holds no whole page of 64 slots"):
        planned(pool_slot_count=63, page_size=64)


def test_what_is_not_measured_is_said() -> None:
    notes = planned(sliding_window=4096, verify_v_half=True, real_data="partial").notes
    assert any("window group is not timed" in note for note in notes)
    assert any("V half" in note for note in notes)
    assert any("2048 bytes per slot: assumed" in note for note in notes)
    assert planned().notes == ()


def test_the_row_comes_from_the_model_and_its_split() -> None:
    plan = planned(real_data="all", num_kv_heads=8, head_dim=128, kv_dtype="bfloat16", tp_size=4)
    assert plan.row_bytes == 2 * 128 * 2
    assert plan.final.row_bytes == 512


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("real_data", ["none", "all"])
def test_the_largest_pool_that_fits_does_fit_and_one_page_more_does_not(real_data: str, page_size: int) -> None:
    available = GIB // 2
    with pytest.raises(ConfigError, match="the largest pool that fits is") as refused:
        planned(available_bytes=available, pool_slot_count=100_000_000, real_data=real_data, page_size=page_size)
    text = re.search(r"fits is (\d[\d\s\u202f]*) slots", str(refused.value))
    assert text is not None
    fits = parse_integer(text[1])
    assert planned(available_bytes=available, pool_slot_count=fits, real_data=real_data, page_size=page_size).final.num_slots
    with pytest.raises(ConfigError, match="largest pool"):
        planned(available_bytes=available, pool_slot_count=fits + page_size, real_data=real_data, page_size=page_size)


def test_memory_that_holds_nothing_is_said_so() -> None:
    with pytest.raises(ConfigError, match="not even one page fits"):
        planned(available_bytes=1000)


@pytest.mark.parametrize("mode", list(RealKvHashMode))
def test_scene_bytes_cover_what_a_scene_allocates(mode: RealKvHashMode) -> None:
    shape = SceneShape(num_slots=5000, requests=10, length=400, row_bytes=64, hash_mode=mode)
    scene = Scene(shape, 1)
    plan = scene.verify_plan
    tensors = [scene.buffer, scene.slots, scene.tokens, scene.positions, scene.req_to_token, scene.coverage.slot_flags, scene.ring.rows]
    tensors += [plan.slot_indices, plan.expected_tokens, plan.expected_positions, plan.prev_slot_indices]
    tensors += [] if scene.kv is None else [scene.kv, scene.head_buffer]
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    assert allocated <= scene_bytes(shape) <= 2 * allocated


def test_the_sentence_says_what_and_how_long_and_that_it_is_an_estimate() -> None:
    plan = planned()
    assert plan.sentence.startswith(f"{len(plan.workloads)} points (4 decode, 1 sweep, 3 prefill)")
    assert "(an estimate)" in plan.sentence
    assert planned("long").estimate_s > planned("standard").estimate_s > plan.estimate_s


def test_limits_sweeps_full_pools_of_every_size_with_chains_of_one_length() -> None:
    plan = planned("limits", available_bytes=64 * GIB)
    sweeps = [item for item in plan.workloads if item.kind == "sweep"]
    plain = [item.shape for item in sweeps if item.shape.hash_mode is RealKvHashMode.NONE and not item.shape.shuffled]
    assert [shape.used for shape in plain] == [1 << power for power in range(12, 25, 2)]
    assert {item.shape.length for item in sweeps} == {512}
    hashed = [item.shape for item in sweeps if item.shape.hash_mode is RealKvHashMode.ALL]
    assert max(shape.num_slots * shape.row_bytes for shape in hashed) <= 2 * GIB + hashed[0].row_bytes * hashed[0].page_size
    assert of(plan, "prefill") == [(1, 0, 8192)]
    assert not of(plan, "decode")
    assert any("larger pools take longer and show nothing new" in reason for reason in plan.skipped)


def test_limits_leaves_out_the_sizes_that_do_not_fit_and_says_which() -> None:
    plan = planned("limits", available_bytes=2 * GIB, page_size=64, pool_slot_count=65536)
    assert max(item.shape.num_slots for item in plan.workloads) == (1 << 22) + 64
    assert plan.peak_bytes <= 2 * GIB
    assert any("pools of 16\N{NARROW NO-BREAK SPACE}777\N{NARROW NO-BREAK SPACE}216 slots and more" in reason for reason in plan.skipped)


def test_limits_needs_whole_chains_in_whole_pages() -> None:
    plan = planned("limits", page_size=1024, pool_slot_count=65536)
    assert {item.shape.length for item in plan.workloads if item.kind == "sweep"} == {1024}
