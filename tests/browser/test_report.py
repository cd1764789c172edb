"""A report in a browser that has no network: figures are drawn, nothing is asked for, and foreign text does nothing."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest
from playwright.sync_api import Browser, Page

from kvcanary.charts.report import Picture, Section, Table, report_html
from kvcanary.charts.theme import ThemeName

pytestmark = pytest.mark.browser
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 25)"}
NASTY = "<img src=http://203.0.113.9/x onerror='window.hit = 1'><script>window.hit = 2</script>"

# On how many lines the text of an element stands.
LINES = """element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getClientRects().length;
}"""


def drawn(theme: ThemeName) -> go.Figure:
    color = "#0b62a8" if theme == "light" else "#6cb2f0"
    label = f"<a href='javascript:window.hit=3'>{NASTY}</a>"
    return go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name=label, marker={"color": color}), layout={"showlegend": True, "title": label})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_with_the_network_off(browser: Browser, tmp_path: Path, scheme: ThemeName) -> None:
    wide = Table(head=("slots",) * 30, rows=(("contiguous",) * 30,))
    section = Section(heading=NASTY, tables=(Table(head=("what",), rows=((NASTY,),)), wide), pictures=(Picture(draw=drawn, alt=NASTY),))
    file = tmp_path / "report.html"
    file.write_text(report_html(NASTY, (section,)), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    context.set_offline(True)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-drawn=yes]", timeout=30_000)
    assert page.locator("#figure-0 .scatterlayer .point").count() == 2
    assert page.locator("#figure-0 a").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUND[scheme]
    assert page.evaluate("window.hit === undefined")
    assert page.locator("td").first.inner_text() == NASTY
    assert page.locator("td").last.evaluate(LINES) == 1
    assert asked == [file.as_uri()]
    assert complaints == []
    context.close()


def marker_color(page: Page) -> str:
    return str(page.locator("#figure-0 .scatterlayer .point").first.evaluate("element => getComputedStyle(element).fill"))


def test_figures_follow_the_theme_and_paper_is_light(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html("x", (Section(heading="x", pictures=(Picture(draw=drawn, alt="x"),)),)), encoding="utf-8")
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-drawn=yes]", timeout=30_000)
    assert marker_color(page) == "rgb(108, 178, 240)"
    for event, color in (("beforeprint", "rgb(11, 98, 168)"), ("afterprint", "rgb(108, 178, 240)")):
        page.evaluate("name => window.dispatchEvent(new Event(name))", event)
        page.wait_for_function(
            "color => getComputedStyle(document.querySelector('#figure-0 .scatterlayer .point')).fill === color", arg=color
        )
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => getComputedStyle(document.querySelector('.scatterlayer .point')).fill === 'rgb(11, 98, 168)'")
    context.close()
