"""Every term has a short help: each input says what it is and what it changes, where a reader can see it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Widget

from tests.stored_runs import points, run_campaign, store_run

ROOT = Path(__file__).parents[2]
PAGES = ("plan", "benchmark", "fault_lab", "inspect_log", "runs")
INPUTS = (
    "checkbox", "file_uploader", "multiselect", "number_input", "pills", "radio", "segmented_control", "select_slider", "selectbox", "slider",
    "text_area", "text_input", "toggle",
)  # fmt: skip
# Inputs without a label on the screen, which Streamlit shows without their help as well, and where the reader finds it instead.
ELSEWHERE = {
    "Start from a preset": "beside the title of Plan",
    "Paste anything": "at the button Import; the empty box says what it takes",
    "Latency": "beside the heading of its chart",
    "Cost": "beside the heading of its chart",
    "Run with seed": "beside the word Seed before it",
    "Colour": "its choices are sentences: Colour by status, Colour by owner",
    "Pool": "its choices are the names of the pools",
}


def calls() -> Iterator[tuple[str, str, dict[str, ast.expr]]]:
    """(place, label, keywords) of each input that the pages draw, also of those that only some state shows."""
    for path in sorted([*(ROOT / "pages").glob("*.py"), *(ROOT / "kvcanary" / "ui").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in INPUTS:
                label = node.args[0].value if isinstance(node.args[0], ast.Constant) else ast.unparse(node.args[0])
                yield f"{path.name}:{node.lineno}", str(label), {word.arg: word.value for word in node.keywords if word.arg}


def test_an_input_has_a_help_or_a_named_place_for_it() -> None:
    found = list(calls())
    hidden = [(place, label, given) for place, label, given in found if "label_visibility" in given]
    assert {label for _, label, _ in hidden} == ELSEWHERE.keys()
    assert [place for place, _, given in hidden if "help" in given] == [], "a hidden label hides its help"
    assert [(place, label) for place, label, given in found if not given.keys() & {"help", "label_visibility"}] == []


def inputs(app: AppTest) -> list[Widget]:
    kinds = (
        app.button_group, app.checkbox, app.file_uploader, app.multiselect, app.number_input, app.select_slider, app.selectbox, app.slider,
        app.text_area, app.text_input, app.toggle,
    )  # fmt: skip
    return [widget for kind in kinds for widget in kind]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


@pytest.fixture
def filled(home: Path) -> str:
    """A store with something for every page; the id of a campaign."""
    for number in (1, 2):
        store_run(home, number, measured=[*points(), *points(mode="partial")], map_slots=512)
    return run_campaign(home, 3, "partial")


@pytest.mark.parametrize("page", PAGES)
def test_a_help_is_a_sentence_and_not_the_label_again(filled: str, page: str) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.switch_page(f"pages/{page}.py")
    app.run()
    if page == "inspect_log":
        next(button for button in app.button if button.key == "inspect_example").click().run()
    assert not app.exception
    shown = [widget for widget in inputs(app) if not widget.proto.label_visibility.value]
    assert len(shown) >= 3
    for widget in shown:
        assert widget.proto.help.endswith((".", "`")), widget.label
        assert len(words(widget.proto.help) - words(widget.label)) >= 3, widget.label
