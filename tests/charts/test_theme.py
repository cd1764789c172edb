"""Every colour has one place: the theme module. Streamlit reads its own from a file, which says the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kvcanary.charts import compare, frontier, theme, violations
from kvcanary.charts.theme import ThemeName

PACKAGE = Path(theme.__file__).parents[1]
# A reference such as owner/repository#1234 is none.
COLOR = re.compile(r"(?<!\w)#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6}|[0-9a-fA-F]{3,4})\b|\brgba?\(")
STREAMLIT = tomllib.loads((PACKAGE.parent / ".streamlit" / "config.toml").read_text())["theme"]


def test_no_colour_stands_outside_the_theme() -> None:
    files = [path for folder in ("charts", "ui") for path in (PACKAGE / folder).rglob("*") if path.suffix in (".py", ".css", ".js")]
    assert {path.suffix for path in files} == {".py", ".css", ".js"}
    assert {path.name: COLOR.findall(path.read_text()) for path in files if COLOR.search(path.read_text())}.keys() == {"theme.py"}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_streamlit_shows_the_same(name: ThemeName) -> None:
    assert {key: color for key, color in STREAMLIT[name].items() if key.endswith("Color")} == {
        "primaryColor": theme.pick(theme.SERIES["stamp"], name),
        "backgroundColor": theme.pick(theme.GROUND, name),
        "secondaryBackgroundColor": theme.pick(theme.SECOND_GROUND, name),
        "textColor": theme.ink(name),
        "borderColor": theme.faint(name),
    }
    assert set(STREAMLIT["chartCategoricalColors"]) < set(theme.REASONS)


def test_every_line_has_a_colour_of_its_own() -> None:
    assert len(set(theme.RUNS)) == len(theme.RUNS) == compare.RUN_LIMIT
    assert len(set(theme.CONFIGS)) == len(theme.CONFIGS) == len(frontier._SHAPES)
    assert len(set(theme.REASONS)) == len(theme.REASONS) == len(violations._PATTERNS)
