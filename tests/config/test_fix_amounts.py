"""Amounts for fixes that an error message leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.config.findings import Fix
from kvcanary.config.fix_amounts import with_amount
from kvcanary.config.memory import memory_plan
from kvcanary.config.remedies import fraction_for_one_request
from kvcanary.config.settings import Settings
from kvcanary.config.solve import FractionAnswer
from kvcanary.importers.amounts import missing_fraction
from kvcanary.importers.detect import read_text
from kvcanary.importers.error_entries import towards
from tests.config.plans import server

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 50.00 GiB of which 1.50 GiB is free"
RAISE = towards("mem_fraction_static", "--mem-fraction-static", "raise")


@pytest.mark.parametrize(
    ("field", "flag", "verb", "was", "value", "text"),
    [
        ("cuda_graph_max_bs", "--cuda-graph-max-bs-decode", "lower", 48, 24, "set --cuda-graph-max-bs-decode to 24, half of 48"),
        (
            "chunked_prefill_size",
            "--chunked-prefill-size",
            "lower",
            6144,
            3072,
            "set --chunked-prefill-size to 3\u202f072, half of 6\u202f144",
        ),
        ("max_running_requests", "--max-running-requests", "lower", 50, 25, "set --max-running-requests to 25, half of 50"),
        ("tp_size", "--tp-size", "raise", 3, 6, "set --tp-size to 6, twice 3"),
    ],
)
def test_a_size_is_halved_or_doubled_from_what_failed(field: str, flag: str, verb: str, was: int, value: int, text: str) -> None:
    found = with_amount(towards(field, flag, verb), Settings(), {field: was})
    assert found == Fix(field=field, value=value, flag=f"{flag} {value}", text=text)


@pytest.mark.parametrize(("field", "was"), [("cuda_graph_max_bs", 1), ("cuda_graph_max_bs", None), ("chunked_prefill_size", -1)])
def test_what_cannot_be_halved_stays_a_direction(field: str, was: int | None) -> None:
    fix = towards(field, "--flag", "lower")
    assert with_amount(fix, Settings(), {field: was}) is fix


@pytest.mark.parametrize(
    ("stated", "value", "flag", "text"),
    [
        ({"chunked_prefill_size": 1088, "page_size": 64}, 512, 512, "at most half of 1\u202f088"),
        # Under DP attention the field is one rank's chunk and the flag that of all ranks.
        (
            {"chunked_prefill_size": 1500, "dp_size": 4, "enable_dp_attention": True, "global_chunked_prefill_size": 6003},
            750,
            3000,
            "at most half of 6\u202f003",
        ),
        ({"chunked_prefill_size": 1024, "dp_size": 8, "enable_dp_attention": True}, 512, 4096, "half of 8\u202f192"),
        ({"chunked_prefill_size": 1024, "dp_size": 8, "enable_dp_attention": False}, 512, 512, "half of 1\u202f024"),
    ],
)
def test_half_a_chunk_is_whole_pages_and_its_flag_is_over_all_ranks(stated: dict[str, Any], value: int, flag: int, text: str) -> None:
    found = with_amount(towards("chunked_prefill_size", "--chunked-prefill-size", "lower"), Settings(), stated)
    assert (found.value, found.flag) == (value, f"--chunked-prefill-size {flag}")
    assert found.text.endswith(f", {text}")


def test_ranks_that_are_none_are_not_doubled() -> None:
    fix = towards("tp_size", "--tp-size", "raise")
    assert with_amount(fix, Settings(), {"tp_size": -1}) is fix


def test_half_a_chunk_of_less_than_a_page_is_none() -> None:
    fix = towards("chunked_prefill_size", "--chunked-prefill-size", "lower")
    assert with_amount(fix, Settings(), {"chunked_prefill_size": 64, "page_size": 64}) is fix


def test_the_fraction_goes_down_by_what_was_missing() -> None:
    missing = missing_fraction(read_text(OOM).observed)
    assert missing == pytest.approx(0.03)  # (3.0 - 1.5) / 50
    fix = towards("mem_fraction_static", "--mem-fraction-static", "lower")
    found = with_amount(fix, Settings(), {"mem_fraction_static": 0.9}, missing)
    assert (found.value, found.flag, found.amount_known) == (0.87, "--mem-fraction-static 0.87", True)
    unstated = with_amount(fix, Settings(), {}, missing)
    assert not unstated.amount_known
    assert unstated.text.startswith("lower --mem-fraction-static by at least 0.03")
    assert with_amount(fix, Settings(), {"mem_fraction_static": 0.9}, None) is fix


@pytest.mark.parametrize("was", [7.2, 1.0, 0.0, -0.5])
def test_a_fraction_that_is_none_is_taken_as_not_stated(was: float) -> None:
    for fix, settings in ((RAISE, server()), (towards("mem_fraction_static", "--mem-fraction-static", "lower"), Settings())):
        assert with_amount(fix, settings, {"mem_fraction_static": was}, 0.03) == with_amount(fix, settings, {}, 0.03)


def test_a_cap_that_may_hold_the_pool_is_named() -> None:
    fix = towards("mem_fraction_static", "--mem-fraction-static", "lower")
    found = with_amount(fix, Settings(), {"mem_fraction_static": 0.9, "max_total_tokens": 7000}, 0.03)
    assert found.value == 0.87
    assert found.text.endswith("; where --max-total-tokens 7000 holds the pool below the share, lower that instead")


def test_a_fraction_below_what_was_missing_says_that_it_alone_does_not_help() -> None:
    fix = towards("mem_fraction_static", "--mem-fraction-static", "lower")
    found = with_amount(fix, Settings(), {"mem_fraction_static": 0.4}, 0.5)
    assert (found.value, found.amount_known) == (None, False)
    assert found.text == "lower --mem-fraction-static from 0.4; that alone does not help: 0.500 of the memory was missing"


def test_an_allocation_that_would_have_fitted_tells_no_amount() -> None:
    assert missing_fraction(read_text(OOM.replace("1.50 GiB", "4.50 GiB")).observed) is None
    assert missing_fraction({}) is None
    assert missing_fraction(read_text(OOM.replace("50.00 GiB", "0.00 GiB")).observed) is None, "of nothing there is no share"
    assert missing_fraction({"oom": read_text(OOM).observed["oom"]}) is None, "nothing tells what it is a share of"


def test_a_fraction_to_raise_is_what_weights_and_one_request_need() -> None:
    answer = fraction_for_one_request(memory_plan(server()))
    assert isinstance(answer, FractionAnswer)
    found = with_amount(RAISE, server(), {"mem_fraction_static": 0.2})
    assert found == Fix(
        field="mem_fraction_static",
        value=answer.fraction,
        flag=f"--mem-fraction-static {answer.fraction}",
        text=f"set --mem-fraction-static to {answer.fraction}: weights and one request",
    )


def test_a_fraction_is_never_raised_to_what_failed_or_less() -> None:
    answer = fraction_for_one_request(memory_plan(server()))
    assert isinstance(answer, FractionAnswer)
    for failed in (answer.fraction, 0.97):
        found = with_amount(RAISE, server(), {"mem_fraction_static": failed})
        assert (found.value, found.flag, found.amount_known) == (None, "--mem-fraction-static", False)
        assert found.text.startswith(f"raise --mem-fraction-static above {failed}: weights and one request alone would do with")


def test_a_fraction_to_raise_names_what_would_tell_it_and_keeps_its_flag() -> None:
    found = with_amount(RAISE, server(weight_bytes=None), {})
    assert (found.amount_known, found.flag) == (False, "--mem-fraction-static")
    assert found.text.startswith("raise --mem-fraction-static: weight_bytes would tell to what (the log line 'Load weight end")


def test_weights_that_no_fraction_holds_say_so() -> None:
    found = with_amount(RAISE, server(weight_bytes=60 << 30), {})
    assert not found.amount_known
    assert found.text.startswith("raise --mem-fraction-static alone does not help: weights and one request do not fit, no fraction below 1")


def test_sizes_that_are_none_are_named() -> None:
    found = with_amount(RAISE, server(page_size=0), {})
    assert found.text == "raise --mem-fraction-static: nothing tells to what while page_size must be at least 1, got 0"


def test_a_share_that_pays_activations_too_gets_no_value_from_the_plan() -> None:
    fix = towards("mem_fraction_static", "--gpu-memory-utilization", "raise")
    assert with_amount(fix, server(), {}) is fix


def test_a_direction_with_a_purpose_keeps_its_words() -> None:
    fix = towards("mem_fraction_static", "--mem-fraction-static", "raise", "for a larger pool")
    assert with_amount(fix, server(), {}) is fix
