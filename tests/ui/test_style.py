"""Colours of text against the theme's backgrounds: WCAG's contrast of level AA, by its own formula."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kvcanary.charts.theme import PAGE, ThemeName, pick
from kvcanary.ui import style

THEME = tomllib.loads((Path(__file__).parents[2] / ".streamlit" / "config.toml").read_text())["theme"]


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["error", "warning", "note", "source", "pass", "ink"])
def test_text_on_both_backgrounds(scheme: ThemeName, kind: str) -> None:
    for background in (THEME[scheme]["backgroundColor"], THEME[scheme]["secondaryBackgroundColor"]):
        assert contrast(pick(PAGE[kind], scheme), background) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_primary_buttons_and_links(scheme: ThemeName) -> None:
    assert contrast(pick(PAGE["on-primary"], scheme), THEME[scheme]["primaryColor"]) >= 4.5
    assert contrast(THEME[scheme]["primaryColor"], THEME[scheme]["backgroundColor"]) >= 4.5
    assert contrast(THEME[scheme]["textColor"], THEME[scheme]["backgroundColor"]) >= 7


def test_every_class_that_the_pages_write_has_a_rule() -> None:
    folder = Path(style.__file__).parent
    written = set(re.findall(r"\bkv[cl]-[a-z][a-z0-9-]*", "".join(path.read_text() for path in folder.glob("*.py"))))
    ruled = set(re.findall(r"\.(kv[cl]-[a-z][a-z0-9-]*)", "".join(path.read_text() for path in folder.glob("*.css"))))
    # The one that means: no field at all.
    assert written - ruled == {"kvc-none"}
