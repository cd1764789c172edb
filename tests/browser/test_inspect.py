"""Inspect in a real browser: upload a log, see the verdict and the map, open a slot, read its lines, take the files away."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kvcanary.charts.theme import ThemeName
from kvcanary.ui.inspect_example import example_log

pytestmark = pytest.mark.browser


def test_from_upload_to_map_to_slot_card_to_download(page: Page, server: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(example_log())
    page.goto(f"{server}/inspect_log")
    expect(page.get_by_text("No log has been read yet")).to_be_visible()
    page.locator("input[type=file]").set_input_files(log)
    expect(page.get_by_text("Fail. 24 violations listed for slot 9\u202f218 (slot 4\u202f105 only echoes it) on TP0, TP1")).to_be_visible()
    expect(page.get_by_text("Wrong mapping or slot reuse").first).to_be_visible()
    expect(page.get_by_test_id("inspect-card")).to_contain_text("Slot 9 218")
    mark = page.locator("[class*=st-key-inspect_map] .js-plotly-plot .scatterlayer .trace .point").first
    mark.click(force=True)
    expect(page.get_by_test_id("inspect-card")).to_contain_text("Slot 4 105")
    expect(page.get_by_test_id("stMain")).to_contain_text("An echo in incident 1: slot 9 218 before it in the chain")
    expect(page.locator("pre", has_text="(kernel_kind=HEAD_K_FULL, slot_idx=4105").first).to_be_visible()
    settled(page)
    saved = download(page, "CSV", tmp_path)
    rows = list(csv.DictReader(saved.open()))
    assert {row["slot_idx"] for row in rows} == {"4105", "9218"}
    assert len(rows) == 24
    report = download(page, "HTML report", tmp_path)
    page.goto(report.as_uri())
    expect(page.get_by_role("heading", name="Likeliest cause: Wrong mapping or slot reuse")).to_be_visible()
    expect(page.locator("#figure-0 .bars .point").first).to_be_visible()


def download(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button, exact=True).click()
    saved = folder / waiting.value.suggested_filename
    waiting.value.save_as(saved)
    return saved


def test_a_click_on_a_cell_filters_every_view_and_the_address_tells(page: Page, server: str) -> None:
    page.goto(f"{server}/inspect_log")
    page.get_by_role("button", name="Load an example").click()
    expect(page.get_by_text("All 24 violations are shown")).to_be_visible()
    settled(page)
    page.locator("[class*=st-key-inspect_matrix-tag] .js-plotly-plot .scatterlayer .point").first.click(force=True)
    expect(page.get_by_text("12 of 24 violations are shown")).to_be_visible()
    page.wait_for_url(re.compile(r"tag=HEAD_K_FULL"))
    expect(page.get_by_test_id("inspect-card")).to_contain_text("6 records")
    settled(page)
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_text("All 24 violations are shown")).to_be_visible()
    assert "tag=" not in page.url


def settled(page: Page) -> None:
    """A click while the page is still being drawn anew would hit something that is about to be replaced."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_sees_no_sideways_scrolling_and_nothing_is_fetched_elsewhere(page: Page, server: str, scheme: ThemeName) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server}/inspect_log")
    page.get_by_role("button", name="Load an example").click()
    expect(page.get_by_test_id("inspect-card")).to_be_visible()
    main = "document.querySelector('[data-testid=stMain]')"
    assert page.evaluate(f"{main}.scrollWidth - {main}.clientWidth") <= 0
    assert [url for url in asked if not url.startswith((server, "data:", "blob:")) and "127.0.0.1" not in url] == []
