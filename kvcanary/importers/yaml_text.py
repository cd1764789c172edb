"""YAML as operators paste it: fragments that begin anywhere, are cut anywhere and carry their line numbers.

Reads block and flow collections, block scalars, quoted and plain scalars, comments, anchors, aliases and merged mappings; passes over tags.
A line that fits nowhere is left out instead of ending the reading, because a paste is rarely a whole document.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from kvcanary.importers.yaml_flow import MAX_NESTING, Brackets, Flow, unquote
from kvcanary.importers.yaml_nodes import Mapping, Node, Scalar, Sequence, native, walk

__all__ = ["Mapping", "Node", "Scalar", "Sequence", "native", "read_yaml", "walk"]

MAX_LINES = 20_000
# What all aliases of a text may come to: an alias of an alias doubles with each line.
MAX_ALIASED_NODES = 20_000
# What kubectl -o json prints of a pod is one flow collection; one that never closes takes less.
_MOST_FLOW_LINES, _MOST_OPEN_LINES, _MOST_QUOTED_LINES = 5000, 500, 100
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.){0,200}"|'[^']{0,200}'|[^\s#&*!\[\]{}"',|>%@`:-][^:#\n]{0,200}?|--?[A-Za-z][\w-]{0,100})\s{0,40}:(?:[ \t]+(.*)|$)"""
)
_PROPERTY = re.compile(r"(?:(?:!\S*|&(\S+))(?:\s+|$))+")
_ALIAS = re.compile(r"\*([^\s,\]}]+)")
_BLOCK = re.compile(r"[|>][+\-0-9]*(?:\s+#.*)?$")
_COMMENT = re.compile(r"\s#.*$")


def read_yaml(text: str, first_line: int = 1) -> list[Node]:
    """The top-level nodes of a text: one per document or fragment."""
    return list(_Reader(text, first_line).nodes())


class _Reader:
    def __init__(self, text: str, first_line: int) -> None:
        self.raw = text.replace("\t", "    ").split("\n")[:MAX_LINES]
        self.first = first_line
        self.at = 0
        self.anchors: dict[str, Node] = {}
        self.room = MAX_ALIASED_NODES

    def nodes(self) -> Iterator[Node]:
        while (line := self._peek()) is not None:
            before = self.at
            if (node := self._block(line[0], 0)) is not None:
                yield node
            if self.at == before:
                self.at += 1

    def _peek(self) -> tuple[int, str] | None:
        """Indent and content of the next line that says something."""
        while self.at < len(self.raw):
            line = self.raw[self.at].rstrip("\r")
            content = line.strip()
            if content and not content.startswith("#") and content not in ("---", "..."):
                return len(line) - len(line.lstrip()), content
            self.at += 1
        return None

    def _block(self, indent: int, depth: int) -> Node | None:
        line = self._peek()
        if line is None or line[0] < indent or depth > MAX_NESTING:
            return None
        if line[1] == "-" or line[1].startswith("- "):
            return self._sequence(line[0], depth)
        if _KEY.match(line[1]):
            return self._mapping(line[0], depth)
        number = self.first + self.at
        self.at += 1
        return self._value(line[1], line[0] - 1, number, depth)

    def _sequence(self, indent: int, depth: int) -> Sequence:
        sequence = Sequence(self.first + self.at)
        while (line := self._peek()) and line[0] == indent and (line[1] == "-" or line[1].startswith("- ")):
            content = line[1][1:].lstrip()
            inner = indent + len(line[1]) - len(content)
            number = self.first + self.at
            if content and not content.startswith(("-", "|", ">", '"', "'", "[", "{", "#")) and _KEY.match(content):
                # The item's mapping begins on the dash's own line.
                self.raw[self.at] = " " * inner + content
                node: Node | None = self._block(inner, depth + 1)
            elif content.startswith("- "):
                self.raw[self.at] = " " * inner + content
                node = self._block(inner, depth + 1)
            else:
                self.at += 1
                node = self._value(content, indent, number, depth + 1) if content else self._block(indent + 1, depth + 1)
            sequence.items.append(node if node is not None else Scalar("", number))
        return sequence

    def _mapping(self, indent: int, depth: int) -> Mapping:
        mapping = Mapping(self.first + self.at)
        while (line := self._peek()) and line[0] == indent and (match := _KEY.match(line[1])):
            number = self.first + self.at
            self.at += 1
            rest = (match[2] or "").strip()
            anchor = ""
            if properties := _PROPERTY.match(rest):
                anchor, rest = properties[1] or "", rest[properties.end() :]
            if rest and not rest.startswith("#"):
                value: Node | None = self._value(rest, indent, number, depth + 1)
            else:
                following = self._peek()
                dash = following is not None and following[0] == indent and (following[1] == "-" or following[1].startswith("- "))
                value = self._block(indent if dash else indent + 1, depth + 1)
            value = value if value is not None else Scalar("", number)
            if anchor:
                self.anchors[anchor] = value
            mapping.entries.append((unquote(match[1])[0], value))
        mapping.entries = self._merged(mapping.entries)
        return mapping

    def _merged(self, entries: list[tuple[str, Node]]) -> list[tuple[str, Node]]:
        """The entries with those that << takes from other mappings before them; the mapping's own win, then the first that is named."""
        if not any(name == "<<" for name, _ in entries):
            return entries
        own = {name for name, _ in entries}
        inherited: dict[str, Node] = {}
        for value in (value for name, value in entries if name == "<<"):
            for node in value.items if isinstance(value, Sequence) else [value]:
                taken = self._alias(node.text, node.line) if isinstance(node, Scalar) else node
                for name, inner in taken.entries if isinstance(taken, Mapping) else []:
                    if name not in own:
                        inherited.setdefault(name, inner)
        return [*inherited.items(), *(entry for entry in entries if entry[0] != "<<")]

    def _alias(self, text: str, number: int) -> Node:
        """What an alias stands for; the alias as typed where the text does not hold it, or there is no room."""
        match = _ALIAS.fullmatch(text)
        node = self.anchors.get(match[1]) if match else None
        if node is None:
            return Scalar(text, number)
        size = sum(1 for _ in itertools.islice(walk(node), self.room + 1))
        if size > self.room:
            return Scalar(text, number)
        self.room -= size
        return node

    def _value(self, rest: str, indent: int, number: int, depth: int) -> Node:
        """A value that begins on the current line, which was consumed already; `indent` is that of its key."""
        if properties := _PROPERTY.match(rest):
            value = self._value(rest[properties.end() :] or "~", indent, number, depth)
            if properties[1]:
                self.anchors[properties[1]] = value
            return value
        if _ALIAS.fullmatch(bare := _COMMENT.sub("", rest)):
            return self._alias(bare, number)
        if _BLOCK.match(rest):
            return Scalar(self._block_scalar(indent, folded=rest[0] == ">"), number + 1, quoted=True)
        if rest[0] in "[{" and not rest.startswith("{{"):  # {{ }} is a template's hole, not a mapping.
            return Flow(self._until_closed(rest), number).read(depth)
        if rest[0] in "\"'":
            text, _ = unquote(self._until_quote(rest))
            return Scalar(text, number, quoted=True)
        lines = [_COMMENT.sub("", " " + rest).strip()]
        while (line := self._peek()) and line[0] > indent and not self._structure(line[1]):
            lines.append(_COMMENT.sub("", " " + line[1]).strip())
            self.at += 1
        return Scalar(" ".join(lines), number)

    @staticmethod
    def _structure(content: str) -> bool:
        return content == "-" or content.startswith("- ") or (not content.startswith("--") and _KEY.match(content) is not None)

    def _block_scalar(self, indent: int, *, folded: bool) -> str:
        lines: list[str] = []
        while self.at < len(self.raw):
            line = self.raw[self.at].rstrip("\r")
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            lines.append(line)
            self.at += 1
        margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        return (" " if folded else "\n").join(line[margin:] for line in lines)

    def _until_closed(self, text: str) -> str:
        """Flow text up to the bracket that closes it, over several lines if need be."""
        brackets, start = Brackets(), self.at
        lines = [text]
        while not (closed := brackets.close_in(lines[-1])) and len(lines) <= _MOST_FLOW_LINES and self.at < len(self.raw):
            lines.append("\n" + self.raw[self.at].rstrip("\r"))
            self.at += 1
        if not closed:
            self.at = min(self.at, start + _MOST_OPEN_LINES)
            del lines[_MOST_OPEN_LINES + 1 :]
        return "".join(lines)

    def _until_quote(self, text: str) -> str:
        lines, closed = [text], unquote(text)[1]
        while not closed and len(lines) <= _MOST_QUOTED_LINES and self.at < len(self.raw):
            lines.append(" " + self.raw[self.at].strip())
            closed = unquote(text[0] + lines[-1])[1]
            self.at += 1
        return "".join(lines)
