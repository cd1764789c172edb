"""What a browser makes of text that others wrote: it shows exactly this text, and makes no link, picture, colour or formula of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kvcanary.escape import chart_text, html_text, markdown_text, visible
from tests.browser.servers import run_server

pytestmark = pytest.mark.browser

CASES = [
    "**bold** _italic_ `code` ~~gone~~ ~sub~ ^sup^",
    "[link](http://evil.example) ![picture](http://evil.example/p.png)",
    "<img src=x onerror=alert(1)><script>alert(1)</script><b>b</b>",
    "$x^2$ and $$y$$",
    ":red[r] :blue-background[z] :material/check: :smile: :streamlit: :small[q] ::leaf[x]",
    "# head", "- item", "+ item", "1. one", "1) one", "> quote", "- [ ] task", "    code", "a | b", ":::note",
    "http://evil.example www.evil.example a@b.example ftp://evil.example WWW.EVIL.example HTTP://EVIL.example",
    "mailto:a@b.example xmpp:a@b.example https://a.b:80/x_y_z", "[ref]: http://evil.example", "[^1]", "&lt;b&gt; &amp; &#60;",
    "<- -> <-- --> --- >= <= ~= -- <=>", "back\\slash \\* \\", "1986\\. year", "\x1b[31mred \u202eright to left \u200bzero", "=1+1",
    "%{x} %{customdata[0]}", "<a href='javascript:alert(1)'>x</a>",
]  # fmt: skip
SCRIPT = """
import json
import plotly.graph_objects as go
import streamlit as st

for number, case in enumerate(json.load(open({cases!r}))):
    with st.container(key=f"caption-{{number}}-end"):
        st.caption(case["markdown"])
    with st.container(key=f"button-{{number}}-end"):
        st.button(case["markdown"], key=f"b{{number}}")
    with st.container(key=f"html-{{number}}-end"):
        st.html(f'<p class="case" title="{{case["html"]}}">{{case["html"]}}</p>')
names = [case["chart"] for case in json.load(open({cases!r}))]
st.plotly_chart(go.Figure([go.Bar(x=[1], y=[1], name=name) for name in names]).update_layout(showlegend=True, height=1400))
"""


def test_every_sink_shows_the_text_itself(page: Page, tmp_path: Path) -> None:
    cases, script = tmp_path / "cases.json", tmp_path / "script.py"
    cases.write_text(json.dumps([{"markdown": markdown_text(case), "html": html_text(case), "chart": chart_text(case)} for case in CASES]))
    script.write_text(SCRIPT.format(cases=str(cases)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(f"dialog {dialog.message}"))
    with run_server(tmp_path / "home", script=script) as url:
        page.goto(url)
        expect(page.locator(".js-plotly-plot .legendtext")).to_have_count(len(CASES))
        for number, case in enumerate(CASES):
            for kind, inner in (("caption", "[data-testid=stCaptionContainer]"), ("button", "button"), ("html", "p.case")):
                shown = page.locator(f".st-key-{kind}-{number}-end {inner}").first
                text = (shown.text_content() or "").replace("\u2060", "")
                assert text.strip() == visible(case, keep="").strip(), (kind, case)
                made = shown.evaluate("e => [...e.querySelectorAll('a, img, script, b, em, strong, code, .katex, [style*=color]')].length")
                assert made == 0, (kind, case)
            title = page.locator(f".st-key-html-{number}-end p.case").get_attribute("title")
            # Streamlit's own sanitiser drops an attribute that still looks like markup to it.
            assert title is None or title.strip() == visible(case).strip(), case
        legend = [text.replace("\u2060", "") for text in page.locator(".js-plotly-plot .legendtext").all_text_contents()]
        assert [text.strip() for text in legend] == [visible(case, keep="").strip() for case in CASES]
        assert page.locator(".js-plotly-plot .legendtext a").count() == 0
        assert not [url for url in asked if "evil.example" in url or url.startswith("dialog")]
