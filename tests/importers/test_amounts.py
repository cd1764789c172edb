"""The document of an error's fixes: amounts as numbers, with their units."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.importers.detect import read_text

ARGUMENTS = "[2031-02-03 04:05:00] server_args=ServerArgs(model_path='/m/w', mem_fraction_static={})\n"
SERVING = ARGUMENTS.replace(", mem", ", page_size=64, tp_size=8, dp_size=4, enable_dp_attention=True, chunked_prefill_size=2048, mem")
LOADED = "[2031-02-03 04:05:02 TP0] Load weight end. type=W, avail mem=30.00 GB, mem usage=10.00 GB.\n"
DECODING = "[2031-02-03 04:05:09 TP0] Decode batch, #running-req: 3, #token: 900, token usage: 0.30\n"
CAPTURING = "[2031-02-03 04:05:09 TP0] Capture cuda graph begin.\nCapturing batches (bs=48 avail_mem=0.50 GB)\n"
OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 40.00 GiB of which 0.50 GiB is free.\n"
LONG = "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens)"


def fixes(text: str) -> list[dict[str, Any]]:
    [entry] = read_text(text).to_dict()["explanations"]
    found: list[dict[str, Any]] = entry["fixes"]
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # (1.5 - 0.5) / 40 was missing.
        (ARGUMENTS.format(0.9) + LOADED + OUT, [{"value_fraction": 0.87, "missing_fraction": 0.025}]),
        (LOADED + OUT, [{"lower_by_fraction": 0.03, "missing_fraction": 0.025}]),
        (ARGUMENTS.format(0.02) + LOADED + OUT, [{"missing_fraction": 0.025}]),
        (ARGUMENTS.format(0.9) + LOADED + OUT.replace("0.50 GiB", "2.50 GiB"), [{}]),
        (
            SERVING.format(0.9) + LOADED + DECODING + OUT,
            [{"value_tokens": 1024, "flag_tokens": 4096}, {"value_fraction": 0.87, "missing_fraction": 0.025}],
        ),
        (
            ARGUMENTS.format(0.9) + LOADED + CAPTURING + OUT,
            [{"value_requests": 24}, {"value_fraction": 0.87, "missing_fraction": 0.025}],
        ),
        (LONG, [{"value_slots": 5007}, {"value_tokens": 5011, "flag_tokens": 5007}]),
        ("RuntimeError: max_total_tokens=9000 is larger than the profiled value -77.", [{}]),
    ],
)
def test_amounts_are_numbers_with_units(text: str, wanted: list[dict[str, Any]]) -> None:
    assert [fix["amounts"] for fix in fixes(text)] == wanted


def test_the_document_says_what_is_printed() -> None:
    [fix] = fixes(ARGUMENTS.format(0.9) + LOADED + OUT)
    assert (fix["field"], fix["value"], fix["flag"], fix["amount_known"]) == (
        "mem_fraction_static",
        0.87,
        "--mem-fraction-static 0.87",
        True,
    )
    assert fix["text"] == "set --mem-fraction-static to 0.87 or less: 0.025 of the memory was missing"
