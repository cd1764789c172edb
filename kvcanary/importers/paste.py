"""What happened to a text before it was pasted: word processors, Markdown, quoting marks, merge conflicts. Undone here, and reported."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_LONG_DASHES = "\u2014\u2015"
_DASH_WORD = re.compile(rf"(?<!\S)([-{_DASHES}]{{1,4}})(?=[A-Za-z0-9.])([A-Za-z][\w-]*)?")
_QUOTES = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"', "\u2018": "'", "\u201a": "'", "\u00ab": '"', "\u00bb": '"'}
)
_CLOSING_APOSTROPHE = re.compile(r"(?<![A-Za-z])\u2019|\u2019(?![A-Za-z])")
_BLANKS = str.maketrans(
    {"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u2009": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "\u2060": ""}
)
_TYPOGRAPHY = re.compile("[\u201c-\u201f\u2018-\u201a\u00ab\u00bb\u2010-\u2015\u2212\u00a0\u2007\u202f\u2009\u3000\u200b\u2060\ufeff]")
_FOREIGN_CONTINUATION = re.compile(r"(?m)(?<=[ \t])[`^][ \t]*\r?$")
_POWERSHELL_VARIABLE = re.compile(r"(?m)^[ \t]*\$env:(\w+)[ \t]*=[ \t]*")
# What PowerShell prints before a line that goes on, and before the first one.
_POWERSHELL_PROMPT = re.compile(r"(?m)^(?:>> |PS [A-Za-z]:\\[^>\n]{0,200}> )")
# Behind the command in the state of a systemd service.
_EXIT_STATE = re.compile(r"[ \t]\(code=\w+, (?:status|signal)=[^()\n]{0,60}\)")
_QUOTE_MARK = re.compile(r"(?m)^> ?")
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)")
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]{1,2000})\1(?!`)")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_LONGEST_LABEL = 60
_LABEL = re.compile(r"^[\s*_]*(?:[\w /-]{1,30})?[\s*_]*[:=][\s*_]*$|^[\s*_,;&+]*(?:and|plus|with)?[\s*_,;&+]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a text with the number of its first line. kind: code (fenced), prose (around fences) or plain."""

    text: str
    line: int
    kind: str


@dataclass(frozen=True, slots=True)
class Span:
    """Inline code of Markdown. mention: it stands inside a sentence, so it may speak of another run."""

    text: str
    line: int
    mention: bool


def straighten(text: str) -> tuple[str, bool]:
    """Text with typographic quotes, dashes and blanks turned back, and whether there were any. The number of lines stays."""
    if not _TYPOGRAPHY.search(text):
        return text, False
    plain = text.translate(_BLANKS).translate(_QUOTES)
    plain = _CLOSING_APOSTROPHE.sub("'", plain)
    return _DASH_WORD.sub(_dashes, plain), bool(re.search("[\u201c-\u201f\u2018-\u201a\u2010-\u2015\u2212]", text))


def _dashes(match: re.Match[str]) -> str:
    dashes, word = match[1], match[2] or ""
    if not any(char in _DASHES for char in dashes):
        return match[0]
    if not word:
        return "-"  # A number follows: the minus sign of -1.
    long_form = len(word) > 1 or len(dashes) > 1 or any(char in _LONG_DASHES for char in dashes)
    return ("--" if long_form else "-") + word


def undo_shell_marks(text: str) -> str:
    """Continuations of other shells (caret, grave accent) as backslashes, and quoting marks of a reply taken off."""
    if "`" in text or "^" in text:
        text = _FOREIGN_CONTINUATION.sub(r"\\", text)
    if ">> " in text or "PS " in text:
        text = _POWERSHELL_PROMPT.sub("", text)
    if "(code=" in text:
        text = _EXIT_STATE.sub("", text)
    if "$env:" in text:
        text = _POWERSHELL_VARIABLE.sub(r"export \1=", text)
    lines = text.split("\n")
    marked = sum(line.startswith("> ") for line in lines)
    continued = any(line.startswith("> ") and before.rstrip().endswith("\\") for before, line in itertools.pairwise(lines))
    if continued or (marked and marked >= 0.8 * sum(bool(line.strip()) for line in lines)):
        text = _QUOTE_MARK.sub("", text)
    return text


def conflict_sides(text: str) -> tuple[str, str] | None:
    """Both readings of a text with merge conflict markers, with the same line numbers; None without markers."""
    if "<<<<<<<" not in text or "=======" not in text:
        return None
    sides: tuple[list[str], list[str]] = ([], [])
    state, found = "both", False
    for line in text.split("\n"):
        if line.startswith("<<<<<<<"):
            state, found = "ours", True
        elif line.startswith("|||||||") and state == "ours":
            state = "base"
        elif line.startswith("=======") and state in ("ours", "base"):
            state = "theirs"
        elif line.startswith(">>>>>>>") and state == "theirs":
            state = "both"
        else:
            for side, name in zip(sides, ("ours", "theirs"), strict=True):
                side.append(line if state in ("both", name) else "\\")
            continue
        for side in sides:
            side.append("\\")
    return ("\n".join(sides[0]), "\n".join(sides[1])) if found else None


def blocks(text: str) -> Iterator[Block]:
    """Fenced code and what stands around it; a text without fences is one plain block."""
    lines = text.split("\n")
    if "```" not in text and "~~~" not in text:
        yield Block(text, 1, "plain")
        return
    start, fence = 0, ""
    for number, line in enumerate(lines):
        match = _FENCE.match(line)
        if match is None or (fence and not match[2].startswith(fence)):
            continue
        if number > start:
            yield Block("\n".join(lines[start:number]), start + 1, "code" if fence else "prose")
        start, fence = number + 1, "" if fence else match[2]
    if start < len(lines):
        yield Block("\n".join(lines[start:]), start + 1, "code" if fence else "prose")


def spans(text: str, first_line: int = 1) -> Iterator[Span]:
    """Inline code in order. A span at the beginning of an item, or behind a label and other spans only, is part of a list of settings."""
    for number, line in enumerate(text.split("\n"), first_line):
        if "`" not in line:
            continue
        bullet = _BULLET.match(line)
        at, mention = bullet.end() if bullet else 0, False
        for match in _SPAN.finditer(line):
            between = line[at : match.start()]
            mention = mention or len(between) > _LONGEST_LABEL or not _LABEL.match(between)
            yield Span(match[2].strip(), number, mention)
            at = match.end()
