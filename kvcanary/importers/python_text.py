"""Launch arguments inside Python or JSON source: lists of words, keyword calls and strings that hold a whole command.

Nothing is evaluated. A literal gives its value, a name that the text assigns once gives the assigned literal, everything else stays as the
source wrote it. Works on fragments: an indented piece, half a call, a list that is cut.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvcanary.importers.shell_expand import Word

MAX_TOKENS = 50_000
_TOKEN = re.compile(
    r"""(?P<string>(?P<prefix>[rRbBfFuU]{0,2})(?:\"\"\"(?:[^\\"]|\\.|"(?!""))*(?:\"\"\"|\Z)|'''(?:[^\\']|\\.|'(?!''))*(?:'''|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)|'(?:[^'\\\n]|\\.)*(?:'|(?=\n)|\Z)))"""
    r"""|(?P<comment>\#[^\n]*)|(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<newline>\n)|(?P<op>\+=|==|\*\*|[^\s\w])""",
    re.DOTALL,
)
# What Python thinks of the style of somebody else's text goes to nobody's log.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
_CONDITION = re.compile(r"\s*(if|elif|else|for|while|except|match|case)\b")
_MAIN = re.compile(r"\s*if\s+__name__\s*==")
_ENGINE_CALLS = {"Engine": "sglang", "ServerArgs": "sglang", "LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm"}
_FIELD = re.compile(r"\{(\w+)\}")
_PLAIN_WORD = re.compile(r"[\w./:@,=+-]+")
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Token:
    """kind is string, name, number, newline or op; `start` and `end` are offsets in the source."""

    kind: str
    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True)
class Expression:
    """The source of a value that is no literal."""

    source: str


@dataclass(slots=True)
class WordList:
    """A list of words in the source: `target` is the variable or keyword it goes to, `adds` whether it adds to an earlier list."""

    words: list[Word]
    target: str
    adds: bool
    line: int


@dataclass(slots=True)
class EngineCall:
    """Engine(model_path=..., tp_size=...): keyword names to literals or `Expression`."""

    engine: str
    keywords: dict[str, Any]
    line: int


@dataclass(slots=True)
class PythonText:
    """What the source holds, each in order. commands: strings that hold a whole launch command, with their line and whether fields were left."""

    lists: list[WordList] = field(default_factory=list)
    calls: list[EngineCall] = field(default_factory=list)
    commands: list[tuple[str, int]] = field(default_factory=list)


# Stand in for the braces that an f-string doubles, while a real field keeps its braces.
LEFT, RIGHT = "\x01", "\x02"


def read_python(text: str, program: re.Pattern[str], first_line: int = 1) -> PythonText:
    """Find launch words; `program` tells a string that holds a whole command. Never raises on any text."""
    return _Reader(text, program, first_line).run()


def is_field(word: str) -> bool:
    """Whether a word of an f-string command still holds a field."""
    return "{" in word


def restore(word: str) -> str:
    """The word with the braces that were doubled in the source."""
    return word.replace(LEFT, "{").replace(RIGHT, "}")


class _Reader:
    def __init__(self, text: str, program: re.Pattern[str], first_line: int) -> None:
        self.text, self.program, self.first_line = text, program, first_line
        self.guarded = _guarded_lines(text)
        self.tokens = list(self._lex())
        self.partner = self._partners()
        self.names = self._names()
        self.result = PythonText()

    def _lex(self) -> Iterator[Token]:
        line, last = self.first_line, 0
        for count, match in enumerate(_TOKEN.finditer(self.text)):
            if count >= MAX_TOKENS:
                return
            line += self.text.count("\n", last, match.start())
            last = match.start()
            kind = match.lastgroup if match.lastgroup != "prefix" else "string"
            if kind and kind != "comment":
                yield Token(kind, match[0], match.start(), match.end(), line)

    def _partners(self) -> dict[int, int]:
        """Index of an opening bracket to the index of its closing one; the end of the tokens for one that is cut."""
        partner: dict[int, int] = {}
        stack: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.kind == "op" and token.text in _OPEN:
                stack.append(index)
            elif token.kind == "op" and token.text in _CLOSE and stack:
                partner[stack.pop()] = index
        return {**partner, **dict.fromkeys(stack, len(self.tokens))}

    def _names(self) -> dict[str, str | None]:
        """Names assigned to one literal, as text; None where two assignments differ."""
        names: dict[str, str | None] = {}
        for index in range(1, len(self.tokens) - 1):
            name, equals, value = self.tokens[index - 1 : index + 2]
            after = self.tokens[index + 2] if index + 2 < len(self.tokens) else None
            if name.kind != "name" or equals.text != "=" or value.kind not in ("string", "number") or (after and after.kind != "newline"):
                continue
            literal = None if self._conditional(name) else _literal(value.text)
            text = literal if isinstance(literal, str) else None if literal is None else str(literal)
            names[name.text] = text if names.get(name.text, text) == text else None
        return names

    def _conditional(self, token: Token) -> bool:
        """Whether an if, for or except stands around the line of a token."""
        return self.guarded[token.line - self.first_line]

    def run(self) -> PythonText:
        skip_to = 0
        for index, token in enumerate(self.tokens):
            if token.kind == "string" and self.program.search(token.text) and index >= skip_to:
                self._command(token)
            if token.kind != "op" or token.text not in "([" or index < skip_to:
                continue
            before = self.tokens[index - 1] if index else None
            engine = _ENGINE_CALLS.get(before.text) if token.text == "(" and before and before.kind == "name" else None
            if engine:
                keywords = self._keywords(index)
                if keywords:
                    self.result.calls.append(EngineCall(engine, keywords, token.line))
                    skip_to = self.partner[index]
            elif words := self._display(index):
                self.result.lists.append(words)
                skip_to = self.partner[index]
        return self.result

    def _command(self, token: Token) -> None:
        prefix, body = _split_literal(token.text)
        if "f" in prefix.lower():
            body = _FIELD.sub(self._plain_name, body.replace("{{", LEFT).replace("}}", RIGHT))
        if " " in body.strip():
            self.result.commands.append((body if "\\" not in body or "r" in prefix.lower() else _unescape(body), token.line))

    def _plain_name(self, match: re.Match[str]) -> str:
        """What stands for a field in a command: the value of a name that the text assigns, where no quotes are needed for it."""
        value = self.names.get(match[1])
        return value if value is not None and _PLAIN_WORD.fullmatch(value) else match[0]

    def _display(self, index: int) -> WordList | None:
        """The list that begins at a bracket, if it holds launch words."""
        token, end = self.tokens[index], self.partner[index]
        called = (
            token.text == "(" and index >= 2 and self.tokens[index - 1].text in ("append", "extend") and self.tokens[index - 2].text == "."
        )
        if token.text == "(" and not called:
            return None
        elements = self._elements(index + 1, end)
        plain = [_literal(self.tokens[start].text) for start, stop in elements if stop - start == 1 and self.tokens[start].kind == "string"]
        if not any(isinstance(text, str) and (re.match(r"--?[A-Za-z]", text) or self.program.search(text)) for text in plain):
            return None
        conditional = self._conditional(token)
        words = [word for start, stop in elements for word in self._word(start, stop, conditional)]
        target, adds = self._target(index)
        return WordList(words, target, adds or called, token.line)

    def _target(self, index: int) -> tuple[str, bool]:
        """Name a list is given to, and whether it adds to what is there: x = [, x += [, x.extend([, key=[, "args": [."""
        for at in range(index - 1, max(-1, index - 6), -1):
            token = self.tokens[at]
            if token.text in ("=", "+=", ":") and at:
                name = self.tokens[at - 1]
                return (str(_literal(name.text)) if name.kind == "string" else name.text), token.text == "+="
            if token.text in ("extend", "append") and at >= 2:
                return self.tokens[at - 2].text, True
            if token.kind == "newline":
                break
        return "", False

    def _elements(self, start: int, end: int) -> list[tuple[int, int]]:
        """Spans of tokens between the commas of a display."""
        spans: list[tuple[int, int]] = []
        at = begin = start
        while at < end:
            token = self.tokens[at]
            if token.kind == "op" and token.text in _OPEN:
                at = self.partner[at]
            elif token.text == ",":
                spans.append((begin, at))
                begin = at + 1
            at += 1
        spans.append((begin, min(end, len(self.tokens))))
        trimmed = (self._trim(*span) for span in spans)
        return [span for span in trimmed if span[0] < span[1]]

    def _trim(self, start: int, stop: int) -> tuple[int, int]:
        while start < stop and self.tokens[start].kind == "newline":
            start += 1
        while stop > start and self.tokens[stop - 1].kind == "newline":
            stop -= 1
        return start, stop

    def _source(self, start: int, stop: int) -> str:
        return self.text[self.tokens[start].start : self.tokens[stop - 1].end]

    def _word(self, start: int, stop: int, conditional: bool) -> list[Word]:
        line = self.tokens[start].line
        nested = next((at for at in range(start, stop) if self.tokens[at].text == "["), None)
        if self.tokens[start].text in ("*", "(") and nested is not None and (words := self._display(nested)):
            # *(["--flag"] if x else []): the words are there, whether they count is decided when the program runs.
            return [Word(word.text, word.line, word.unresolved, word.whole, word.quoted, conditional=True) for word in words.words]
        if self.tokens[start].text == "*":
            return [Word(self._source(start, stop), line, unresolved=True, whole=True, conditional=conditional)]
        text = self._text(start, stop)
        if text is None:
            return [Word(self._source(start, stop), line, unresolved=True, conditional=conditional)]
        return [Word(text, line, quoted=True, conditional=conditional)]

    def _text(self, start: int, stop: int) -> str | None:
        """The text that an element has for certain."""
        tokens = [token for token in self.tokens[start:stop] if token.kind != "newline"]
        if tokens and all(token.kind == "string" for token in tokens):
            parts = [self._string(token.text) for token in tokens]
            return "".join(part for part in parts if part is not None) if None not in parts else None
        if len(tokens) == 4 and tokens[0].text == "str" and tokens[1].text == "(" and tokens[3].text == ")":
            tokens = [tokens[2]]
        if len(tokens) == 1 and tokens[0].kind == "number":
            return tokens[0].text
        if len(tokens) == 2 and tokens[0].text == "-" and tokens[1].kind == "number":
            return "-" + tokens[1].text
        if len(tokens) == 1 and tokens[0].kind == "name":
            return self.names.get(tokens[0].text)
        return None

    def _string(self, source: str) -> str | None:
        prefix, body = _split_literal(source)
        if "f" not in prefix.lower():
            literal = _literal(source)
            return literal if isinstance(literal, str) else None
        missing = False

        def fill(match: re.Match[str]) -> str:
            nonlocal missing
            value = self.names.get(match[1])
            missing = missing or value is None
            return value or ""

        marked = body.replace("{{", LEFT).replace("}}", RIGHT)
        filled = re.sub(r"\{(\w+)\}", fill, marked)
        if missing or "{" in filled:
            return None
        return restore(filled if "\\" not in filled or "r" in prefix.lower() else _unescape(filled))

    def _keywords(self, index: int) -> dict[str, Any]:
        keywords: dict[str, Any] = {}
        for start, stop in self._elements(index + 1, self.partner[index]):
            if stop - start < 3 or self.tokens[start].kind != "name" or self.tokens[start + 1].text != "=":
                continue
            source = self._source(start + 2, stop)
            text = self._text(start + 2, stop) if self.tokens[start + 2].kind in ("string", "name") else None
            value = text if text is not None else _literal(source, Expression(source))
            keywords[self.tokens[start].text] = value
        return keywords


def _guarded_lines(text: str) -> list[bool]:
    """For each line, whether an if, for or except stands around it, by indentation."""
    guarded: list[bool] = []
    # Indentation of the lines around, and whether what they enclose is guarded.
    around: list[tuple[int, bool]] = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        while line.strip() and around and around[-1][0] >= indent:
            around.pop()
        here = bool(around) and around[-1][1]
        guarded.append(here)
        if line.strip():
            around.append((indent, here or (_CONDITION.match(line) is not None and not _MAIN.match(line))))
    return guarded


def _split_literal(source: str) -> tuple[str, str]:
    """Prefix and body of a string literal."""
    prefix = source[: len(source) - len(source.lstrip("rRbBfFuU"))]
    rest = source[len(prefix) :]
    quote = rest[:3] if rest[:3] in ('"""', "'''") else rest[:1]
    return prefix, rest[len(quote) :].removesuffix(quote)


def _literal(source: str, default: Any = None) -> Any:
    """The value of a literal that JSON can hold; `default` for anything else."""
    if len(source) > 20_000:
        return default
    try:
        value = ast.literal_eval(source.strip())
        # Sets, bytes and numbers of thousands of digits are literals too, and nothing that an argument could be.
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return default


def _unescape(body: str) -> str:
    literal = _literal('"""' + body.replace('"', '\\"') + '"""')
    return literal if isinstance(literal, str) else body
