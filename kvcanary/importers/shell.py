"""Shell text cut into statements and words as typed, without running anything; shell_expand puts values in.

Follows POSIX quoting, comments, continuations and parameter expansion as far as a paste needs it, and is more patient than a shell where
pastes are damaged: a quote that never closes takes the rest of the text, a backslash before trailing blanks still continues the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_WORDS = 20_000
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_BLANK_CONTINUATION = re.compile(r"\\[ \t]+\r?\n")
_PLAIN = re.compile(r"[^\s\\'\"$`#;&|<>()]+")
_REDIRECT = re.compile(r"(?:\d*|&)(?:>>?|<<?<?-?)(?:&\d*-?)?")
_SPECIAL = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_OPENERS = ("if", "for", "while", "until", "case", "select")
_CLOSERS = ("fi", "done", "esac")
_TESTS = ("[", "[[", "test")
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


@dataclass(slots=True)
class Statement:
    """Words of one simple command; `nested` counts the if, for, while and case around it.

    comment is the line of a comment that ended it inside its continued lines, 0 where none did.
    """

    words: list[RawWord]
    line: int
    nested: int = 0
    comment: int = 0


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
        self.comment = 0
        self.guarded = False

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
            if self.arrays:
                self._end_word()
            else:
                # A line that ends in && goes on in the next one.
                ends = bool(self.words) or self.word is not None
                self._end_statement()
                self.guarded = self.guarded and not ends
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
            self.result.statements.append(Statement(words, words[0].line, self.nested + self.guarded, self.comment))
        self.comment = 0

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
        if self.words and not self.arrays and not self.text[self.text.rfind("\n", 0, self.at) + 1 : self.at].strip():
            self.comment = self.line
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
            before = len(self.result.statements)
            self._end_statement()
            # What stands behind a test and && or || counts under a condition, up to the end of the line.
            if self.text.startswith(("&&", "||"), self.at):
                tested = len(self.result.statements) > before and self.result.statements[-1].words[0].text in _TESTS
                self.guarded = self.guarded or tested
                self.at += 1
            elif char == ";":
                self.guarded = False
            self.at += 1

    def _open(self, char: str) -> None:
        word = self.word
        if word is not None and len(word.parts) <= 2 and ASSIGNMENT.fullmatch(word.text):
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
