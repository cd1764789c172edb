"""Tables whose rows can be selected: a grid is a canvas, and nobody guesses its key."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kvcanary.ui import blocks


def selectable() -> Iterator[tuple[str, str]]:
    """(place, alt) of every table of the pages with rows to select."""
    for path in sorted(Path(blocks.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "st.dataframe":
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if "on_select" in given:
                    yield f"{path.name}:{node.lineno}", given["alt"]


def test_every_table_says_how_a_row_is_selected_by_keyboard() -> None:
    found = dict(selectable())
    assert len(found) >= 7
    assert [place for place, alt in found.items() if "Shift+Space" not in alt] == []
