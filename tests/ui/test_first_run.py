"""The three stories for somebody new: each goes to its page with something real-shaped loaded, and says what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.ui import services, state
from kvcanary.ui.first_run import STORIES

APP = str(Path(__file__).parents[2] / "app.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    yield
    services.jobs.clear()


def open_app(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def offered(app: AppTest) -> list[str]:
    return [button.label for button in app.button if (button.key or "").startswith("story.")]


def html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


@pytest.mark.parametrize(
    ("number", "title", "shown"),
    [(0, "Plan", "Starts"), (1, "Benchmark", "65\u202f536 slots"), (2, "Inspect", "Wrong mapping or slot reuse")],
)
def test_a_story_loads_its_example_goes_there_and_says_what_to_look_at(number: int, title: str, shown: str) -> None:
    app = open_app()
    app.button(key=f"story.{number}").click().run()
    assert not app.exception
    assert app.title[0].value == title
    assert shown in html(app)
    assert [info.value for info in app.info if info.value == STORIES[number].hint]
    app.button(key="story.close").click().run()
    assert not app.exception
    assert not [info.value for info in app.info if info.value == STORIES[number].hint]


def test_the_row_stays_while_typing_and_goes_when_told() -> None:
    app = open_app()
    assert offered(app)[:3] == [story.label for story in STORIES]
    app.text_input(key=state.widget_key("pool_slot_count")).set_value("77777").run()
    assert offered(app), "nothing may jump while somebody types"
    app.button(key="story.none").click().run()
    assert not offered(app)


def test_a_link_with_settings_is_from_somebody_who_knows() -> None:
    assert offered(open_app(pool_slot_count="20000")) == []
