"""One self-contained HTML document from a list of sections: it opens without a network, prints, and follows the reader's theme.

A section says once what a page and a report show. Every text is escaped here, so callers hand over imported text as it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kvcanary.charts.theme import REPORT, ThemeName, css_variables
from kvcanary.escape import html_text
from kvcanary.units import format_count

Kind = Literal["pass", "error", "warning", "note"]
_HERE = Path(__file__).parent
# Plotly reads a little HTML in its texts. What our own charts use is let through; anything else, a link for one, shows as it was written.
_FOREIGN_TAG = re.compile(r"<(?!/?(?:br|b|i|extra)>)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as plain text; columns named in `numeric` are right-aligned. Every row is as long as the head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure drawn for a theme, and the same in words. key: (name, amount, colour) of its parts, where the figure has no legend."""

    draw: Callable[[ThemeName], go.Figure]
    alt: str
    key: Callable[[ThemeName], Sequence[tuple[str, str, str]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what belongs under it; a section without tables and pictures is a heading and a sentence.

    beside: the pictures stand side by side where there is room. code: lines to copy, shown as they are.
    """

    heading: str
    sentence: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    beside: bool = False
    code: str = ""


def cut(what: str, shown: int, total: int) -> str:
    """Caption of a table that leaves rows out, empty for one that does not: 'The first 200 of 7 000 violations.'."""
    return f"The first {format_count(shown)} of {format_count(total)} {what}." if shown < total else ""


def report_html(title: str, sections: Sequence[Section], *, verdict: str = "", kind: Kind = "note") -> str:
    """The document as text, to be written as UTF-8. plotly.js is inline, once, and only where there is a picture.

    The document's own content policy allows nothing from anywhere else, and no script but the two that it was made with.
    """
    pictures = [picture for section in sections for picture in section.pictures]
    scripts = [get_plotlyjs(), (_HERE / "report.js").read_text(encoding="utf-8")] if pictures else []
    numbers = iter(range(len(pictures)))
    body = [f"<h1>{html_text(title)}</h1>"]
    if verdict:
        body.append(f'<p class="verdict {kind}"><span>{html_text(verdict)}</span></p>')
    if len(sections) > 3:
        links = (f'<a href="#section-{index}">{html_text(section.heading)}</a>' for index, section in enumerate(sections))
        body.append(f"<nav>{''.join(links)}</nav>")
    body += [_section(index, section, [next(numbers) for _ in section.pictures]) for index, section in enumerate(sections)]
    body.append("<footer>Made by kvcanary. This file needs no network.</footer>")
    if pictures:
        body.append(f'<script type="application/json" id="figures">{_figures(pictures)}</script>')
        body += [f"<script>{script}</script>" for script in scripts]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_style()}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _style() -> str:
    """The style sheet, with the colours that its rules name. A screen may be dark, paper is not."""
    night = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {css_variables(REPORT, 'dark')} }} }}"
    return f":root {{ {css_variables(REPORT, 'light')} }}\n{night}\n{(_HERE / 'report.css').read_text(encoding='utf-8')}"


def _section(index: int, section: Section, numbers: Sequence[int]) -> str:
    parts = [f'<section id="section-{index}"><h2>{html_text(section.heading)}</h2>']
    if section.sentence:
        parts.append(f"<p>{html_text(section.sentence)}</p>")
    if section.pictures:
        parts.append(f'<div class="{"beside" if section.beside else "below"}">')
        for number, picture in zip(numbers, section.pictures, strict=True):
            alt = html_text(picture.alt)
            key = "" if picture.key is None else _key(picture.key("light"), picture.key("dark"))
            parts.append(
                f'<figure><div id="figure-{number}" role="img" aria-label="{alt}"></div>{key}<figcaption>{alt}</figcaption></figure>'
            )
        parts.append("</div>")
    parts += [_table(table) for table in section.tables]
    if section.code:
        parts.append(f"<pre><code>{html_text(section.code)}</code></pre>")
    return "".join([*parts, "</section>"])


def _key(light: Sequence[tuple[str, str, str]], dark: Sequence[tuple[str, str, str]]) -> str:
    items = (
        f'<span><i style="background: light-dark({html_text(day)}, {html_text(night)})"></i>{html_text(name)} <b>{html_text(amount)}</b></span>'
        for (name, amount, day), (_, _, night) in zip(light, dark, strict=True)
    )
    return f'<div class="key">{" ".join(items)}</div>'


def _table(table: Table) -> str:
    classes = [' class="n"' if index in table.numeric else "" for index in range(len(table.head))]
    caption = f"<caption>{html_text(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col"{kind}>{html_text(cell)}</th>' for cell, kind in zip(table.head, classes, strict=True))
    rows = ("".join(f"<td{kind}>{html_text(cell)}</td>" for cell, kind in zip(row, classes, strict=True)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _figures(pictures: Sequence[Picture]) -> str:
    """JSON that ends no script element, since `_figure` leaves no tag in it but the few that charts use."""
    drawn = [{theme: _figure(picture.draw(theme)) for theme in ("light", "dark")} for picture in pictures]
    texts = (f"{{{','.join(f'{json.dumps(theme)}:{figure}' for theme, figure in themes.items())}}}" for themes in drawn)
    return f"[{','.join(texts)}]"


def _figure(figure: go.Figure) -> str:
    # to_json may itself write '<' as its number; reading it again gives one spelling to look at.
    text = json.dumps(json.loads(figure.to_json(validate=False)), separators=(",", ":"))
    return _FOREIGN_TAG.sub("&lt;", text)


def _policy(scripts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
