"""The Plan page under Streamlit's test runner: open, paste, read."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

from kvcanary.ui import state

APP = str(Path(__file__).parents[2] / "app.py")
MODEL = {
    "model": "org/crane-9b",
    "num_layers": "30",
    "num_kv_heads": "4",
    "head_dim": "112",
    "model_dtype": "bfloat16",
    "device_memory_bytes": "47000MiB",
    "weight_bytes": "18GiB",
    "mem_fraction_static": "0.84",
    "pool_slot_count": "180000",
    "req_to_token_pool_size": "96",
    "max_seq_len_per_req": "20004",
    "graph_bytes": "900MiB",
}


def open_plan(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    return checked(app.run())


def checked(app: AppTest) -> AppTest:
    assert not app.exception, [error.value for error in app.exception]
    return app


def paste(app: AppTest, text: str) -> AppTest:
    app.text_area(key="paste_text").set_value(text).run()
    return checked(app.button(key="import").click().run())


def show(app: AppTest, view: str) -> AppTest:
    app.session_state["plan_view"] = view
    return checked(app.run())


def html(app: AppTest) -> str:
    """Everything that the page wrote as HTML or as a caption, as one text."""
    return "\n".join([*(str(element.proto.body) for element in app.get("html")), *(caption.value for caption in app.caption)])


def type_into(app: AppTest, field: str, text: str) -> AppTest:
    return checked(app.text_input(key=state.widget_key(field)).set_value(text).run())


def field_text(app: AppTest, field: str) -> str:
    texts: dict[str, str] = app.session_state["settings_text"]
    return texts[field]


def source(app: AppTest, field: str) -> str:
    sources: dict[str, str] = app.session_state["field_sources"]
    return sources.get(field, "")


def keys(app: AppTest) -> list[str]:
    return [button.key for button in app.button if button.key]
