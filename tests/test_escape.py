"""Escaping by sink. What each sink makes of it is checked in a browser (tests/browser/test_escaping.py) and on the pages and commands."""

from __future__ import annotations

import csv
import html
import io
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from kvcanary.escape import chart_text, code_text, csv_text, html_text, markdown_text, terminal_text, visible

TEXT = st.text(max_size=60) | st.text(alphabet="<>&\"'=+-@|`*_[]()!:$\\\x1b\u202e\u200b \n\twab/.", max_size=40)


def hidden(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert visible("a\x1b[31m\u202eb\u2066\x9b\x00\ud800\n\t") == "a\\x1b[31m\\u202eb\\u2066\\x9b\\x00\\ud800\n\t"
    assert visible("a\nb\t", keep="") == "a\\nb\\t"
    assert visible("1\u202f234 KiB, naïve, 漢字 🙂") == "1\u202f234 KiB, naïve, 漢字 🙂"


@given(TEXT)
def test_nothing_hidden_is_left(text: str) -> None:
    assert set(hidden(visible(text))) <= {"\n", "\t"}
    assert set(hidden(html_text(text))) <= {"\n", "\t"}
    assert set(hidden(markdown_text(text))) <= {"\u2060"}
    assert set(hidden(chart_text(text))) <= {"\u2060"}


@given(TEXT)
def test_html_reads_back_as_the_text_and_closes_nothing(text: str) -> None:
    written = html_text(text)
    assert html.unescape(written) == visible(text)
    assert not set(written) & set("<>\"'")


@given(TEXT)
def test_every_mark_of_markdown_has_a_backslash(text: str) -> None:
    written = markdown_text(text)
    # CommonMark: a backslash before ASCII punctuation makes it text. So every mark is the second of such a pair.
    assert re.fullmatch(r"(?:\\[!-/:-@\[-`{-~]|[^\\`*_\[\]<&$~|#:])*", written)
    assert not re.match(r"[+>#-]|\d+[.)]|\s", written)
    assert "\n" not in written


@given(TEXT)
def test_a_span_of_code_stays_one_in_its_cell(text: str) -> None:
    written = code_text(text)
    assert written.count("`") == 2
    assert not set(written) & set("|\n")


def test_links_and_pictures_that_are_made_after_parsing_are_kept_apart() -> None:
    plain = markdown_text("http://evil.example www.evil.example me@evil.example :streamlit: ->").replace("\\", "")
    assert plain == "http:\u2060//evil.example www\u2060.evil.example me@\u2060evil.example :\u2060streamlit: -\u2060>"


@given(TEXT)
@example("[b]a[/b] [link=http://evil.example]w[/link]")
@example("\u0816\t|\uff3b\t|")
def test_a_terminal_gets_no_control_sequence_and_no_markup(text: str) -> None:
    # rich may show one backslash more or less beside a bracket or at the end, which changes nothing but looks.
    text = text.replace("\\", "/")
    target = io.StringIO()
    Console(file=target, highlight=False, soft_wrap=True, width=10_000, force_terminal=True, color_system="truecolor", emoji=False).print(
        terminal_text(text), end=""
    )
    # How many blanks rich makes of a tab hangs on the width of what stands before it.
    shown, wanted = (re.sub(r"[ \t]+", " ", part) for part in (target.getvalue(), visible(text)))
    assert shown == wanted


@given(TEXT)
def test_no_cell_starts_a_formula(text: str) -> None:
    cell = csv_text(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))
    for part in re.split(r"[;,|\t\n]", cell):
        assert not part.strip(' "\t\n\u00a0\u202f').startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))
    assert cell == visible(cell)
    assert cell.replace("'", "") == visible(text).replace("'", "")
    target = io.StringIO()
    csv.writer(target).writerow([cell, "next"])
    assert next(csv.reader(io.StringIO(target.getvalue(), newline=""))) == [cell, "next"]


def test_numbers_of_a_table_stay_numbers() -> None:
    assert csv_text("12.5") == "12.5"
    assert csv_text("-1") == "'-1"
    assert csv_text("verify_token+verify_position, rank TP0-1; a=b") == "verify_token+verify_position, rank TP0-1; a=b"


@pytest.mark.parametrize("text", ["=1", '"=1', " @SUM(A1)", "\u00a0-1", "'+1", "＝1"])
def test_no_blank_and_no_quote_hides_a_formula(text: str) -> None:
    assert csv_text(text) == f"'{text}"


def test_a_cell_of_lines_is_written_in_the_time_of_its_length() -> None:
    """Each line end is looked behind once; looking on to the end of the text from each took a minute."""
    assert len(csv_text("\n" * 200_000 + "=1")) == 200_004


@pytest.mark.parametrize("text", ["a;=1+1", 'a,"=1+1', "a\t@SUM(A1)", "a| -1", "a\n+1", "a;＝1"])
def test_no_separator_of_another_country_starts_a_formula(text: str) -> None:
    assert csv_text(text) == f"{text[:2]}'{text[2:]}"


def test_a_chart_fills_in_nothing() -> None:
    assert chart_text("%{x}<a href='http://evil.example'>") == "%\u2060{x}&lt;a href='http://evil.example'&gt;"


@pytest.mark.parametrize(
    ("forbidden", "but"),
    [
        ("st.caption(", "kvcanary/ui/style.py"),
        ("from html import", ""),
        ("import html\n", "kvcanary/escape.py"),
        ("from rich.markup import", "kvcanary/escape.py"),
        ("unsafe_allow_html", ""),
        ("unsafe_allow_javascript", ""),
        ("st.write(", ""),
        ("st.latex(", ""),
    ],
)
def test_there_is_no_way_around(forbidden: str, but: str) -> None:
    root = Path(__file__).parents[1]
    sources = [*(root / "kvcanary").rglob("*.py"), *(root / "pages").glob("*.py"), root / "app.py"]
    found = [str(path.relative_to(root)) for path in sources if forbidden in path.read_text(encoding="utf-8")]
    assert found == ([but] if but else [])
