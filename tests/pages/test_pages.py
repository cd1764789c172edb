"""The pages through Streamlit's own test runner, always entered through app.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.ui import services, state
from tests.stored_runs import points, store_run

APP = str(Path(__file__).parents[2] / "app.py")


def open_app(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def html(app: AppTest) -> str:
    """Everything that the page wrote as HTML, as one text."""
    return "\n".join(str(element.proto.body) for element in app.main if element.type == "html") + "\n".join(
        str(element.proto.body) for element in app.get("html")
    )


def type_into(app: AppTest, field: str, text: str) -> AppTest:
    return app.text_input(key=state.widget_key(field)).set_value(text).run()


def test_the_first_screen_starts_without_an_error() -> None:
    app = open_app()
    assert not app.exception
    assert app.title[0].value == "Plan"
    assert "Starts" in html(app)


def test_an_illegal_value_shows_the_engines_sentence_and_its_fix_acts() -> None:
    app = type_into(open_app(), "pool_slot_count", "0")
    assert not app.exception
    assert "kv-canary: pool_slot_count must be positive, got 0" in html(app)
    fixes = [button for button in app.button if button.key.startswith("fix.") and button.key.endswith(".pool_slot_count")]
    assert [button.proto.type for button in fixes[:2]] == ["primary", "tertiary"], "one main button per finding"
    fixes[0].click().run()
    assert "must be positive" not in html(app)
    assert int(app.text_input(key=state.widget_key("pool_slot_count")).value) > 0


@pytest.mark.parametrize("text", ["12.5", "nan", "1e400", "lots"])
def test_what_is_no_number_is_explained_and_kept(text: str) -> None:
    app = type_into(open_app(), "max_seq_len_per_req", text)
    assert "max_seq_len_per_req must be a whole number" in html(app)
    assert app.text_input(key=state.widget_key("max_seq_len_per_req")).value == text


def test_an_invalid_link_shows_its_findings_instead_of_defaults() -> None:
    app = open_app(pool_slot_count="-3", mode="sometimes", page_siez="64")
    text = html(app)
    assert "kv-canary: pool_slot_count must be positive, got -3" in text
    assert "mode must be one of none/log/raise, got &#x27;sometimes&#x27;" in text
    assert "page_siez: unknown settings field" in text
    assert app.text_input(key=state.widget_key("pool_slot_count")).value == "-3"
    app.button(key="forget_unknown").click().run()
    assert "page_siez" not in html(app)


def test_settings_live_in_the_address() -> None:
    app = type_into(open_app(), "pool_slot_count", "16k")
    assert app.query_params["pool_slot_count"] in ("16k", ["16k"])
    type_into(app, "pool_slot_count", "262144")
    assert "pool_slot_count" not in app.query_params


def test_settings_survive_a_visit_to_another_page() -> None:
    app = type_into(open_app(), "pool_slot_count", "77777")
    app.switch_page("pages/benchmark.py").run()
    assert not app.exception
    assert app.title[0].value == "Benchmark"
    app.switch_page("pages/plan.py").run()
    assert app.text_input(key=state.widget_key("pool_slot_count")).value == "77777"


def test_a_second_session_starts_from_the_defaults() -> None:
    type_into(open_app(), "pool_slot_count", "77777")
    assert open_app().text_input(key=state.widget_key("pool_slot_count")).value == "262144"


def test_a_preset_fills_the_form_and_can_be_taken_back() -> None:
    app = type_into(open_app(), "pool_slot_count", "77777")
    picker = app.selectbox(key="preset")
    picker.set_value(picker.options[1]).run()
    assert not app.exception
    assert app.text_input(key=state.widget_key("model")).value
    app.button(key="undo").click().run()
    assert app.text_input(key=state.widget_key("pool_slot_count")).value == "77777"


def test_a_plan_is_kept_as_a_run_unless_a_field_cannot_be_read() -> None:
    app = open_app(pool_slot_count="0", model="qwen3-32b")
    app.button(key="plan_keep").click().run()
    assert not app.exception
    row = services.runs().list()[0]
    assert (row.kind, row.verdict, row.model) == ("plan", "fail", "qwen3-32b")
    assert "Will not start" in row.sentence
    assert "pool_slot_count must be positive, got 0" in row.sentence
    result = services.runs().result(row.id)
    assert result is not None
    assert (result["schema"], result["settings"]["pool_slot_count"]) == ("kvcanary.plan", 0)
    assert any(row.id in caption.value for caption in app.caption)
    app = type_into(app, "pool_slot_count", "many")
    assert app.button(key="plan_keep").disabled


def test_hostile_text_is_shown_as_text() -> None:
    app = type_into(open_app(), "pool_slot_count", "<script>alert(1)</script>")
    assert "<script>alert" not in html(app)
    assert "&lt;script&gt;" in html(app)


def test_benchmark_refuses_settings_that_do_not_start() -> None:
    app = open_app(pool_slot_count="0")
    app.switch_page("pages/benchmark.py").run()
    assert "Cannot run: kv-canary: pool_slot_count must be positive, got 0" in html(app)
    assert app.button(key="run").disabled
    assert [link.proto.label for link in app.get("page_link")] == ["Correct the settings on Plan"]


def test_a_model_step_that_is_no_time_is_not_sent_to_plan() -> None:
    app = open_app().switch_page("pages/benchmark.py").run()
    app.text_input(key="step_time").set_value("soon").run()
    assert "Cannot run: Model step" in html(app)
    assert app.button(key="run").disabled
    assert not app.get("page_link")


def test_a_quick_run_ends_with_a_verdict_a_chart_and_a_slot_card() -> None:
    app = open_app(pool_slot_count="20000", req_to_token_pool_size="16", cuda_graph_max_bs="16", max_seq_len_per_req="2048")
    app.switch_page("pages/benchmark.py").run()
    app.button(key="run").click().run()
    run_id = services.runs().list()[0].id
    record = services.jobs().wait(run_id, timeout_s=120)
    assert record.verdict == "pass", record.sentence + record.error
    app.run()
    assert not app.exception
    assert "the gate held" in html(app)
    kinds = {element.type for element in app.main if "plotly" in element.type} | {e.type for e in app.get("plotly_chart")}
    assert kinds
    bad = services.runs().cards(run_id)[0]["slot"]
    app.text_input(key="slot_number").set_value(str(bad)).run()
    assert "bits that differ" in html(app)
    app.text_input(key="slot_number").set_value("20001000").run()
    assert "slot must be between 0 and" in html(app)


def test_a_slot_that_is_not_there_is_forgotten_when_one_is_chosen(home: Path) -> None:
    run = store_run(home, 1, measured=points(), map_slots=500)
    app = open_app(run=run).switch_page("pages/benchmark.py").run()
    app.text_input(key="slot_number").set_value("9999").run()
    assert "slot must be between 0 and 499, got 9" in html(app)
    app.text_input(key="slot_number").set_value("250").run()
    assert "slot must be between" not in html(app)
    app.text_input(key="slot_number").set_value("9999").run()
    app.button(key="go.predecessor").click().run()
    assert "slot must be between" not in html(app)
