"""What the browser sends of a selection, in each of its shapes."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.ui import selection


@pytest.mark.parametrize(
    ("data", "found"), [([7, "TP0"], [[7, "TP0"]]), ((7,), [[7]]), ({"0": 7, "1": "TP0"}, [[7, "TP0"]]), (None, []), ([], [])]
)
def test_customdata_of_marked_points(data: Any, found: list[list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    points = [{"x": 1, "customdata": data}, {"x": 2}]
    monkeypatch.setattr(selection.st, "session_state", {"map": {"selection": {"points": points, "rows": []}}})
    assert selection.marked("map") == found


@pytest.mark.parametrize(("rows", "first"), [([], None), ([0], 0), ([4, 2], 4)])
def test_the_selected_row(rows: list[int], first: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection.st, "session_state", {"table": {"selection": {"points": [], "rows": rows}}})
    assert selection.first_row("table") == first
