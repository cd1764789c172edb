"""Amounts for fixes that an error message leaves open."""

from __future__ import annotations

import pytest

from kvcanary.config.findings import Fix
from kvcanary.config.fix_amounts import with_amount
from kvcanary.config.settings import Settings
from kvcanary.importers.detect import read_text
from kvcanary.importers.error_entries import towards
from kvcanary.importers.error_messages import missing_fraction

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 50.00 GiB of which 1.50 GiB is free"


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


def test_an_allocation_that_would_have_fitted_tells_no_amount() -> None:
    assert missing_fraction(read_text(OOM.replace("1.50 GiB", "4.50 GiB")).observed) is None
    assert missing_fraction({}) is None


def test_a_fraction_to_raise_names_what_would_tell_it_and_keeps_its_flag() -> None:
    found = with_amount(towards("mem_fraction_static", "--gpu-memory-utilization", "raise"), Settings(), {})
    assert not found.amount_known
    assert found.text == "raise --gpu-memory-utilization: fill in Model and Memory below and the value stands here"
