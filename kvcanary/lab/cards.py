"""Cards of bad slots as they stand in cards.json and in exported runs, checked before anybody reads a field of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvcanary.errors import StoreError
from kvcanary.layout import SLOT_FIELDS

_Check = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    # True is an int to Python and none to JSON.
    return isinstance(value, int) and not isinstance(value, bool)


def _slot(value: Any) -> bool:
    return _whole(value) and value >= 0


def _record(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(SLOT_FIELDS) and all(map(_whole, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _by_slot(value: Any) -> bool:
    return isinstance(value, dict) and all(slot.isdecimal() and _whole(bits) for slot, bits in value.items())


_A_SLOT, _A_NUMBER, _A_TEXT = ("a slot number", _slot), ("a whole number", _whole), ("a text", _text)
_A_RECORD = (f"{len(SLOT_FIELDS)} whole numbers", _record)
_CARD: Mapping[str, tuple[str, _Check]] = {
    "slot": _A_SLOT,
    "request": _A_NUMBER,
    "position": _A_NUMBER,
    "stored": _A_RECORD,
    "expected": _A_RECORD,
    "predecessor": _A_NUMBER,
    "successor": _A_NUMBER,
    "reasons": ("a list of texts", _texts),
}
_FAULT: Mapping[str, tuple[str, _Check]] = {
    "kind": _A_TEXT,
    "slot": _A_SLOT,
    "field": _A_TEXT,
    "before": _A_NUMBER,
    "after": _A_NUMBER,
    "expected": ("an object of slots with their reason bits", _by_slot),
    "why": _A_TEXT,
}


def check_cards(value: Any) -> list[dict[str, Any]]:
    """The same cards, when every field that a reader uses is there and of its kind. StoreError names the first that is not.

    A card has slot, request, position, stored and expected (int64 [4], in the order of layout.SLOT_FIELDS), predecessor, successor (-1 at
    the ends of a chain), reasons, and fault, which is null where nothing was planted. All versions have written these.
    """
    if not isinstance(value, list):
        raise StoreError(f"cards must be a list, got {type(value).__name__}")
    for number, card in enumerate(value):
        place = f"cards[{number}]"
        _check(card, _CARD, place)
        if "fault" not in card:
            raise StoreError(f"{place}.fault is missing")
        if card["fault"] is not None:
            _check(card["fault"], _FAULT, f"{place}.fault")
    return value


def _check(found: Any, fields: Mapping[str, tuple[str, _Check]], place: str) -> None:
    if not isinstance(found, dict):
        raise StoreError(f"{place} must be an object, got {type(found).__name__}")
    for name, (words, holds) in fields.items():
        if name not in found:
            raise StoreError(f"{place}.{name} is missing")
        if not holds(found[name]):
            raise StoreError(f"{place}.{name} must be {words}, got {str(found[name])[:60]!r}")
