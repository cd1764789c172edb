"""A link to a run that this page cannot show says so, on every page that shows a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.config.settings import Settings
from kvcanary.lab.records import RunFolder, RunRecord, RunState
from tests.stored_runs import SETTINGS, points, store_run

APP = str(Path(__file__).parents[2] / "app.py")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("20260102-030405-campaign", "Run 20260102-030405-campaign is a campaign and no benchmark: it is shown on Fault lab; there is no"),
        ("20250102-030405-benchmark", "There is no run 20250102-030405-benchmark; there is no benchmark to show instead."),
        ("../run.json", "There is no run ../run.json;"),
    ],
)
def test_benchmark_says_what_the_address_asked_for(home: Path, run: str, words: str) -> None:
    path = home / "runs" / "20260102-030405-campaign"
    path.mkdir(parents=True)
    RunFolder(path).write_record(RunRecord(id=path.name, kind="campaign", state=RunState.DONE, spec={}, created_s=1.0, finished_s=2.0))
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/benchmark.py")
    app.query_params["run"] = run
    app.run()
    assert not app.exception
    assert any(words in element.proto.body for element in app.get("html"))
    assert "No benchmark has run yet" in app.info[0].value


def test_an_earlier_run_is_offered_by_its_name_and_one_without_a_point_is_not(home: Path) -> None:
    store_run(home, 1, measured=points())
    store_run(home, 2)
    newest = store_run(home, 3, measured=points(seed=3))
    app = AppTest.from_file(APP, default_timeout=60).run().switch_page("pages/benchmark.py").run()
    picked = app.selectbox(key=f"compare.{newest}")
    assert picked.options == ["small-model, 2023-11-14 22:13, 00000001"]
    picked.select(picked.options[0]).run()
    assert not app.exception


def test_the_list_stays_narrowed_over_a_visit_to_another_page(home: Path) -> None:
    store_run(home, 1, measured=points())
    store_run(home, 2, kind="plan")
    app = AppTest.from_file(APP, default_timeout=60).run().switch_page("pages/runs.py").run()
    app.selectbox(key="runs.kind").select("plan").run()
    app.text_input(key="runs.text").set_value("plan").run()
    app.switch_page("pages/benchmark.py").run()
    app.switch_page("pages/runs.py").run()
    assert (app.selectbox(key="runs.kind").value, app.text_input(key="runs.text").value) == ("plan", "plan")
    assert any("1 run fits" in caption.value for caption in app.caption)


def test_a_run_that_measured_nothing_leads_to_the_earlier_ones(home: Path) -> None:
    first = store_run(home, 1, measured=points())
    store_run(home, 2, state=RunState.STOPPED, sentence="Stopped after 0 points.")
    app = AppTest.from_file(APP, default_timeout=60).run().switch_page("pages/benchmark.py").run()
    assert [link.proto.label for link in app.get("page_link")] == ["Earlier benchmarks"]
    app.query_params["run"] = first
    assert not app.run().get("page_link")


def test_a_run_with_other_settings_than_plan_has_now_says_which(home: Path) -> None:
    measured_for = {**Settings.from_flat(SETTINGS).to_flat(), "page_size": 16, "kv_dtype": "<b>fp8</b>"}
    store_run(home, 1, measured=points(), spec={"settings": measured_for, "seed": 1})
    app = AppTest.from_file(APP, default_timeout=60)
    for name, text in {**SETTINGS, "pool_slot_count": "500000"}.items():
        app.query_params[name] = text
    app.run().switch_page("pages/benchmark.py").run()
    assert not app.exception
    words = (
        "It ran with other settings than Plan has now: pool_slot_count 4\u202f096 (Plan: 500\u202f000), page_size 16 (Plan: 1), "
        "kv_dtype &lt;b&gt;fp8&lt;/b&gt; (Plan: auto)."
    )
    assert any(words in element.proto.body for element in app.get("html"))


def test_a_run_of_the_plan_that_stands_says_nothing_of_it(home: Path) -> None:
    store_run(home, 1, measured=points())
    app = AppTest.from_file(APP, default_timeout=60)
    for name, text in SETTINGS.items():
        app.query_params[name] = text
    app.run().switch_page("pages/benchmark.py").run()
    assert not app.exception
    assert not any("It ran with other settings" in element.proto.body for element in app.get("html"))
