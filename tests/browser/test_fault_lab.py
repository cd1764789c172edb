"""The Fault lab in a real browser: run a campaign, open a cell of the matrix, step through the run, open a slot, go back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from kvcanary.charts.theme import ThemeName

pytestmark = pytest.mark.browser


def at_rest(page: Page) -> None:
    """Wait until nothing is drawn anew: a click before that hits something that is about to be replaced."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()


def with_a_campaign(page: Page, server: str) -> None:
    """Open the page; run two faults instead of twelve, so that the campaign is over in seconds, unless one has run."""
    page.goto(f"{server}/fault_lab")
    answer = page.get_by_text("of the injected faults").first
    none = page.get_by_text("No campaign has run yet")
    expect(answer.or_(none)).to_be_visible()
    if none.is_visible():
        page.get_by_text("Faults and configurations").click()
        faults = page.get_by_test_id("stMultiSelect").filter(has_text="Faults").first
        faults.locator("[aria-label='Clear all']").click()
        for name in ("payload_bytes.bit_flip", "late_write_after_free.with_records"):
            faults.locator("input").fill(name)
            page.get_by_role("option", name=name).click()
        page.keyboard.press("Escape")
        expect(page.get_by_text(re.compile("^36 runs"))).to_be_visible()
        page.get_by_role("button", name="Run", exact=False).first.click()
    expect(answer).to_be_visible(timeout=120_000)
    at_rest(page)


def test_from_matrix_to_cell_to_replay_to_slot_and_back(page: Page, server: str) -> None:
    with_a_campaign(page, server)
    # The second column is "partial": the chain alone sees nothing of a flipped bit.
    column = page.locator("[class*=st-key-matrix] .js-plotly-plot .barlayer .trace").nth(1)
    expect(column.locator(".point")).to_have_count(2)
    cell = column.locator(".point", has_text="100 %").first
    cell.click(force=True)
    card = page.get_by_test_id("replay-card")
    expect(card).to_contain_text("corrupted", ignore_case=True)
    expect(page.get_by_test_id("chain-strip")).to_be_visible()
    expect(page.locator("pre", has_text="kv_canary violation: launch_tag=").first).to_be_visible()
    assert "fault=" in page.url
    assert "config=" in page.url

    at_rest(page)
    slider = page.get_by_role("slider", name="Step")
    fault_step = int(slider.get_attribute("aria-valuetext") or "")
    page.keyboard.press("l")
    expect(slider).to_have_attribute("aria-valuetext", str(fault_step + 1))
    at_rest(page)
    page.keyboard.press("j")
    expect(slider).to_have_attribute("aria-valuetext", str(fault_step))
    at_rest(page)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", str(fault_step - 1))
    expect(page.get_by_text("Nothing was reported in this step.")).to_be_visible()

    at_rest(page)
    point = page.locator("[class*=st-key-pool] .js-plotly-plot .scatterlayer .trace").first.locator(".point").nth(5)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(card).to_contain_text("Slot 5 ")
    expect(page).to_have_url(re.compile("slot=5"))

    at_rest(page)
    page.get_by_role("button", name="Play").click()
    expect(slider).not_to_have_attribute("aria-valuetext", str(fault_step - 1))
    page.get_by_role("button", name="Matrix").click()
    expect(page.locator("[class*=st-key-matrix] .js-plotly-plot .barlayer .point").first).to_be_visible()
    assert "fault=" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["", "&fault=payload_bytes.bit_flip&config=partial"])
def test_a_phone_sees_no_sideways_scrolling_and_nothing_is_fetched_elsewhere(page: Page, server: str, scheme: ThemeName, view: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    with_a_campaign(page, server)
    page.goto(f"{server}/fault_lab?{view}")
    expect(page.get_by_test_id("replay-card") if view else page.get_by_text("of the injected faults").first).to_be_visible()
    at_rest(page)
    main = "document.querySelector('[data-testid=stMain]')"
    assert page.evaluate(f"{main}.scrollWidth - {main}.clientWidth") <= 0
    assert [url for url in asked if not url.startswith((server, "data:", "blob:")) and "127.0.0.1" not in url] == []
