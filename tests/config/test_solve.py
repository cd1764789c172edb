from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvcanary.config.defaults import pool_size
from kvcanary.config.geometry import KvGeometry, LayerKind, LayerKv, Unknown
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.settings import Settings
from kvcanary.config.solve import (
    FractionAnswer,
    Frontier,
    FrontierPoint,
    PoolAnswer,
    changed,
    frontier,
    largest,
    largest_context,
    largest_pool,
    smallest_fraction,
    within_budget,
)
from kvcanary.units import GIB
from tests.config.plans import server, servers


def pool_of(plan: MemoryPlan) -> PoolAnswer:
    answer = largest_pool(plan)
    assert isinstance(answer, PoolAnswer), answer
    return answer


def fraction_of(plan: MemoryPlan) -> FractionAnswer:
    answer = smallest_fraction(plan)
    assert isinstance(answer, FractionAnswer), answer
    return answer


@given(st.integers(0, 300), st.integers(0, 300), st.integers(-5, 310), st.none() | st.integers(-400, 800))
def test_largest_is_the_last_that_fits_whatever_the_guess(low: int, high: int, limit: int, guess: int | None) -> None:
    expected = max((n for n in range(low, high + 1) if n <= limit), default=None)
    assert largest(lambda n: n <= limit, low, high, guess) == expected


def test_no_guess_loses_an_answer() -> None:
    found = {(limit, guess): largest(limit.__ge__, 0, 47, guess) for limit in range(48) for guess in range(50)}
    assert {key: answer for key, answer in found.items() if answer != key[0]} == {}


def test_a_plan_is_solved_in_a_few_tries() -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= 7_654_321

    assert largest(fits, 1, 10**9, 7_654_320) == 7_654_321
    assert len(tried) < 8


def test_changed_equals_a_parsed_change() -> None:
    base = server()
    assert changed(base, pool_slot_count=7, mode="none", kv_dtype="fp8_e4m3") == base.replace(
        pool_slot_count=7, mode="none", kv_dtype="fp8_e4m3"
    )


def test_static_share_limits_the_pool_as_the_engine_s_own_division_does() -> None:
    plan = memory_plan(server())
    answer = pool_of(plan)
    assert answer.limit == "static"
    assert isinstance(plan.rank, RankKv)
    assert plan.static_limit_bytes is not None
    assert answer.slots == pool_size(plan.static_limit_bytes - 18 * GIB, plan.rank, 1).full_slots
    assert "static share is full" in answer.text


def test_device_limits_the_pool_at_a_high_fraction() -> None:
    answer = pool_of(memory_plan(server(mem_fraction_static=0.999)))
    assert answer.limit == "device"
    assert answer.plan.headroom_bytes is not None
    assert 0 <= answer.plan.headroom_bytes < 24 * 6 * 192 * 2 + 300


def test_cap_only_lowers_the_pool() -> None:
    free = pool_of(memory_plan(server(page_size=64)))
    capped = pool_of(memory_plan(server(page_size=64, max_total_tokens=100_000)))
    assert (capped.slots, capped.limit) == (99_968, "cap")
    assert pool_of(memory_plan(server(page_size=64, max_total_tokens=10**9))).slots == free.slots


def test_no_pool_fits_beside_the_weights() -> None:
    answer = pool_of(memory_plan(server(weight_bytes=44 * GIB)))
    assert (answer.slots, answer.limit) == (0, "static")
    assert "no slot fits" in answer.text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"weight_bytes": None}, "weight_bytes"),
        ({"num_layers": None}, "num_layers"),
        ({"device_memory_bytes": None}, "device_memory_bytes"),
        ({"num_state_layers": 4}, "state_bytes_per_request"),
    ],
)
def test_what_is_unknown_is_not_solved_around(changes: dict[str, Any], field: str) -> None:
    plan = memory_plan(server(**changes))
    for answer in (largest_pool(plan), smallest_fraction(plan), largest_context(plan, 4), frontier(plan)):
        assert isinstance(answer, Unknown)
        assert answer.field == field


def test_smallest_fraction() -> None:
    answer = fraction_of(memory_plan(server()))
    needed = 18 * GIB + 150_000 * 24 * 6 * 192 * 2
    total = 47000 << 20
    assert answer.fraction is not None
    assert answer.fraction - 0.001 < needed / total <= answer.fraction
    assert answer.plan is not None
    assert answer.plan.settings.memory.mem_fraction_static == answer.fraction


def test_no_fraction_pays_for_too_large_a_pool() -> None:
    answer = fraction_of(memory_plan(server(pool_slot_count=10**6)))
    assert answer.fraction is None
    assert "too much" in answer.text


@settings(deadline=None, max_examples=60)
@given(servers)
def test_the_largest_pool_fits_and_one_page_more_does_not(settings: Settings) -> None:
    plan = memory_plan(settings)
    answer = largest_pool(plan)
    assume(isinstance(answer, PoolAnswer))
    assert isinstance(answer, PoolAnswer)
    page = settings.pool.page_size
    assert answer.slots % page == 0
    assert not within_budget(plan.replan(settings.replace(pool_slot_count=answer.slots + page)))
    if answer.slots:
        assert within_budget(answer.plan)
        assert answer.plan == memory_plan(settings.replace(pool_slot_count=answer.slots))


@settings(deadline=None, max_examples=60)
@given(servers)
def test_the_smallest_fraction_pays_and_a_step_less_does_not(settings: Settings) -> None:
    plan = memory_plan(settings)
    answer = smallest_fraction(plan)
    assume(isinstance(answer, FractionAnswer) and answer.fraction is not None)
    assert isinstance(answer, FractionAnswer)
    assert answer.fraction is not None

    def left(fraction: float) -> int:
        spare = memory_plan(settings.replace(mem_fraction_static=fraction)).static_left_bytes
        assert spare is not None
        return spare

    assert left(answer.fraction) >= 0
    less = round(answer.fraction - 0.001, 3)
    assert less == 0 or left(less) < 0


def test_pool_and_fraction_are_inverse() -> None:
    plan = memory_plan(server(mem_fraction_static=0.7))
    at_pool = pool_of(plan).plan
    assert fraction_of(at_pool).fraction == 0.7


def test_context_in_a_fixed_pool() -> None:
    plan = memory_plan(server(page_size=64))
    assert largest_context(plan, 9, fixed="pool") == FrontierPoint(
        concurrency=9, context=150_000 // 9 // 64 * 64, pool_slots=150_000, limit="pool"
    )


def test_positions_of_the_model_limit_the_context() -> None:
    layer = LayerKv(kind=LayerKind.FULL, kv_heads=6, k_dim=96, v_dim=96)
    geometry = KvGeometry(layers=(layer,) * 24, kv_dtype="bfloat16", pool_class="MHATokenToKVPool", max_position_embeddings=9000)
    plan = memory_plan(server(), geometry)
    for fixed in ("pool", "memory"):
        point = largest_context(plan, 2, fixed=fixed)
        assert isinstance(point, FrontierPoint)
        assert (point.context, point.limit) == (9000, "model")


@settings(deadline=None, max_examples=25)
@given(servers, st.integers(1, 3000))
def test_the_longest_context_fits_and_one_page_more_does_not(settings: Settings, concurrency: int) -> None:
    plan = memory_plan(settings)
    point = largest_context(plan, concurrency)
    assume(isinstance(point, FrontierPoint))
    assert isinstance(point, FrontierPoint)
    spare = 4 + (settings.batch.speculative_num_draft_tokens or 0)

    def fits(context: int) -> bool:
        page = settings.pool.page_size
        slots = concurrency * (-(-context // page) * page)
        trial = settings.replace(req_to_token_pool_size=concurrency, max_seq_len_per_req=context + spare, pool_slot_count=slots)
        return within_budget(memory_plan(trial))

    assert point.context == 0 or fits(point.context)
    assert not fits(point.context + 1)


def test_frontier_falls_with_concurrency_and_holds_the_current_point() -> None:
    answer = frontier(memory_plan(server(req_to_token_pool_size=30)), (1, 4, 16, 64))
    assert isinstance(answer, Frontier)
    assert [point.concurrency for point in answer.points] == [1, 4, 16, 30, 64]
    contexts = [point.context for point in answer.points]
    assert contexts == sorted(contexts, reverse=True)
    assert (answer.current.concurrency, answer.current.context) == (30, 20_000)
    assert not answer.current_fits
    assert answer.points[3].context < 20_000
    roomy = frontier(memory_plan(server(req_to_token_pool_size=12, max_seq_len_per_req=10_004)), (12,))
    assert isinstance(roomy, Frontier)
    assert roomy.current_fits
    assert roomy.points[0].context >= 10_000


def test_the_engine_s_own_pool_does_not_ask_for_the_rest_of_the_device() -> None:
    # A request table of 16 GB lies outside the static share, so only the device is too small for it.
    plan = memory_plan(server(max_seq_len_per_req=20_000_004))
    own, fitting = largest_pool(plan, static_only=True), pool_of(plan)
    assert isinstance(own, PoolAnswer)
    assert (own.limit, fitting.limit) == ("static", "device")
    assert own.slots > fitting.slots
