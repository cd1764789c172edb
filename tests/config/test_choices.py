from __future__ import annotations

import pytest
from hypothesis import given, settings

from kvcanary.config.choices import CHOSEN_FIELDS, choose_missing
from kvcanary.config.memory import memory_plan
from kvcanary.config.settings import Settings
from kvcanary.config.solve import PoolAnswer, largest_pool
from kvcanary.units import MIB
from tests.config.plans import server, servers

BARE = dict.fromkeys(("mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs"))


def test_a_bare_command_is_completed_in_the_engines_order() -> None:
    given_settings = server(**BARE, device_memory_bytes=81_559 * MIB, max_seq_len_per_req=40_964)
    filled, derived, open_fields = choose_missing(given_settings, CHOSEN_FIELDS)
    assert [entry.field for entry in derived] == list(CHOSEN_FIELDS)
    assert open_fields == ()
    # By hand: 81 559 MiB lie in the tier of 8192 and 256, and 512 + 12 288 + 512 + 128 MiB are kept free.
    assert (filled.batch.chunked_prefill_size, filled.batch.cuda_graph_max_bs, filled.batch.max_prefill_tokens) == (8192, 256, 16384)
    assert filled.memory.mem_fraction_static == round((81_559 - (512 + 12_288 + 512 + 128)) / 81_559, 3)
    answer = largest_pool(memory_plan(filled), static_only=True)
    assert isinstance(answer, PoolAnswer)
    assert filled.pool.pool_slot_count == answer.slots
    assert filled.pool.req_to_token_pool_size == max(2048, min(4096, int(answer.slots / 40_960 * 512)))


def test_the_engine_fills_its_static_share_even_where_the_device_is_too_small_for_the_rest() -> None:
    # A request table of 16 GB lies outside the static share.
    large = server(max_seq_len_per_req=20_000_004)
    filled, _, _ = choose_missing(large, ["pool_slot_count"])
    fitting = largest_pool(memory_plan(large))
    assert isinstance(fitting, PoolAnswer)
    assert filled.pool.pool_slot_count > fitting.slots


def test_only_what_is_missing_is_chosen() -> None:
    filled, derived, _ = choose_missing(server(), ["max_prefill_tokens", "page_size"])
    assert [entry.field for entry in derived] == ["max_prefill_tokens"]
    assert filled == server(max_prefill_tokens=16384)


def test_without_the_device_its_choices_stay_open() -> None:
    filled, derived, open_fields = choose_missing(server(**BARE, device_memory_bytes=None), CHOSEN_FIELDS)
    assert [entry.field for entry in derived] == ["max_prefill_tokens"]
    assert {entry.field for entry in open_fields} == set(CHOSEN_FIELDS) - {"max_prefill_tokens"}
    assert filled.memory.mem_fraction_static is None


def test_a_device_below_the_reserve_is_said_and_not_guessed() -> None:
    _, _, open_fields = choose_missing(server(**BARE, device_memory_bytes=2000 * MIB), ["mem_fraction_static"])
    assert "device_memory_bytes must exceed" in open_fields[0].text


def test_a_pool_that_cannot_be_planned_says_why_under_its_own_name() -> None:
    _, derived, open_fields = choose_missing(server(tp_size=5), ["pool_slot_count"])
    assert (derived, open_fields[0].field) == ((), "pool_slot_count")
    assert "cannot be cut or replicated" in open_fields[0].text


@pytest.mark.parametrize("change", [{"max_seq_len_per_req": 3}, {"dp_size": 0}])
def test_a_row_without_a_context_gives_no_request_limit(change: dict[str, int]) -> None:
    _, derived, open_fields = choose_missing(server(**change), ["req_to_token_pool_size"])
    assert (derived, open_fields[0].field) == ((), "req_to_token_pool_size")


@settings(deadline=None, max_examples=30)
@given(servers)
def test_choosing_twice_chooses_the_same(settings: Settings) -> None:
    # Sized after capture, the pool also pays for the request table, which is chosen after it.
    settings = settings.replace(post_capture_kv_sizing=False)
    once, derived, _ = choose_missing(settings, CHOSEN_FIELDS)
    again, second, _ = choose_missing(once, CHOSEN_FIELDS)
    assert again == once
    assert [entry.value for entry in second] == [entry.value for entry in derived]
