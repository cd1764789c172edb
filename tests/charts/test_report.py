"""The report: one file, nothing of it from elsewhere, nothing in it that acts on its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from kvcanary.charts.report import Picture, Section, Table, report_html
from kvcanary.charts.theme import ThemeName

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" ' & \x00\ud800 <a href='https://example.org'>here</a>"


def bars(theme: ThemeName, label: str = "clean") -> go.Figure:
    return go.Figure(go.Bar(x=[label], y=[3], marker={"color": "#000000" if theme == "light" else "#ffffff"}))


SECTIONS = (
    Section(
        heading="Points",
        sentence="Two were measured.",
        tables=(Table(head=("workload", "batch"), rows=(("decode", "16"), ("sweep", "4")), numeric=(1,), caption="all of them"),),
        pictures=(Picture(draw=bars, alt="Three clean."),),
    ),
    Section(heading="Nothing else"),
)


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside script and style."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._raw = False
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def figures(document: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    parsed: list[dict[str, Any]] = json.loads(found[1])
    return parsed


def test_a_section_is_heading_sentence_picture_and_table() -> None:
    found = Elements(report_html("Run 7", SECTIONS, verdict="Pass: the gate held.", kind="pass"))
    assert "Run 7" in found.texts
    assert [text for text in found.texts if text in ("Points", "Two were measured.", "Three clean.", "all of them", "decode", "Nothing else")] == [
        "Points", "Two were measured.", "Three clean.", "all of them", "decode", "Nothing else",
    ]  # fmt: skip
    assert found.named("div")[:2] == [{"class": "below"}, {"id": "figure-0", "role": "img", "aria-label": "Three clean."}]
    assert [attributes.get("class") for attributes in found.named("td")] == [None, "n", None, "n"]
    assert found.named("p")[0] == {"class": "verdict pass"}


def test_each_picture_is_there_for_both_themes() -> None:
    (figure,) = figures(report_html("Run 7", SECTIONS))
    assert [figure[theme]["data"][0]["marker"]["color"] for theme in ("light", "dark")] == ["#000000", "#ffffff"]


def test_plotly_is_inline_once_and_only_where_there_is_a_picture() -> None:
    two = Section(heading="Two", beside=True, pictures=(Picture(draw=bars, alt="a"), Picture(draw=bars, alt="b")))
    document = report_html("Run 7", (two,))
    assert document.count("* plotly.js v") == 1
    assert [attributes.get("id") for attributes in Elements(document).named("div")] == [None, "figure-0", "figure-1"]
    plain = report_html("Run 7", SECTIONS[1:])
    assert Elements(plain).named("script") == []
    assert len(plain) < 10_000


def test_nothing_is_loaded_from_anywhere() -> None:
    found = Elements(report_html("Run 7", SECTIONS))
    assert not [attributes for _, attributes in found.tags if attributes.keys() & {"src", "href"}]
    policy = found.named("meta")[1]["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    scripts = re.findall(r"<script>(.*?)</script>", report_html("Run 7", SECTIONS), re.DOTALL)
    assert re.findall(r"'sha256-([^']+)'", policy) == [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts
    ]


@pytest.mark.parametrize("place", ["title", "verdict", "heading", "sentence", "cell", "head", "caption", "alt", "figure", "key", "code"])
def test_imported_text_stays_text(place: str) -> None:
    """Wherever it stands, the document has the same elements as with harmless text."""

    def document(text: str) -> str:
        def at(name: str) -> str:
            return text if place == name else "plain"

        picture = Picture(
            draw=lambda theme: bars(theme, at("figure")), alt=at("alt"), key=lambda theme: [(at("key"), at("key"), "#000000")]
        )
        table = Table(head=(at("head"),), rows=((at("cell"),),), caption=at("caption"))
        section = Section(heading=at("heading"), sentence=at("sentence"), tables=(table,), pictures=(picture,), code=at("code"))
        return report_html(at("title"), (section,), verdict=at("verdict"))

    nasty, plain = document(NASTY), document("plain")
    nasty.encode("utf-8")
    assert [name for name, _ in Elements(nasty).tags] == [name for name, _ in Elements(plain).tags]
    assert "\x00" not in nasty
    if place == "figure":
        label = figures(nasty)[0]["light"]["data"][0]["x"][0]
        assert "<" not in label
        assert html.unescape(label) == html.unescape(NASTY)
    else:
        seen = NASTY.replace("\x00", "\\x00").replace("\ud800", "\\ud800")
        everywhere = [*Elements(nasty).texts, *(str(attributes.get("aria-label")) for attributes in Elements(nasty).named("div"))]
        assert seen in everywhere


def test_our_own_marks_in_a_figure_stay() -> None:
    section = Section(heading="x", pictures=(Picture(draw=lambda theme: bars(theme, "a<br>b<extra></extra> 2 < 3"), alt=""),))
    assert figures(report_html("x", (section,)))[0]["dark"]["data"][0]["x"] == ["a<br>b<extra></extra> 2 &lt; 3"]


def test_a_row_of_another_length_than_the_head_is_refused() -> None:
    with pytest.raises(ValueError, match="is longer"):
        report_html("x", (Section(heading="x", tables=(Table(head=("a", "b"), rows=(("1",),)),)),))


def test_print_and_dark_have_their_own_rules() -> None:
    style = report_html("x", ()).partition("<style>")[2].partition("</style>")[0]
    assert "@media print" in style
    assert "@media screen and (prefers-color-scheme: dark)" in style


def test_every_colour_that_the_rules_name_is_there() -> None:
    style = report_html("x", ()).partition("<style>")[2].partition("</style>")[0]
    named = set(re.findall(r"var\((--[a-z]+)\)", style))
    light, dark = (set(re.findall(r"(--[a-z]+): #[0-9a-f]{6};", rule)) for rule in re.findall(r":root \{ (--.*?) \}", style))
    assert light == dark == named
