"""Runs in a browser: list, compare, report; note, label, delete and undo; clone into Plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.servers import run_server
from tests.stored_runs import points, store_run

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=alert(1)> **bold**"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("kvcanary-home")
    store_run(found, 1, measured=points(), map_slots=4096, sentence=NASTY)
    store_run(found, 2, measured=points(1.4, seed=2), map_slots=4096)
    store_run(found, 3, kind="plan")
    return found


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with run_server(home) as address:
        yield address


def pick_row(page: Page, number: int) -> None:
    """Click the box before a row of the table, which is a canvas; rows are 35 pixels high below a head of 36."""
    canvas = page.get_by_test_id("stDataFrame").locator("canvas").first
    expect(canvas).to_be_visible()
    canvas.click(position={"x": 18, "y": 36 + 35 * number + 17}, force=True)


def test_list_to_compare_to_a_report_that_needs_no_network(page: Page, url: str, browser: Browser, tmp_path: Path) -> None:
    page.goto(f"{url}/runs")
    expect(page.get_by_text("3 runs fit.")).to_be_visible()
    pick_row(page, 1)
    expect(page.get_by_role("heading", name="Benchmark of")).to_be_visible()
    pick_row(page, 2)
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()
    assert page.url.endswith("run=20260102-101112-benchmark-00000001%2C20260103-101112-benchmark-00000002")
    expect(page.get_by_text("9 slower")).to_be_visible()
    headings = ["2 runs compared", "What differs", "Ratios", "Throughput", "Slot maps"]
    expect(page.get_by_test_id("stMain").locator("h3")).to_have_text(headings)
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    context = browser.new_context()
    context.set_offline(True)
    report = context.new_page()
    asked: list[str] = []
    report.on("request", lambda request: asked.append(request.url))
    report.goto(file.as_uri())
    report.wait_for_selector("body[data-drawn=yes]", timeout=30_000)
    assert report.locator("h2").all_inner_texts() == headings[1:]
    assert report.locator("figure .main-svg").count() >= 5
    assert asked == [file.as_uri()]
    context.close()


def test_a_link_opens_a_run_and_its_sentence_stays_text(page: Page, url: str) -> None:
    page.goto(f"{url}/runs?run=20260102-101112-benchmark-00000001")
    expect(page.get_by_role("status").filter(has_text=NASTY)).to_be_visible()
    assert page.get_by_test_id("stMain").locator("img").count() == 0
    page.goto(f"{url}/runs?run=no-such-run")
    expect(page.get_by_text(re.compile("no run 'no-such-run'"))).to_be_visible()


def test_a_note_and_a_label_are_kept_and_found(page: Page, url: str) -> None:
    page.goto(f"{url}/runs?run=20260103-101112-benchmark-00000002")
    page.get_by_label("Note", exact=True).fill("after the update")
    page.get_by_label("Note", exact=True).press("Enter")
    labels = page.get_by_test_id("stMultiSelect").get_by_role("combobox")
    labels.fill("nightly")
    labels.press("Enter")
    expect(page.get_by_test_id("stMultiSelect").get_by_text("nightly")).to_be_visible()
    page.goto(f"{url}/runs")
    page.get_by_role("combobox", name="Label").click()
    page.get_by_role("option", name="nightly").click()
    expect(page.get_by_text("1 run fits.")).to_be_visible()
    # The table is drawn after the count.
    expect(page.get_by_test_id("stDataFrame").locator("canvas").first).to_have_attribute("height", "71")
    pick_row(page, 0)
    expect(page.get_by_label("Note", exact=True)).to_have_value("after the update")


def test_delete_and_undo(page: Page, url: str) -> None:
    page.goto(f"{url}/runs?run=20260104-101112-plan-00000003")
    page.locator(".st-key-runs-delete button").click()
    expect(page.get_by_text("2 runs fit.")).to_be_visible()
    page.locator(".st-key-runs-undo button").click()
    expect(page.get_by_text("3 runs fit.")).to_be_visible()


def test_clone_into_plan(page: Page, url: str) -> None:
    page.goto(f"{url}/runs?run=20260102-101112-benchmark-00000001")
    page.get_by_test_id("stPageLink-NavLink").filter(has_text="Clone into Plan").click()
    expect(page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
    expect(page.locator(".st-key-field-pool_slot_count input")).to_have_value("4096")
    expect(page.locator(".st-key-field-model input")).to_have_value("small-model")
