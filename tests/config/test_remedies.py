from __future__ import annotations

from hypothesis import assume, given, settings

from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.remedies import CanaryCost, canary_cost, fraction_for_one_request, remedies
from kvcanary.config.settings import Settings
from kvcanary.config.solve import FractionAnswer, PoolAnswer, largest_pool, smallest_fraction, within_budget
from tests.config.plans import WINDOW, server, servers


def pool_slots(plan: MemoryPlan) -> int:
    answer = largest_pool(plan)
    assert isinstance(answer, PoolAnswer), answer
    return answer.slots


def costs_of(plan: MemoryPlan) -> tuple[CanaryCost, ...]:
    answer = canary_cost(plan)
    assert not isinstance(answer, Unknown), answer
    return answer


def test_slots_lost_by_mode() -> None:
    plan = memory_plan(server())
    off, on, tokens = costs_of(plan)
    assert (off.lost_slots, off.canary_bytes, off.lost_fraction) == (0, 0, 0.0)
    assert 0 < on.lost_slots < tokens.lost_slots
    assert tokens.canary_bytes - on.canary_bytes == 4 * 201 * 20_004
    # A slot costs its KV plus 128 bytes of canary and 96 of workspace; the pool without the canary pays for both.
    slot, fixed = 24 * 6 * 192 * 2, on.canary_bytes - 150_000 * 224
    assert on.slots_with == (150_000 * slot - fixed) // (slot + 224)
    assert on.text.startswith("canary costs 0.4")
    assert "150\u202f000 ->" in on.text


@settings(deadline=None, max_examples=40)
@given(servers)
def test_a_pool_that_pays_for_its_canary_takes_no_more_than_before(settings: Settings) -> None:
    plan = memory_plan(settings)
    answer = canary_cost(plan)
    assume(not isinstance(answer, Unknown))
    assert not isinstance(answer, Unknown)
    without = memory_plan(settings.replace(mode="none")).known_bytes
    on = answer[1]
    base = settings.replace(mode="log", verify_token_assert=False)
    if on.slots_with and memory_plan(base).canary_bytes:
        assert memory_plan(base.replace(pool_slot_count=on.slots_with)).known_bytes <= without
    assert on.slots_with <= on.slots_without


def test_cost_of_an_unknown_model_is_unknown() -> None:
    answer = canary_cost(memory_plan(server(num_layers=None)))
    assert isinstance(answer, Unknown)
    open_window = {**WINDOW, "swa_num_layers": None}
    assert isinstance(canary_cost(memory_plan(server(**open_window))), Unknown)


@settings(deadline=None, max_examples=40)
@given(servers)
def test_every_remedy_makes_the_plan_fit(settings: Settings) -> None:
    plan = memory_plan(settings)
    fixes = remedies(plan)
    if within_budget(plan):
        assert fixes == ()
    for fix in fixes:
        assert within_budget(memory_plan(settings.replace(**{fix.field: fix.value}))), fix
        assert fix.text


def test_remedies_of_a_pool_that_is_a_little_too_large() -> None:
    slots = pool_slots(memory_plan(server(mem_fraction_static=0.999)))
    plan = memory_plan(server(mem_fraction_static=None, pool_slot_count=slots + 50))
    found = {fix.field: fix for fix in remedies(plan)}
    assert set(found) == {"pool_slot_count", "mode", "kv_dtype", "req_to_token_pool_size"}
    assert found["pool_slot_count"].value == slots
    assert found["pool_slot_count"].flag == f"--max-total-tokens {slots}"
    assert found["mode"].flag == "--kv-canary none"


def test_fraction_is_a_remedy_for_a_share_that_is_too_small() -> None:
    found = {fix.field: fix for fix in remedies(memory_plan(server(mem_fraction_static=0.5)))}
    answer = smallest_fraction(memory_plan(server()))
    assert isinstance(answer, FractionAnswer)
    assert found["mem_fraction_static"].value == answer.fraction


def test_a_fraction_that_holds_the_weights_and_one_request() -> None:
    plan = memory_plan(server(pool_slot_count=0, page_size=64))
    answer = fraction_for_one_request(plan)
    assert isinstance(answer, FractionAnswer)
    fraction = answer.fraction
    assert fraction is not None
    slots = -(-20_004 // 64) * 64
    assert within_budget(memory_plan(server(pool_slot_count=slots, page_size=64, mem_fraction_static=fraction)))
    assert not within_budget(memory_plan(server(pool_slot_count=slots, page_size=64, mem_fraction_static=round(fraction - 0.001, 3))))
    open_answer = fraction_for_one_request(memory_plan(server(weight_bytes=None)))
    assert isinstance(open_answer, Unknown)
    assert open_answer.field == "weight_bytes"
    too_large = fraction_for_one_request(memory_plan(server(weight_bytes=60 << 30)))
    assert isinstance(too_large, FractionAnswer)
    assert too_large.fraction is None
