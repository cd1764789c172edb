"""The Plan page in a real browser: paste what operators have, see it filled with its sources, take it back, fix what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

COMMAND = """docker run --gpus all --shm-size 32g -e SGLANG_KV_CANARY_RING_CAPACITY=4096 engine:latest \\
  python3 -m sglang.launch_server --model-path org/teal-14b --tp 2 --context-length 24k \\
  --max-running-requests 48 --page-size 32 --kv-canary raise --kv-canary-real-data=partial
"""
ERROR = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, moe_ep_rank, pp_rank, dp_rank)
  File "/opt/venv/lib/python3.12/site-packages/sglang/srt/kv_canary/capacities.py", line 77, in from_args
    raise ValueError(f"kv-canary: pool_slot_count must be positive, got {pool_slot_count}")
ValueError: kv-canary: pool_slot_count must be positive, got 0
"""
LOG = """[2026-10-02 06:10:41] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=52.30 GB, mem usage=26.20 GB.
[2026-10-02 06:10:42] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 240000, K size: 18.31 GB, V size: 18.31 GB
[2026-10-02 06:10:55] max_total_num_tokens=240000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, \
context_len=24576, available_gpu_mem=14.00 GB
"""


def open_plan(page: Page, address: str) -> None:
    page.goto(address)
    # The first page of a server draws while everything is still being loaded.
    expect(page.locator(".kvc-capacities")).to_be_visible(timeout=120_000)


def paste(page: Page, server: str, text: str) -> None:
    open_plan(page, server)
    page.get_by_label("Paste anything").fill(text)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator(".st-key-import_report")).to_be_visible()


def line_of(page: Page, name: str) -> Locator:
    """The line of text under a field."""
    block = page.locator("[data-testid=stVerticalBlock]").filter(has=page.locator(f".st-key-field-{name}"))
    return block.last.locator(".kvc-line")


def test_a_command_fills_fields_with_their_sources_and_is_taken_back(page: Page, server: str) -> None:
    paste(page, server, COMMAND)
    expect(page.get_by_text("sglang launch command")).to_be_visible()
    expect(page.get_by_label("Page size", exact=True)).to_have_value("32")
    for label, value in (("Ring rows", "4096"), ("Tensor-parallel ranks", "2"), ("Tokens per request", "24004")):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    expect(line_of(page, "page_size")).to_have_attribute("title", "from --page-size, line 3")
    expect(line_of(page, "ring_capacity")).to_have_attribute("title", re.compile("SGLANG_KV_CANARY_RING_CAPACITY"))
    expect(line_of(page, "pool_slot_count")).to_have_attribute("title", "--max-total-tokens")
    page.get_by_role("button", name="Undo import").click()
    expect(page.get_by_label("Page size", exact=True)).to_have_value("1")
    expect(page.locator(".st-key-import_report")).to_have_count(0)
    expect(line_of(page, "page_size")).to_have_attribute("title", "--page-size")
    # For a moment the page holds the old box beside the new one.
    expect(page.get_by_label("Paste anything")).to_have_count(1)
    expect(page.get_by_label("Paste anything")).to_have_value(COMMAND)


def test_the_error_of_an_empty_pool_is_explained_and_its_fix_gives_a_plan_that_starts(page: Page, server: str) -> None:
    paste(page, server, ERROR)
    report = page.locator(".st-key-import_report")
    expect(report.locator("code", has_text="kv-canary: pool_slot_count must be positive, got 0")).to_be_visible()
    causes = report.locator("ol.kvc-causes li")
    expect(causes.first).to_contain_text("--mem-fraction-static has to go up")
    assert causes.count() >= 2
    verdict = page.locator(".kvc-verdict")
    expect(verdict).to_contain_text("Will not start")
    expect(page.get_by_label("KV slots", exact=True)).to_have_value("0")
    page.get_by_role("button", name=re.compile("^set pool_slot_count to .* room for one request")).click()
    expect(verdict).to_contain_text("Starts")
    expect(page.get_by_label("KV slots", exact=True)).to_have_value("32768")


def test_a_log_opens_beside_the_plan_and_a_wrong_model_is_unexplained(page: Page, server: str) -> None:
    paste(page, server, LOG)
    table = page.locator(".kvc-plan-table")
    expect(table).to_contain_text("KV bytes per token")
    expect(table.get_by_text("unexplained")).to_have_count(0)
    for label, name, value in (("Layers", "num_layers", "40"), ("KV heads", "num_kv_heads", "4"), ("Head size (K)", "head_dim", "128")):
        page.get_by_label(label, exact=True).fill(value)
        # The address holds what the server has taken over.
        expect(page).to_have_url(re.compile(f"{name}={value}"))
    expect(table).to_contain_text("K bytes per token")
    expect(table.get_by_text("unexplained").first).to_be_visible()


def settled(page: Page, places: Callable[[], list[float]]) -> list[float]:
    """Where things stand once they have stood still for half a second: fonts and charts come later than the text."""
    seen = [places()]
    while len(seen) < 100 and (len(seen) < 6 or len({tuple(place) for place in seen[-6:]}) > 1):
        page.wait_for_timeout(100)
        seen.append(places())
    return seen[-1]


def test_nothing_moves_while_a_value_becomes_illegal_and_legal_again(page: Page, server: str) -> None:
    open_plan(
        page, f"{server}/?num_layers=30&num_kv_heads=4&head_dim=112&model_dtype=bfloat16&device_memory_bytes=47000MiB&weight_bytes=18GiB"
    )
    box = page.get_by_label("Prefill budget", exact=True)
    expect(page.locator(".st-key-memory_bar .js-plotly-plot")).to_be_visible()

    def places() -> list[float]:
        return [
            float(page.locator(place).first.evaluate("element => element.getBoundingClientRect().top"))
            for place in (".st-key-field-ring_capacity", ".st-key-findings", ".st-key-field-chunked_prefill_size")
        ]

    before = settled(page, places)
    box.fill("")
    expect(page.locator(".kvc-finding code", has_text="max_prefill_tokens must not be empty")).to_be_visible()
    assert settled(page, places) == before
    box.fill("16384")
    expect(page.locator(".kvc-finding code", has_text="max_prefill_tokens must not be empty")).to_have_count(0)
    assert settled(page, places) == before


def test_the_overflow_forecast_follows_its_inputs(page: Page, server: str) -> None:
    open_plan(page, f"{server}/?pool_slot_count=200000&req_to_token_pool_size=200&max_seq_len_per_req=100004")
    page.get_by_role("radio", name="Overflow").click()
    expect(page.get_by_text("Verified: rows are")).to_be_visible()
    page.get_by_label("Shared prefix", exact=True).fill("90000")
    expect(page.get_by_text("Not verified: rows are")).to_be_visible()
    page.reload()
    expect(page.get_by_text("skipped from this many requests")).to_have_count(0)
