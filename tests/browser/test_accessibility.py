"""axe-core on every page and in every state that a page can be in, light and dark; and the pages by keyboard alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from kvcanary.charts.theme import ThemeName

pytestmark = pytest.mark.browser

AXE = Path(os.environ.get("KVCANARY_AXE") or Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js")
SMALL = "pool_slot_count=20000&req_to_token_pool_size=16&cuda_graph_max_bs=16&max_seq_len_per_req=2048"
# What Streamlit draws by itself and no page can change: rule -> (selector of the only element that is excused, why).
EXCUSED: dict[str, tuple[str, str]] = {}


def plan_with_errors(page: Page, server: str) -> None:
    page.goto(f"{server}/?pool_slot_count=0&mode=sometimes&page_siez=3")
    expect(page.locator(".kvc-finding").first).to_be_visible()


def plan_over_budget(page: Page, server: str) -> None:
    page.goto(
        f"{server}/?pool_slot_count=90000000&num_layers=36&num_kv_heads=8&head_dim=128&device_memory_bytes=85520809984&weight_bytes=16381470720"
    )
    expect(page.locator(".js-plotly-plot").first).to_be_visible()


def plan_after_an_import(page: Page, server: str) -> None:
    page.goto(server)
    page.get_by_label("Paste anything").fill(
        "python -m sglang.launch_server --model-path org/m --page-size 32 --kv-canary raise --no-such-flag 3"
    )
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator(".st-key-import_report")).to_be_visible()


def benchmark_that_cannot_run(page: Page, server: str) -> None:
    page.goto(f"{server}/benchmark?pool_slot_count=0")
    expect(page.locator(".kvc-verdict").first).to_contain_text("Cannot run")


def benchmark_with_a_result(page: Page, server: str) -> None:
    page.goto(f"{server}/benchmark?{SMALL}")
    if page.get_by_text("the gate held (6 checks)").count() == 0:
        page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("the gate held (6 checks)")).to_be_visible(timeout=120_000)
    mark = page.locator("[class*=st-key-overview] .js-plotly-plot .scatterlayer .trace .point").first
    mark.click(force=True)
    expect(page.get_by_test_id("slot-card")).to_be_visible()


def inspect_with_an_example(page: Page, server: str) -> None:
    page.goto(f"{server}/inspect_log")
    page.get_by_role("button", name="example").first.click()
    expect(page.get_by_test_id("inspect-card")).to_be_visible()


def at(path: str) -> Callable[[Page, str], None]:
    def go(page: Page, server: str) -> None:
        page.goto(f"{server}/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()

    return go


STATES: dict[str, Callable[[Page, str], None]] = {
    "plan": at(""),
    "plan with errors": plan_with_errors,
    "plan over budget": plan_over_budget,
    "plan after an import": plan_after_an_import,
    "benchmark that cannot run": benchmark_that_cannot_run,
    "benchmark with a result": benchmark_with_a_result,
    "fault lab": at("fault_lab"),
    "inspect": at("inspect_log"),
    "inspect with an example": inspect_with_an_example,
    "runs": at("runs"),
    "a run that is not there": at("benchmark?run=20200101-000000-benchmark"),
}


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("no axe-core on this machine (npm ci --prefix tests/browser, or KVCANARY_AXE=path of axe.min.js)")
    return AXE.read_text(encoding="utf-8")


def violations(page: Page, axe: str) -> list[str]:
    """Serious and critical ones, each with its rule, its element and what to do."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()
    page.wait_for_load_state("networkidle")
    # A browser that meets the first button loads its code, and shows a grey place until it is there.
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    page.evaluate(axe)
    found: list[dict[str, Any]] = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]}: {node['failureSummary']}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
        if not (
            violation["id"] in EXCUSED
            and page.locator(node["target"][0]).first.evaluate("(e, s) => e.matches(s)", EXCUSED[violation["id"]][0])
        )
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_serious(page: Page, server: str, axe: str, state: str, scheme: ThemeName) -> None:
    page.emulate_media(color_scheme=scheme)
    STATES[state](page, server)
    assert violations(page, axe) == []


def test_axe_would_find_something(page: Page, server: str, axe: str) -> None:
    page.goto(server)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate(
        "document.querySelector('h1').insertAdjacentHTML('afterend', '<img src=\"data:,\"><p style=\"color:#ccc;background:#fff\">pale</p>')"
    )
    found = violations(page, axe)
    assert any(text.startswith("image-alt") for text in found)
    assert any(text.startswith("color-contrast") for text in found)


def focused(page: Page) -> str:
    return str(
        page.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || document.activeElement.tagName"
        )
    )


def test_plan_by_keyboard_from_the_first_tab_to_a_fix(page: Page, server: str) -> None:
    page.goto(f"{server}/?pool_slot_count=0")
    fix = page.get_by_role("button", name="set pool_slot_count to").first
    expect(fix).to_be_visible()
    name = (fix.text_content() or "").strip()
    for _ in range(400):
        page.keyboard.press("Tab")
        if focused(page).strip() == name:
            break
    assert focused(page).strip() == name
    outline = page.evaluate("(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.boxShadow; })()")
    assert outline != "nonenone", "what has the focus can be seen"
    page.keyboard.press("Enter")
    expect(page.get_by_label("KV slots", exact=True)).not_to_have_value("0")


def test_a_slot_card_by_keyboard(page: Page, server: str) -> None:
    benchmark_with_a_result(page, server)
    box = page.get_by_label("Go to slot", exact=True)
    box.focus()
    page.keyboard.type("17")
    expect(page.get_by_test_id("slot-card")).to_contain_text("Slot 17")


@pytest.mark.parametrize("path", ["", "benchmark", "fault_lab", "inspect_log", "runs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_sees_no_sideways_scrolling(page: Page, server: str, path: str, scheme: ThemeName) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    at(path)(page, server)
    main = "document.querySelector('[data-testid=stMain]')"
    assert page.evaluate(f"{main}.scrollWidth - {main}.clientWidth") <= 0
