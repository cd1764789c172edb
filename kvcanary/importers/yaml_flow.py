"""Flow collections and quoted scalars of YAML text: [a, "b", {c: d}]."""

from __future__ import annotations

from kvcanary.importers.yaml_nodes import Mapping, Node, Scalar, Sequence

MAX_NESTING = 40


class Brackets:
    """How deep a flow collection stands open, line by line."""

    def __init__(self) -> None:
        self.depth, self.quote, self.skip = 0, "", False

    def close_in(self, text: str) -> bool:
        """Whether the outermost bracket closes in this piece."""
        for char in text:
            if self.skip:
                self.skip = False
            elif self.quote:
                self.skip = char == "\\" and self.quote == '"'
                self.quote = "" if char == self.quote else self.quote
            elif char in "\"'":
                self.quote = char
            elif char in "[{":
                self.depth += 1
            elif char in "]}":
                self.depth -= 1
                if self.depth <= 0:
                    return True
        return False


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def unquote(text: str) -> tuple[str, bool]:
    """Text of a quoted scalar and whether the quote closes; plain text stays as it is."""
    if not text or text[0] not in "\"'":
        return text.strip(), True
    quote, at, found = text[0], 1, []
    while at < len(text):
        char = text[at]
        if quote == '"' and char == "\\" and at + 1 < len(text):
            found.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
        elif char == quote == "'" and text[at + 1 : at + 2] == "'":
            found.append("'")
            at += 2
        elif char == quote:
            return "".join(found), True
        else:
            found.append(char)
            at += 1
    return "".join(found), False


class Flow:
    """Reads one flow collection whose first line has the number `line`."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line

    def read(self, depth: int) -> Node:
        """The collection or scalar that begins here, `depth` collections deep."""
        self._blanks()
        char = self.text[self.at : self.at + 1]
        if char == "[" and depth <= MAX_NESTING:
            return self._items(depth)
        if char == "{" and depth <= MAX_NESTING:
            return self._pairs(depth)
        return self._scalar()

    def _blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \n,":
            self.line += self.text[self.at] == "\n"
            self.at += 1

    def _items(self, depth: int) -> Sequence:
        sequence = Sequence(self.line)
        self.at += 1
        while True:
            self._blanks()
            if self.at >= len(self.text) or self.text[self.at] == "]":
                self.at += 1
                return sequence
            before = self.at
            sequence.items.append(self.read(depth + 1))
            self.at += self.at == before

    def _pairs(self, depth: int) -> Mapping:
        mapping = Mapping(self.line)
        self.at += 1
        while True:
            self._blanks()
            if self.at >= len(self.text) or self.text[self.at] == "}":
                self.at += 1
                return mapping
            before = self.at
            key = self._scalar(stop=":")
            value: Node = Scalar("", self.line)
            if self.text[self.at : self.at + 1] == ":":
                self.at += 1
                value = self.read(depth + 1)
            mapping.entries.append((key.text, value))
            self.at += self.at == before

    def _scalar(self, stop: str = "") -> Scalar:
        line, start = self.line, self.at
        if self.text[start : start + 1] in ("'", '"'):
            quote = self.text[start]
            self.at += 1
            while self.at < len(self.text) and self.text[self.at] != quote:
                self.at += 1 + (quote == '"' and self.text[self.at] == "\\")
            self.at = min(len(self.text), self.at + 1)
            return Scalar(unquote(self.text[start : self.at])[0], line, quoted=True)
        while self.at < len(self.text) and self.text[self.at] not in ",]}\n" + stop:
            self.at += 1
        return Scalar(self.text[start : self.at].strip(), line)
