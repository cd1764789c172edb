"""The dashboard in a real browser, as an operator uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from kvcanary.charts.theme import ThemeName

pytestmark = pytest.mark.browser

SMALL = "pool_slot_count=20000&req_to_token_pool_size=16&cuda_graph_max_bs=16&max_seq_len_per_req=2048"


def test_a_pages_own_address_works_on_a_fresh_server(page: Page, server: str) -> None:
    page.goto(f"{server}/benchmark?{SMALL}")
    expect(page.get_by_role("heading", name="Benchmark")).to_be_visible()
    expect(page.get_by_text("then one sweep over a pool of 20 000 slots")).to_be_visible()


def test_an_illegal_value_is_explained_while_typing_and_fixed_by_a_click(page: Page, server: str) -> None:
    page.goto(server)
    box = page.get_by_label("KV slots", exact=True)
    box.click()
    box.press("Control+a")
    box.press_sequentially("0")
    sentence = page.locator(".kvc-finding code", has_text="kv-canary: pool_slot_count must be positive, got 0")
    expect(sentence).to_be_visible()
    page.get_by_role("button", name=re.compile("^set pool_slot_count to")).first.click()
    expect(sentence).to_have_count(0)
    expect(page.get_by_label("KV slots", exact=True)).not_to_have_value("0")


def test_an_invalid_link_keeps_what_it_says(page: Page, server: str) -> None:
    page.goto(f"{server}/?pool_slot_count=12.5&mode=sometimes")
    expect(page.get_by_label("KV slots", exact=True)).to_have_value("12.5")
    expect(page.locator(".kvc-finding code", has_text="mode must be one of none/log/raise, got 'sometimes'")).to_be_visible()
    page.reload()
    expect(page.get_by_label("KV slots", exact=True)).to_have_value("12.5")


def test_a_quick_run_from_button_to_slot_card(page: Page, server: str, tmp_path: Path) -> None:
    page.goto(f"{server}/?{SMALL}")
    page.get_by_role("link", name="Benchmark").click()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("the gate held (6 checks)")).to_be_visible(timeout=90_000)
    chart = page.locator("[class*=st-key-throughput] .js-plotly-plot .scatterlayer .trace")
    expect(chart.first).to_be_visible()
    expect(page.locator("[class*=st-key-overview] .js-plotly-plot .heatmaplayer image").first).to_be_visible()

    with page.expect_download() as waiting:
        page.get_by_role("button", name="JSON").click()
    saved = tmp_path / "run.json"
    waiting.value.save_as(saved)
    document = json.loads(saved.read_text())
    assert (document["schema"], document["verdict"]) == ("kvcanary.run", "pass")
    bad = document["cards"][0]["slot"]

    mark = page.locator("[class*=st-key-overview] .js-plotly-plot .scatterlayer .trace .point").first
    mark.click(force=True)
    expect(page.get_by_test_id("slot-card")).to_be_visible()
    box = page.get_by_label("Go to slot", exact=True)
    box.fill(str(bad))
    expect(page.get_by_test_id("slot-card")).to_contain_text(re.compile(f"Slot {bad:,}".replace(",", ".")))
    page.reload()
    expect(page.get_by_text("the gate held (6 checks)")).to_be_visible()
    expect(page.get_by_text("bits that differ")).to_be_visible()


def test_a_job_survives_a_reload_and_a_closed_browser_and_can_be_stopped(browser: Browser, page: Page, server: str) -> None:
    page.goto(f"{server}/benchmark?{SMALL}")
    page.get_by_text("long", exact=True).click()
    page.get_by_role("button", name="Run").click()
    stop = page.get_by_test_id("stMain").get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    page.reload()
    expect(stop).to_be_visible()
    page.close()
    later = browser.new_page()
    later.goto(f"{server}/benchmark?{SMALL}")
    stop = later.get_by_test_id("stMain").get_by_role("button", name="Stop")
    stop.click()
    expect(later.get_by_text(re.compile("^Stopped"))).to_be_visible(timeout=30_000)
    expect(stop).to_have_count(0)
    later.close()


@pytest.mark.parametrize("path", ["", "benchmark"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_sees_no_sideways_scrolling(page: Page, server: str, path: str, scheme: ThemeName) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server}/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    wider = page.evaluate(
        "document.querySelector('[data-testid=stMain]').scrollWidth - document.querySelector('[data-testid=stMain]').clientWidth"
    )
    assert wider <= 0


def test_nothing_is_fetched_from_another_host(page: Page, server: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("", "benchmark"):
        page.goto(f"{server}/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_load_state("networkidle")
    foreign = [url for url in asked if not url.startswith((server, "data:", "blob:")) and "127.0.0.1" not in url]
    assert foreign == []
