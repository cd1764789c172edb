"""Nodes of YAML text with their line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text of one value; quoted text is never a number, a truth value or null."""

    text: str
    line: int
    quoted: bool = False

    def native(self) -> Any:
        """The value as YAML 1.1 types it: null, truth value, number or text."""
        if self.quoted:
            return self.text
        lowered = self.text.lower()
        if lowered in ("", "~", "null"):
            return None
        if lowered in ("true", "yes", "on", "false", "no", "off"):
            return lowered in ("true", "yes", "on")
        if len(self.text) <= 40 and _NUMBER.fullmatch(self.text):
            plain = self.text.replace("_", "")
            return int(plain) if plain.lstrip("+-").isdigit() else float(plain)
        return self.text


@dataclass(slots=True)
class Mapping:
    """Keys in order, repeated ones included."""

    line: int
    entries: list[tuple[str, Node]] = field(default_factory=list)

    def get(self, *names: str) -> Node | None:
        """Value of the last key of that name; the last one counts in YAML."""
        return next((node for key, node in reversed(self.entries) if key in names), None)


@dataclass(slots=True)
class Sequence:
    """Items of a list."""

    line: int
    items: list[Node] = field(default_factory=list)


Node = Scalar | Mapping | Sequence


def native(node: Node) -> Any:
    """A node as plain Python values."""
    if isinstance(node, Scalar):
        return node.native()
    if isinstance(node, Sequence):
        return [native(item) for item in node.items]
    return {key: native(value) for key, value in node.entries}


def walk(node: Node) -> Iterator[Node]:
    """The node and everything inside it, outer first."""
    yield node
    children = node.items if isinstance(node, Sequence) else [value for _, value in node.entries] if isinstance(node, Mapping) else []
    for child in children:
        yield from walk(child)
