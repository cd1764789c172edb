"""Dataclasses from JSON values: what fits is built as it is, what does not is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from kvcanary.errors import ConfigError
from kvcanary.typed import Loose, typed


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str


@dataclass(frozen=True, kw_only=True)
class Whole:
    count: int
    share: float = 0.5
    colour: Colour = Colour.RED
    parts: tuple[Part, ...] = ()
    free: Any = None
    limits: dict[str, int] = field(default_factory=dict)


def test_lists_become_tuples_and_texts_enums() -> None:
    built = typed(Whole, {"count": 3, "share": 1, "colour": "red", "parts": [{"name": "a"}], "free": {"x": [1]}})
    assert built == Whole(count=3, share=1.0, parts=(Part(name="a"),), free={"x": [1]})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "count: is missing"),
        ({"count": "3"}, "count: should be a valid integer, got '3'"),
        ({"count": True}, "count: should be a valid integer, got True"),
        ({"count": 1.0}, "count: should be a valid integer, got 1.0"),
        ({"count": 1, "share": None}, "share: should be a valid number, got None"),
        ({"count": 1, "colour": "blue"}, "colour: should be 'red', got 'blue'"),
        ({"count": 1, "parts": [{"name": "a"}, {"name": 5}]}, "parts.1.name: should be a valid string, got 5"),
        ({"count": 1, "parts": {"name": "a"}}, "parts: should be a valid array"),
        ({"count": 1, "other": 2}, "'other' is no field of it"),
        ({"count": 1, "": 2}, "'' is no field of it"),
        ({"count": 1, "parts": [{"name": "a"}, {"name": "b", "more": 1}]}, "'more' is no field of it"),
        ({"count": 1, "free": float("inf")}, "holds what JSON does not have"),
        ({"count": 1, "free": {1, 2}}, "holds what JSON does not have"),
        ({"count": 1, "parts": [{"name": "a"}, {"name": "b", "n" * 900: 1}]}, "'nnn"),
        ({"count": 1, "limits": {"n" * 900: "x"}}, "limits.nnn"),
        ({"count": 1, "free": "x" * 9, "share": "y" * 900}, "share: should be a valid number, got 'yyy"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(Whole, values)
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 200


def test_loose_reads_what_fits_and_nothing_else() -> None:
    values = {
        "text": "a",
        "flag": True,
        "whole": 7,
        "below": -7,
        "huge": 1 << 63,
        "share": 0.5,
        "nan": float("nan"),
        "list": ["a", 1, {"b": "c"}, {}],
    }
    loose = Loose({**values, "object": {"one": {"text": "x"}, "two": 3}, "none": None})
    names = [*values, "object", "none", "missing"]
    assert {name: found for name in names if (found := loose.text(name))} == {"text": "a"}
    assert {name: found for name in names if (found := loose.flag(name)) is not None} == {"flag": True}
    assert {name: found for name in names if (found := loose.integer(name)) is not None} == {"whole": 7, "below": -7}
    assert {name: found for name in names if (found := loose.count(name)) is not None} == {"whole": 7}
    assert {name: found for name in names if (found := loose.number(name)) is not None} == {"whole": 7, "below": -7, "share": 0.5}
    assert {name: found for name in names if (found := loose.texts(name))} == {"list": ["a"]}
    assert [part.text("b") for part in loose.parts("list")] == ["c"]
    assert [name for name in names if loose.part(name)] == ["object"]
    assert [(name, part.text("text")) for name, part in loose.named("object")] == [("one", "x")]
    assert not any([Loose(None), Loose([1]), loose.named("list"), loose.parts("object")])
