"""Cards of bad slots: read as they were written, and refused with the field that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcanary.errors import StoreError
from kvcanary.lab.cards import check_cards
from kvcanary.lab.records import RunFolder
from tests.store.making import card


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in card(3).items() if key != name}


def with_fault(**changes: Any) -> dict[str, Any]:
    return card(3, fault={**card(3)["fault"], **changes})


def test_cards_come_back_as_they_were_written(tmp_path: Path) -> None:
    cards = [card(3), card(0, fault=None, predecessor=-1, reasons=[])]
    folder = RunFolder(tmp_path)
    assert folder.read_cards() == []
    folder.write_cards(cards)
    assert folder.read_cards() == cards


@pytest.mark.parametrize(
    ("cards", "sentence"),
    [
        ({}, "cards must be a list, got dict"),
        ([card(1), 7], "cards[1] must be an object, got int"),
        ([without("position")], "cards[0].position is missing"),
        ([without("fault")], "cards[0].fault is missing"),
        ([card(3, slot=-1)], "cards[0].slot must be a slot number, got '-1'"),
        ([card(3, slot=True)], "cards[0].slot must be a slot number, got 'True'"),
        ([card(3, request="2")], "cards[0].request must be a whole number, got '2'"),
        ([card(3, stored=[1, 2, 3])], "cards[0].stored must be 4 whole numbers, got '[1, 2, 3]'"),
        ([card(3, expected=[1, 2, 3, 4.5])], "cards[0].expected must be 4 whole numbers"),
        ([card(3, successor=None)], "cards[0].successor must be a whole number, got 'None'"),
        ([card(3, reasons="token")], "cards[0].reasons must be a list of texts, got 'token'"),
        ([card(3, fault="bit")], "cards[0].fault must be an object, got str"),
        ([with_fault(kind=None)], "cards[0].fault.kind must be a text, got 'None'"),
        ([with_fault(expected={"x": 1})], "cards[0].fault.expected must be an object of slots with their reason bits"),
        ([with_fault(expected={"3": "8"})], "cards[0].fault.expected must be an object of slots with their reason bits"),
    ],
)
def test_a_wrong_card_is_refused_with_file_and_field(tmp_path: Path, cards: Any, sentence: str) -> None:
    with pytest.raises(StoreError) as caught:
        check_cards(cards)
    assert str(caught.value).startswith(sentence)
    (tmp_path / "cards.json").write_text(json.dumps(cards))
    with pytest.raises(StoreError) as caught:
        RunFolder(tmp_path).read_cards()
    assert str(caught.value).startswith(f"cards.json of run {tmp_path.name} cannot be read: {sentence}")


@pytest.mark.parametrize("content", [b"[{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cards.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"cards\.json of run"):
        RunFolder(tmp_path).read_cards()
