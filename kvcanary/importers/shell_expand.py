"""Shell words with the values of variables that the text itself assigns. Nothing is run; what the text does not hold stays as typed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvcanary.importers.shell import ASSIGNMENT, Part, RawWord, Statement, read_shell

MAX_DEPTH = 8
# What all expansions of a text may come to, in characters and words: A=$A$A, sixty times, would fill any memory.
MAX_EXPANDED = 1 << 20
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Word:
    """A word after expansion. unresolved: it holds an expansion whose value is not in the text. whole: it is nothing but such an expansion."""

    text: str
    line: int
    unresolved: bool = False
    whole: bool = False
    quoted: bool = False
    conditional: bool = False


@dataclass(slots=True)
class Variables:
    """Variables assigned in the text itself: a value, a list of words, or None where the value cannot be known.

    exported and plain are the settled ones, open those whose value is not in the text, as typed; sure is the last text that each had for
    certain, which a condition may have changed since.
    room: how much more expansions may come to; without room they stay as typed.
    """

    values: dict[str, str | list[Word] | None] = field(default_factory=dict)
    sure: dict[str, Word] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    plain: dict[str, Word] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    room: int = MAX_EXPANDED

    def spend(self, size: int) -> bool:
        """Take room for an expansion; False where there is not enough."""
        fits = size <= self.room
        self.room -= size if fits else 0
        return fits

    def assign(self, statement: Statement) -> bool:
        """Take the statement if it only assigns; False if it is a command."""
        words = statement.words
        export = words[0].text in ("export", "set", "declare", "local", "readonly", "setx", "ENV", "ARG", "env")
        rest = words[1:] if export else words
        if words[0].text == "ENV" and len(rest) == 2 and "=" not in rest[0].text:
            rest = [RawWord(rest[0].line, [Part(f"{rest[0].text}="), *rest[1].parts])]
        rest = [word for word in rest if not (export and word.text.startswith("-"))]
        if not rest or not all(ASSIGNMENT.match(word.text) for word in rest):
            return export and words[0].text != "env" and all(_NAME.fullmatch(word.text) for word in rest)
        if words[0].text == "env":
            return False
        for word in rest:
            self._assign_one(word, statement.nested > 0, export)
        return True

    def _assign_one(self, word: RawWord, conditional: bool, export: bool) -> None:
        match = ASSIGNMENT.match(word.text)
        assert match is not None
        name, add = match[1], match[2] == "+="
        if word.items is not None:
            items = [expanded for item in word.items for expanded in expand(item, self)]
            if conditional:
                items = [replace(item, conditional=True) for item in items]
            old = self.values.get(name)
            self.values[name] = [*old, *items] if add and isinstance(old, list) else items
            return
        value = _without_prefix(word, match.end())
        [expanded] = expand(value, self, split=False) or [Word("", word.line)]
        text: str | None = None if expanded.unresolved else expanded.text
        old = self.values.get(name)
        if add:
            text = old + text if isinstance(old, str) and text is not None else None
        if conditional and text != old:
            text = None  # Whether the branch was taken is not in the text.
        self.values[name] = text
        target = self.exported if export else self.plain
        if text is None:
            self.open[name] = expanded.text
        else:
            target[name] = self.sure[name] = Word(text, word.line)
            self.open.pop(name, None)


def _without_prefix(word: RawWord, size: int) -> RawWord:
    parts: list[Part] = []
    for part in word.parts:
        cut = min(size, len(part.text))
        size -= cut
        if part.text[cut:] or part.quoted:
            parts.append(Part(part.text[cut:], part.expansion, part.quoted))
    return RawWord(word.line, parts)


def expand(word: RawWord, variables: Variables, *, split: bool = True) -> list[Word]:
    """The word or words that a raw word stands for with the variables known so far."""
    quoted = any(part.quoted for part in word.parts)
    expansions = sum(part.expansion for part in word.parts)
    whole = expansions == 1 and all(part.expansion or not part.text for part in word.parts)
    unresolved = [Word(word.text, word.line, unresolved=True, whole=whole, quoted=quoted)]
    texts: list[str] = []
    for part in word.parts:
        value = _value(part.text, variables, 0) if part.expansion else part.text
        if isinstance(value, list) and whole:
            return value if variables.spend(len(value)) else unresolved
        if not isinstance(value, str):
            return unresolved
        texts.append(value)
    if expansions and not variables.spend(sum(map(len, texts))):
        return unresolved
    text = "".join(texts)
    if split and whole and not quoted:
        return [Word(piece, word.line) for piece in text.split()]
    return [Word(text, word.line, quoted=quoted)]


def _value(raw: str, variables: Variables, depth: int) -> str | list[Word] | None:
    if depth > MAX_DEPTH:
        return None
    if raw.startswith(("`#", "$(#")):
        return ""  # Nothing but a comment, as it is put between continued lines.
    if raw.startswith("$((") and raw.endswith("))"):
        return _arithmetic(raw[3:-2], variables)
    body = raw[2:-1] if raw.startswith("${") else raw[1:]
    match = _NAME.match(body)
    if match is None or raw.startswith(("$(", "`")):
        return None
    known, rest = variables.values.get(match[0]), body[match.end() :]
    if rest in ("", "[@]", "[*]"):
        return known
    if rest.startswith((":-", "-")):
        return known
    if rest.startswith((":+", "+")) and known:
        inner = rest.lstrip(":")[1:]
        words = read_shell(inner).statements
        return [piece for word in words[0].words for piece in expand(word, variables)] if words else ""
    return None


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b) if abs(a) < 1 << 52 else a // b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a - b * int(a / b),
}


def _arithmetic(text: str, variables: Variables) -> str | None:
    def known(match: re.Match[str]) -> str:
        value = variables.values.get(match[1] or match[2] or match[3])
        return value if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value.strip()) else "?"

    filled = re.sub(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)|\b([A-Za-z_]\w*)\b", known, text)
    if len(filled) > 200 or not re.fullmatch(r"[\d\s()+\-*/%]+", filled) or "**" in filled:
        return None
    try:
        return str(_evaluate(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not plain arithmetic")


def assignments(words: list[RawWord], variables: Variables) -> Iterator[tuple[str, Word]]:
    """NAME=value words of a list, whole values."""
    for word in words:
        match = ASSIGNMENT.match(word.text)
        if match and match[2] == "=":
            yield match[1], next(iter(expand(_without_prefix(word, match.end()), variables, split=False)), Word("", word.line))
