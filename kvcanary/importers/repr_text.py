"""Python reprs in logs: ServerArgs(...), CudaGraphConfig(...), dicts, enums; complete or cut anywhere.

Only what is certainly complete is kept: a number that the text ends in may go on, and a string that does not close is no value.
"""

from __future__ import annotations

import re
from typing import Any

MAX_NESTING = 20
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|inf|nan)(?=\s*[,)\]}>])")
_WORD = re.compile(r"(?:None|True|False)(?=\s*[,)\]}])")
_STRING = re.compile(r"[bru]?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", re.DOTALL)
_ENUM = re.compile(r"<(?P<name>[\w.]+): (?P<value>[^<>]{0,200})>")
_CALL = re.compile(r"[A-Za-z_][\w.]*\(")
_BARE = re.compile(r"[A-Za-z_][\w.]*(?=\s*[,)\]}])")
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)=")
_WORDS = {"None": None, "True": True, "False": False}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class _Cut(Exception):
    """The text ends inside a value."""


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def value(self, depth: int = 0) -> Any:
        self._blanks()
        if depth > MAX_NESTING:
            raise _Cut
        if match := self._take(_NUMBER):
            return float(match) if re.search(r"[.einf]", match) else int(match) if len(match) < 40 else None
        if match := self._take(_WORD):
            return _WORDS[match]
        if match := self._take(_STRING):
            return _ESCAPE.sub(r"\1", match.lstrip("bru")[1:-1])
        char = self.text[self.at : self.at + 1]
        if char in ("[", "("):
            self.at += 1
            return self._items("]" if char == "[" else ")", depth)
        if char == "{":
            self.at += 1
            return self._pairs(depth)
        if enum := _ENUM.match(self.text, self.at):
            self.at = enum.end()
            # <CanaryMode.LOG: 'log'> and <RealKvHashMode.PARTIAL: 1>: the name says the same in both.
            return enum["name"].rpartition(".")[2].lower()
        if self._take(_CALL):
            fields, complete = self.fields(depth + 1)
            if not complete:
                raise _Cut
            return fields
        if match := self._take(_BARE):
            return match
        raise _Cut

    def _blanks(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def _comma(self) -> None:
        self._blanks()
        if self.text[self.at : self.at + 1] == ",":
            self.at += 1
            self._blanks()

    def _ends(self, closer: str) -> bool:
        self._blanks()
        if self.at >= len(self.text):
            raise _Cut
        if self.text[self.at] == closer:
            self.at += 1
            return True
        return False

    def _items(self, closer: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._ends(closer):
            items.append(self.value(depth + 1))
            self._comma()
        return items

    def _pairs(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not self._ends("}"):
            key = str(self.value(depth + 1)) if self.text[self.at] != "'" else self._key()
            self._blanks()
            if self.text[self.at : self.at + 1] != ":":
                raise _Cut
            self.at += 1
            pairs[key] = self.value(depth + 1)
            self._comma()
        return pairs

    def _key(self) -> str:
        key = self._take(_STRING)
        if not key:
            raise _Cut
        return key[1:-1]

    def fields(self, depth: int) -> tuple[dict[str, Any], bool]:
        """name=value pairs up to the closing bracket; what was read before a cut, and whether there was none."""
        found: dict[str, Any] = {}
        while True:
            self._blanks()
            if self.text[self.at : self.at + 1] == ")":
                self.at += 1
                return found, True
            match = _FIELD.match(self.text, self.at)
            if match is None:
                return found, False
            self.at = match.end()
            try:
                found[match[1]] = self.value(depth)
            except _Cut:
                if not self._skip():
                    return found, False
            self._comma()

    def _skip(self) -> bool:
        """Behind a value of an unknown form: go on at the next field, if there is one."""
        match = re.compile(r", (?=[a-z_]\w*=)").search(self.text, self.at, self.at + 5000)
        self.at = match.end() if match else len(self.text)
        return match is not None


def read_call(text: str, at: int) -> dict[str, Any]:
    """Fields of Name(a=1, b='x', ...) where `at` is behind the opening bracket; the complete ones of a cut text."""
    return _Reader(text, at).fields(0)[0]


def read_dict(text: str, at: int) -> dict[str, Any]:
    """Pairs of {'a': 1, ...} where `at` is the brace; the complete ones of a cut text."""
    reader = _Reader(text, at + 1)
    found: dict[str, Any] = {}
    try:
        while not reader._ends("}"):
            key = reader._key()
            reader._blanks()
            if text[reader.at : reader.at + 1] != ":":
                break
            reader.at += 1
            found[key] = reader.value(1)
            reader._comma()
    except _Cut:
        pass
    return found
