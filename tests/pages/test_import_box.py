"""The box on Plan: what is pasted fills the form with its source, and can be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.ui import state

APP = str(Path(__file__).parents[2] / "app.py")
COMMAND = (
    "SGLANG_KV_CANARY_RING_CAPACITY=2048 python -m sglang.launch_server --model-path org/model-7b --max-running-requests 24 \\\n"
    "  --context-length 9000 --page-size 32 --kv-canary raise --kv-canary-real-data partial --no-such-flag 3 $MORE"
)


def paste(text: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.text_area(key="paste_text").set_value(text).run()
    return app.button(key="import").click().run()


def html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def value(app: AppTest, field: str) -> str:
    return str(state_of(app)[field])


def state_of(app: AppTest) -> dict[str, str]:
    texts: dict[str, str] = app.session_state["settings_text"]
    return texts


def test_a_launch_command_fills_the_form_and_names_its_sources() -> None:
    app = paste(COMMAND)
    assert not app.exception
    assert app.text_input(key=state.widget_key("page_size")).value == "32"
    assert (value(app, "mode"), value(app, "ring_capacity"), value(app, "max_seq_len_per_req")) == ("raise", "2048", "9004")
    text = html(app)
    assert "from --page-size" in text
    assert "--no-such-flag" in text
    assert "$MORE" in text
    assert [button.key for button in app.button if button.key.startswith("undo")] == ["undo_import"]
    app.button(key="undo_import").click().run()
    assert app.text_input(key=state.widget_key("page_size")).value == "1"
    assert "from --page-size" not in html(app)


def test_the_error_of_an_empty_pool_is_explained_with_its_way_out() -> None:
    app = paste("ValueError: kv-canary: pool_slot_count must be positive, got 0")
    assert not app.exception
    text = html(app)
    assert "kv-canary: pool_slot_count must be positive, got 0" in text
    assert "--mem-fraction-static" in text or "mem_fraction_static" in text


@pytest.mark.parametrize("text", ["good morning", "\x00\x01\x02", "{" * 5000, "[" * 100_000])
def test_what_cannot_be_read_says_so_and_loses_nothing(text: str) -> None:
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.text_input(key=state.widget_key("pool_slot_count")).set_value("4242").run()
    app.text_area(key="paste_text").set_value(text).run()
    app.button(key="import").click().run()
    assert not app.exception
    assert "Not imported" in html(app)
    assert app.text_input(key=state.widget_key("pool_slot_count")).value == "4242"


def test_an_empty_box_says_what_to_do() -> None:
    assert "paste some text or upload a file" in html(paste("   "))


def test_hostile_text_in_a_command_stays_text() -> None:
    app = paste("python -m sglang.launch_server --model-path '<img src=x onerror=alert(1)>' --page-size 16")
    assert "<img src=x" not in html(app)
