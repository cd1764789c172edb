"""A computed number that can say how it came about: formula, the operator's numbers, result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

Number = int | float

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One derived figure.

    `formula` is an expression over the names of `terms` (+ - * / // max min), `text` puts the numbers beside the names:
    'max(cuda_graph_max_bs 256, req_to_token_pool_size 4096) = 4096'.
    """

    name: str
    label: str
    value: int
    formula: str
    terms: Mapping[str, Number]
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", checked_terms(self.formula, self.terms))

    @property
    def text(self) -> str:
        """The formula with the operator's numbers and the result, in plain digits."""
        return formula_text(self.formula, self.terms, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineItem:
    """One line of a memory plan: what takes `bytes` on one rank, by which formula, and where the rule comes from.

    `part` groups lines for a chart (such as 'canary buffers'); `note` says what the operator should know about this line.
    """

    name: str
    label: str
    part: str
    bytes: int
    formula: str
    terms: Mapping[str, Number]
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", checked_terms(self.formula, self.terms))

    @property
    def text(self) -> str:
        """The formula with the operator's numbers and the result in bytes, in plain digits."""
        return formula_text(self.formula, self.terms, self.bytes)


def checked_terms(formula: str, terms: Mapping[str, Number]) -> Mapping[str, Number]:
    """A copy of the terms; ValueError unless they are exactly the names used by the formula."""
    if _names(formula) != terms.keys():
        raise ValueError(f"terms {sorted(terms)} do not match the formula {formula!r}")
    return dict(terms)


@lru_cache(maxsize=256)
def _names(formula: str) -> frozenset[str]:
    return frozenset(_NAME.findall(formula)) - {"max", "min"}


def formula_text(formula: str, terms: Mapping[str, Number], value: Number) -> str:
    """'3 * pool_slot_count 65536 = 196608'; plain digits, so that the line can be checked with any calculator."""
    shown = _NAME.sub(lambda match: f"{match[0]} {terms[match[0]]}" if match[0] in terms else match[0], formula)
    return f"{shown} = {value}"
