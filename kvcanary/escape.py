"""One function per place that text of others can end up in: HTML, Markdown, charts, CSV, the terminal.

Logs, pastes, links and file names are written by somebody else. Each function takes plain text and returns what that place shows as exactly
this text: nothing of it is run, linked, coloured or calculated. Control and direction characters, which could hide or reorder what stands
beside them, are spelled out everywhere.
"""

from __future__ import annotations

import html
import re
import unicodedata

from rich.markup import escape as rich_escape

# Controls, directions and other formats, surrogates, private use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINER = "\u2060"
# Marks that mean something anywhere in a line of Markdown, and those that do only at its start.
_MARKS = re.compile(r"([\\`*_\[\]<&$~|#:]|^[+>-])")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])")
# What Streamlit's Markdown turns into links, pictures and arrows after it has undone backslashes: an invisible joiner keeps it apart.
_AFTERTHOUGHTS = re.compile(
    r"(?i)(?<=www)(?=\.)|(?<=@)|(?<=:)(?=/)|(?<=:)(?=streamlit:|material/)|(?<=<)(?=[-=])|(?<=-)(?=[->])|(?<=[>~])(?==)"
)
_SPACES = re.compile(r"[ \t\r\n\f\v]+")
# What spreadsheets start a formula with, in half width and full width: at the start, and behind what another country's spreadsheet, or a
# careless import, takes for the end of a cell; blanks and quotes before it are skipped there.
_FORMULA = re.compile(r"(^|[;,|\t\n])(?=(?:[^\S\t\n]|[\"'])*[=+\-@＝＋－＠])")


def visible(text: str, *, keep: str = "\n\t") -> str:
    """The text with every character that has no glyph of its own spelled out, as in '\\x1b'; those in `keep` stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or unicodedata.category(char) not in _HIDDEN else ascii(char)[1:-1] for char in text)


def html_text(text: str) -> str:
    """For element content and quoted attributes of HTML."""
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    """For one line of Streamlit's Markdown: captions, labels, helps, messages. Runs of spaces and line ends become one space."""
    one_line = visible(_SPACES.sub(" ", text).strip(), keep="")
    return _NUMBERED.sub(r"\1\\\2", _MARKS.sub(r"\\\1", _AFTERTHOUGHTS.sub(_JOINER, one_line)))


def code_text(text: str) -> str:
    """For a span of code in a Markdown document that is posted elsewhere: mentions nobody, links nothing, stays in its table cell."""
    return f"`{visible(_SPACES.sub(' ', text), keep='').replace('`', chr(39)).replace('|', '/')}`"


def chart_text(text: str) -> str:
    """For names, labels and hover text of Plotly, which reads a little HTML and fills in '%{...}'."""
    return html.escape(visible(text, keep=""), quote=False).replace("%{", f"%{_JOINER}{{")


def csv_text(text: str) -> str:
    """For a cell of a CSV file: a quote keeps a spreadsheet from taking text for a formula, at its start and behind any separator."""
    plain = _FORMULA.sub(r"\1'", visible(text))
    return f"'{plain}" if plain.startswith(("\t", "\n")) else plain


def terminal_text(text: str) -> str:
    """For a terminal by way of rich: no control sequence and no markup is left."""
    return rich_escape(visible(text))
