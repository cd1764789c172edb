from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from kvcanary.config.capacities import canary_line_items
from kvcanary.config.geometry import KvGeometry, LayerKind, LayerKv
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.memory import CANARY_PARTS, MemoryPlan, Share, Verdict, memory_plan
from kvcanary.config.settings import Settings
from kvcanary.config.solve import changed, within_budget
from kvcanary.errors import ConfigError
from kvcanary.units import GIB, MIB
from tests.config.plans import WINDOW, server, servers


def amounts(plan: MemoryPlan) -> dict[str, int | None]:
    return {line.name: line.bytes for line in plan.lines}


def test_every_line_of_a_plain_server() -> None:
    plan = memory_plan(server())
    slot = 24 * 6 * 192 * 2
    assert amounts(plan) == {
        "weights": 18 * GIB,
        "kv_pool": 150_000 * slot,
        "kv_pool_spare_page": slot,
        "canary_full_k": 150_001 * 64,
        "canary_full_v": 150_001 * 64,
        "canary_ring": 65540,
        "canary_counters": 196,
        "canary_workspace": 32 * 450_000 + 20 + 16 * 200 + 16 * 4096 + 32 * 200,
        "request_table": 4 * 201 * 20_004,
        "graphs": 900 * MIB,
    }
    assert plan.verdict is Verdict.FITS
    assert plan.headroom_bytes == 47000 * MIB - sum(value or 0 for value in amounts(plan).values())
    assert plan.summary.endswith("left")


def test_window_server_has_two_pools_and_a_translation_table() -> None:
    plan = memory_plan(server(**WINDOW, page_size=16))
    lines = amounts(plan)
    small = int(150_000 * 0.3) // 16 * 16
    assert lines["kv_pool"] == 150_000 * 6 * 6 * 192 * 2
    assert lines["kv_window_pool"] == small * 18 * 3 * 192 * 2
    assert lines["kv_window_pool_spare_page"] == 16 * 18 * 3 * 192 * 2
    assert lines["window_index"] == 8 * (150_000 + 17)
    assert lines["canary_swa_k"] == 64 * (small + 16)


def test_a_model_of_window_layers_alone_takes_no_share_of_a_full_pool() -> None:
    lines = amounts(memory_plan(server(**{**WINDOW, "swa_num_layers": 24})))
    assert lines["kv_pool"] == 0
    assert lines["kv_window_pool"] == 150_000 * 24 * 3 * 192 * 2


def test_draft_pool() -> None:
    lines = amounts(memory_plan(server(speculative_num_draft_tokens=4, draft_num_layers=2)))
    assert lines["draft_kv_pool"] == 150_000 * 2 * 6 * 192 * 2
    assert lines["draft_canary_full_k"] == lines["canary_full_k"]
    own = KvGeometry(layers=(LayerKv(kind=LayerKind.FULL, kv_heads=2, k_dim=64, v_dim=64),), kv_dtype="bfloat16")
    assert amounts(memory_plan(server(speculative_num_draft_tokens=4), draft=own))["draft_kv_pool"] == 150_000 * 2 * 128 * 2


def test_draft_of_unknown_size_is_an_unknown_line() -> None:
    plan = memory_plan(server(speculative_num_draft_tokens=4))
    line = plan.line("draft_kv_pool")
    assert line.bytes is None
    assert line.unknown is not None
    assert line.unknown.field == "draft_num_layers"
    assert plan.verdict is Verdict.OPEN
    assert "at least" in plan.summary


def test_state_layers_are_not_covered_and_not_guessed() -> None:
    line = memory_plan(server(num_state_layers=30, pool_class="HybridLinearKVPool")).line("state_cache")
    assert line.bytes is None
    assert "not covered" in line.label


def test_canary_off_and_classes_without_a_canary() -> None:
    for changes in ({"mode": "none"}, {"pool_class": "MLATokenToKVPool"}):
        plan = memory_plan(server(**changes))
        assert plan.canary_bytes == 0
        assert not any(line.part in CANARY_PARTS for line in plan.lines)


def test_what_the_canary_refuses_leaves_the_other_lines_standing() -> None:
    plan = memory_plan(server(pool_slot_count=0))
    line = plan.line("canary")
    assert line.unknown is not None
    assert line.unknown.text == "kv-canary: pool_slot_count must be positive, got 0"
    assert plan.line("kv_pool").bytes == 0


def test_unknown_weights_graphs_and_model_are_named() -> None:
    plan = memory_plan(Settings())
    assert {line.name for line in plan.unknown_lines} == {"weights", "kv_pool", "graphs"}
    assert [line.unknown.text for line in plan.unknown_lines if line.unknown][::2] == [
        "the weights are not stated", "the CUDA graphs are not stated",
    ]  # fmt: skip
    assert plan.headroom_bytes is None
    assert plan.verdict is Verdict.OPEN
    assert plan.summary.endswith(" needed; not known: the memory of the device, the weights, the KV pool, the CUDA graphs")
    assert memory_plan(server(cuda_graph_max_bs=None, graph_bytes=None)).verdict is Verdict.FITS


def test_over_budget_is_a_result() -> None:
    slack = memory_plan(server(pool_slot_count=600_000))
    assert slack.verdict is Verdict.OVER
    assert slack.headroom_bytes is not None
    assert slack.headroom_bytes < 0
    assert slack.summary.endswith("over")
    static = memory_plan(server(mem_fraction_static=0.5))
    assert static.verdict is Verdict.OVER
    assert static.headroom_bytes is not None
    assert static.headroom_bytes > 0
    assert static.static_left_bytes is not None
    assert static.static_left_bytes < 0


def test_a_plan_that_uses_the_last_byte_fits() -> None:
    plan = memory_plan(server(mem_fraction_static=None))
    exact = server(mem_fraction_static=None, free_before_load_bytes=plan.known_bytes)
    assert memory_plan(exact).headroom_bytes == 0
    assert memory_plan(exact).verdict is Verdict.FITS
    assert within_budget(memory_plan(exact))
    assert not within_budget(memory_plan(exact.replace(free_before_load_bytes=plan.known_bytes - 1)))


def test_over_is_said_even_with_unknown_lines() -> None:
    assert memory_plan(server(pool_slot_count=600_000, graph_bytes=None)).verdict is Verdict.OVER


def test_free_memory_before_loading_is_the_budget_where_known() -> None:
    plan = memory_plan(server(free_before_load_bytes=45 * GIB))
    assert plan.budget_bytes == 45 * GIB
    assert "before the weights" in plan.budget_note
    assert plan.static_limit_bytes == 45 * GIB - int(45 * GIB * (1 - 0.84))


def test_who_pays_depends_on_when_the_pool_is_sized() -> None:
    before, after = memory_plan(server()), memory_plan(server(post_capture_kv_sizing=True))
    assert before.line("canary_workspace").share is Share.SLACK
    assert after.line("canary_workspace").share is Share.RESERVED
    assert {line.share for line in before.lines} == {Share.STATIC, Share.SLACK}
    assert {line.share for line in after.lines} == {Share.STATIC, Share.RESERVED}
    assert after.static_bytes == after.known_bytes == before.known_bytes > before.static_bytes


def test_after_capture_eager_batches_keep_more_free() -> None:
    covered = memory_plan(server(post_capture_kv_sizing=True, cuda_graph_max_bs=200, mem_fraction_static=0.97))
    gap = memory_plan(server(post_capture_kv_sizing=True, cuda_graph_max_bs=199, mem_fraction_static=0.97))
    assert covered.static_limit_bytes == 47000 * MIB - int(47000 * MIB * (1 - 0.97))
    # 512 + 1.5 * 4096 + 1024 / 8 MiB.
    assert gap.static_limit_bytes == 47000 * MIB - 6784 * MIB


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size must be at least 1, got 0"),
        ({"mem_fraction_static": 1.2}, "mem_fraction_static must be between 0 and 1, got 1.2"),
        ({"weight_bytes": -1}, "weight_bytes must not be negative"),
        ({"tp_size": 0}, "tp_size must be at least 1"),
    ],
)
def test_sizes_that_are_none_are_refused(changes: dict[str, Any], message: str) -> None:
    # No text and no file gives a negative size; code can.
    with pytest.raises(ConfigError, match=message):
        memory_plan(changed(server(), **changes))


def test_asking_for_a_line_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no memory line 'dessert'"):
        memory_plan(server()).line("dessert")


@settings(deadline=None, max_examples=300)
@given(servers)
def test_the_sum_of_the_lines_is_the_total_and_each_line_is_its_formula(settings: Settings) -> None:
    plan = memory_plan(settings)
    assert plan.known_bytes == sum(line.bytes for line in plan.lines if line.bytes is not None)
    assert plan.budget_bytes is not None
    assert plan.headroom_bytes == plan.budget_bytes - plan.known_bytes
    assert len({line.name for line in plan.lines}) == len(plan.lines)
    for line in plan.lines:
        assert (line.item is None) == (line.unknown is not None)
        if line.item is not None:
            assert eval(line.item.formula, {"max": max, "min": min}, dict(line.item.terms)) == line.bytes, line.name
            assert line.bytes is not None
            assert line.bytes >= 0


@settings(deadline=None, max_examples=2000)
@given(servers)
def test_pool_bytes_are_slots_times_bytes_per_slot(settings: Settings) -> None:
    plan = memory_plan(settings)
    pools = [line for line in plan.lines if line.part == "kv" and line.item is not None]
    for line in pools:
        assert line.item is not None
        count, per_slot = line.item.terms.values()
        assert line.bytes == count * per_slot
    if not isinstance(plan.rank, RankKv):
        assert plan.line("kv_pool").bytes is None
        return
    full = plan.line("kv_pool")
    assert full.item is not None
    assert full.item.terms["bytes_per_slot"] == plan.rank.pool_bytes("full")
    # With one slot more of each pool the plan grows by exactly one slot's bytes.
    grown = memory_plan(settings.replace(pool_slot_count=settings.pool.pool_slot_count + settings.pool.page_size))
    delta = (grown.line("kv_pool").bytes or 0) - (full.bytes or 0)
    assert delta == settings.pool.page_size * plan.rank.pool_bytes("full")


@settings(deadline=None)
@given(servers)
def test_canary_lines_are_those_of_the_capacities(settings: Settings) -> None:
    plan = memory_plan(settings)
    expected = canary_line_items(settings)
    assert [line.item for line in plan.lines if line.part in CANARY_PARTS] == expected
    assert plan.canary_bytes == sum(item.bytes for item in expected)
    assert memory_plan(settings.replace(mode="none")).known_bytes == plan.known_bytes - plan.canary_bytes
