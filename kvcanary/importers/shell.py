"""Shell text cut into statements and words, without running anything.

Follows POSIX quoting, comments, continuations and parameter expansion as far as a paste needs it, and is more patient than a shell where
pastes are damaged: a quote that never closes takes the rest of the text, a backslash before trailing blanks still continues the line.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_DEPTH = 8
MAX_WORDS = 20_000
# What all expansions of a text may come to, in characters and words: A=$A$A, sixty times, would fill any memory.
MAX_EXPANDED = 1 << 20
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_BLANK_CONTINUATION = re.compile(r"\\[ \t]+\r?\n")
_PLAIN = re.compile(r"[^\s\\'\"$`#;&|<>()]+")
_REDIRECT = re.compile(r"(?:\d*|&)(?:>>?|<<?<?-?)(?:&\d*-?)?")
_SPECIAL = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_OPENERS = ("if", "for", "while", "until", "case", "select")
_CLOSERS = ("fi", "done", "esac")
_LEADERS = ("then", "do", "else", "elif", "{", "!", "time")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a word: literal text, or an expansion kept as typed ('$X', '${X:-y}', '$((1 + 2))')."""

    text: str
    expansion: bool = False
    quoted: bool = False


@dataclass(slots=True)
class RawWord:
    """A word as typed. `items` are the words inside NAME=( ... )."""

    line: int
    parts: list[Part] = field(default_factory=list)
    items: list[RawWord] | None = None

    @property
    def text(self) -> str:
        """The word without its quotes, expansions as typed."""
        return "".join(part.text for part in self.parts)


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
class Statement:
    """Words of one simple command; `nested` counts the if, for, while and case around it."""

    words: list[RawWord]
    line: int
    nested: int = 0


@dataclass(slots=True)
class ShellText:
    """Statements in order, and what was wrong with the text."""

    statements: list[Statement]
    unbalanced: bool = False
    blank_continuation: bool = False


def read_shell(text: str, first_line: int = 1) -> ShellText:
    """Cut text into statements. Never raises on any text; work is linear in its length."""
    return _Lexer(text, first_line).run()


class _Lexer:
    def __init__(self, text: str, first_line: int) -> None:
        self.text, self.at, self.line = text, 0, first_line
        self.result = ShellText(statements=[], blank_continuation=bool(_BLANK_CONTINUATION.search(text)))
        self.words: list[RawWord] = []
        self.word: RawWord | None = None
        self.nested = 0
        self.drop_next = False
        self.parentheses = 0
        self.arrays: list[tuple[list[RawWord], RawWord]] = []

    def run(self) -> ShellText:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        while self.arrays:
            self._close_array()
        self._end_statement()
        return self.result

    def _step(self, char: str) -> None:
        if match := _PLAIN.match(self.text, self.at):
            self._add(Part(match[0]), match.end())
        elif char == "\\":
            self._backslash()
        elif char in " \t\r\v\f" or (char.isspace() and char != "\n"):
            self._end_word()
            self.at += 1
        elif char == "\n":
            self._end_word() if self.arrays else self._end_statement()
            self.line += 1
            self.at += 1
        elif char == "#":
            self._hash()
        elif char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char in "$`":
            raw = self._expansion(self.at)
            self._add(Part(raw, expansion=len(raw) > 1), self.at + len(raw))
        else:
            self._operator(char)

    def _add(self, part: Part, end: int) -> None:
        if self.word is None:
            self.word = RawWord(self.line)
        self.word.parts.append(part)
        self.line += part.text.count("\n")
        self.at = end

    def _end_word(self) -> None:
        word, self.word = self.word, None
        self.parentheses = 0
        if word is None:
            return
        if self.drop_next:
            self.drop_next = False
        elif len(self.words) < MAX_WORDS:
            self.words.append(word)

    def _end_statement(self) -> None:
        self._end_word()
        self.drop_next = False
        words, self.words = self.words, []
        while words and (lead := words[0].text) in (*_LEADERS, *_OPENERS, *_CLOSERS):
            self.nested = max(0, self.nested + (lead in _OPENERS) - (lead in _CLOSERS))
            if lead in ("for", "case", "select"):
                words = []  # The list of a loop is no command.
            words = words[1:]
        if words:
            self.result.statements.append(Statement(words, words[0].line, self.nested))

    def _backslash(self) -> None:
        match = re.compile(r"\\[ \t]*\r?\n").match(self.text, self.at)
        if match:
            self.line += 1
            self.at = match.end()
            if len(match[0].rstrip("\r\n")) > 1:
                self._end_word()
        elif self.at + 1 < len(self.text):
            self._add(Part(self.text[self.at + 1], quoted=True), self.at + 2)
        else:
            self.at += 1

    def _hash(self) -> None:
        if self.word is not None:
            self._add(Part("#"), self.at + 1)
            return
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _stray(self) -> bool:
        """A quote behind a word's letters and before a blank that has no partner: left over from the text around the command."""
        following = self.text[self.at + 1 : self.at + 2]
        return self.word is not None and not self.text.endswith("=", 0, self.at) and (not following or following.isspace())

    def _apostrophe(self, end: int) -> bool:
        """The mark of "can't" in a sentence around the command: between letters, and no partner on its line."""
        before, after = self.text[self.at - 1 : self.at], self.text[self.at + 1 : self.at + 2]
        line_end = self.text.find("\n", self.at)
        same_line = end >= 0 and (line_end < 0 or end < line_end)
        return self.word is not None and before.isalpha() and after.isalpha() and not same_line

    def _single(self) -> None:
        end = self.text.find("'", self.at + 1)
        if self._apostrophe(end):
            self._add(Part("'"), self.at + 1)
            return
        if end < 0:
            self.result.unbalanced = True
            if self._stray():
                self.at += 1
                return
            end = len(self.text)
        self._add(Part(self.text[self.at + 1 : end], quoted=True), min(len(self.text), end + 1))

    def _double(self) -> None:
        parts: list[Part] = []
        at, literal = self.at + 1, []
        text, size = self.text, len(self.text)
        while at < size and text[at] != '"':
            char = text[at]
            if char == "\\" and at + 1 < size and text[at + 1] in '$`"\\\n':
                literal.append("" if text[at + 1] == "\n" else text[at + 1])
                self.line += text[at + 1] == "\n"
                at += 2
            elif char in "$`" and len(raw := self._expansion(at)) > 1:
                parts += [Part("".join(literal), quoted=True), Part(raw, expansion=True, quoted=True)]
                literal = []
                at += len(raw)
            else:
                literal.append(char)
                at += 1
        if at >= size:
            self.result.unbalanced = True
            if self._stray():
                self.at += 1
                return
        for part in [*parts, Part("".join(literal), quoted=True)]:
            self._add(part, at)
        self.at = min(size, at + 1)

    def _expansion(self, at: int) -> str:
        """The expansion that begins here as typed, or the single character where none does."""
        text = self.text
        if text[at] == "`":
            end = text.find("`", at + 1)
            line_end = text.find("\n", at)
            return text[at : end + 1] if end >= 0 and (line_end < 0 or end < line_end) else "`"
        for opener, closer in ("()", "{}"):
            if text.startswith(opener, at + 1):
                return text[at : _matching(text, at + 1, opener, closer) + 1]
        match = _SPECIAL.match(text, at)
        return match[0] if match else "$"

    def _operator(self, char: str) -> None:
        if (match := _REDIRECT.match(self.text, self.at)) and match[0]:
            # The digit of 2> was read as the beginning of a word.
            if self.word is not None and self.word.text.isdigit():
                self.word = None

            self._end_word()
            self.drop_next = match[0][-1:] in "<>-" and "&" not in match[0][1:]
            self.at = match.end()
        elif char == "(":
            self._open(char)
        elif char == ")":
            if self.arrays:
                self._close_array()
            elif self.word is not None and self.parentheses > 0:
                self._add(Part(char), self.at)
                self.parentheses -= 1
            else:
                self._end_word()
            self.at += 1
        else:
            self._end_statement()
            self.at += 1

    def _open(self, char: str) -> None:
        word = self.word
        if word is not None and len(word.parts) <= 2 and _ASSIGNMENT.fullmatch(word.text):
            word.items = []
            self.arrays.append((self.words, word))
            self.words, self.word = [], None
        elif word is not None:
            self._add(Part(char), self.at)
            self.parentheses += 1
        self.at += 1

    def _close_array(self) -> None:
        self._end_word()
        outer, word = self.arrays.pop()
        word.items, self.words = self.words, outer
        self.words.append(word)


def _matching(text: str, at: int, opener: str, closer: str) -> int:
    """Index of the bracket that closes the one at `at`; the end of the line (or text) where none does."""
    depth = 0
    for position in range(at, min(len(text), at + 4000)):
        char = text[position]
        if char == opener:
            depth += 1
        elif char == closer:
            depth -= 1
            if not depth:
                return position
    end = text.find("\n", at)
    return (len(text) if end < 0 else end) - 1


@dataclass(slots=True)
class Variables:
    """Variables assigned in the text itself: a value, a list of words, or None where the value cannot be known.

    room: how much more expansions may come to; without room they stay as typed.
    """

    values: dict[str, str | list[Word] | None] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    plain: dict[str, Word] = field(default_factory=dict)
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
        if not rest or not all(_ASSIGNMENT.match(word.text) for word in rest):
            return export and words[0].text != "env" and all(_NAME.fullmatch(word.text) for word in rest)
        if words[0].text == "env":
            return False
        for word in rest:
            self._assign_one(word, statement.nested > 0, export)
        return True

    def _assign_one(self, word: RawWord, conditional: bool, export: bool) -> None:
        match = _ASSIGNMENT.match(word.text)
        assert match is not None
        name, add = match[1], match[2] == "+="
        if word.items is not None:
            items = [expanded for item in word.items for expanded in expand(item, self)]
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
        if text is not None:
            target[name] = Word(text, word.line)


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
        match = _ASSIGNMENT.match(word.text)
        if match and match[2] == "=":
            yield match[1], next(iter(expand(_without_prefix(word, match.end()), variables, split=False)), Word("", word.line))


def environment(pairs: Mapping[str, Word]) -> dict[str, str]:
    """Names to text, without those whose value is unknown."""
    return {name: word.text for name, word in pairs.items() if not word.unresolved}
