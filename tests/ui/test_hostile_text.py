"""Text of others through every page: whatever it is, it reaches the browser as text.

HTML bodies may hold it only escaped; what Streamlit reads as Markdown may hold it only with a backslash before each mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict
from kvcanary.store.home import open_store
from kvcanary.ui import services, state
from tests.analysis.rendering import Row, prefix
from tests.stored_runs import points, store_run

APP = str(Path(__file__).parents[2] / "app.py")
MARK = "Zq"
HOSTILE = f"{MARK}<img src=x onerror=alert(1)>**{MARK}**[{MARK}](http://evil.example)$x$:red[r]`{MARK}`"
SHORT = f"{MARK}<b>**{MARK}**"
# Fields of Streamlit's messages that its browser side reads as Markdown.
MARKDOWN = {"body", "label", "help", "text"}
PLAIN = {"code", "text_area", "text_input", "selectbox", "multiselect"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    yield tmp_path
    services.jobs.clear()


def texts(app: AppTest) -> Iterator[tuple[str, str, str]]:
    """(element type, field, text) of everything on the page, sidebar included, that the browser interprets."""
    for node in (*app.main, *app.sidebar):
        yield from _texts(node.type, node.proto)


def _texts(kind: str, message: Any) -> Iterator[tuple[str, str, str]]:
    if not isinstance(message, Message):
        return
    for field, value in message.ListFields():
        if field.name in MARKDOWN and isinstance(value, str):
            yield kind, field.name, value


def check(app: AppTest) -> int:
    """Every interpreted text of the page; returns how many hold the hostile one, so that a test can see that it was there."""
    assert not app.exception
    seen = 0
    for kind, field, text in texts(app):
        if MARK not in text:
            continue
        seen += 1
        if kind == "html":
            assert not re.search(f"{MARK}<(img|b>)", text), (kind, field, text)
        elif kind in PLAIN and field not in ("help", "label"):
            continue
        else:
            marks = re.findall(r"(?<!\\)(?:\\\\)*[*<\[$`:](?=.?.?Zq|img|x|red)", text)
            assert not marks, (kind, field, text)
    return seen


def open_app(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def test_an_address_with_hostile_values_and_names() -> None:
    app = open_app(pool_slot_count=HOSTILE, mode=HOSTILE, model=HOSTILE, **{HOSTILE: HOSTILE})
    assert check(app) >= 4


@pytest.mark.parametrize("page", ["benchmark", "fault_lab", "inspect_log"])
def test_an_address_that_names_a_hostile_run(page: str) -> None:
    app = open_app(pool_slot_count="20000", model=HOSTILE, run=HOSTILE, slot=HOSTILE)
    check(app.switch_page(f"pages/{page}.py").run())


@pytest.mark.parametrize(
    "text",
    [
        f"python -m sglang.launch_server --model-path '{HOSTILE}' --page-size '{SHORT}' --{SHORT} 3",
        json.dumps({"model_path": HOSTILE, "page_size": SHORT, "kv_cache_dtype": HOSTILE, HOSTILE: 1, "max_running_requests": 4}),
        json.dumps({"architectures": [HOSTILE], "model_type": SHORT, "num_hidden_layers": HOSTILE, "torch_dtype": SHORT}),
        f"kv-canary: pool_slot_count must be positive, got {HOSTILE}",
        f"[2027-01-01 00:00:00 {SHORT}] server_args=ServerArgs(model_path='{SHORT}', page_size=64)",
    ],
)
def test_a_hostile_paste_on_plan(text: str) -> None:
    app = open_app()
    app.text_area(key="paste_text").set_value(text).run()
    app.button(key="import").click().run()
    assert check(app) >= 1


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"message": prefix() + Row().line(), "pod": HOSTILE}),
        prefix(SHORT) + Row().message(total=2, step=3),
        prefix() + Row(tag=SHORT).message(total=2, step=3),
        prefix() + Row().message(total=2, step=3).replace("verify_real_kv_hash", SHORT),
    ],
)
def test_a_hostile_log_on_inspect(line: str) -> None:
    app = open_app().switch_page("pages/inspect_log.py").run()
    app.text_area(key="inspect_text").set_value(f"{line}\n{prefix()}{Row().message(total=3)}\n").run()
    app.button(key="inspect_go").click().run()
    check(app)


def test_a_stored_run_with_hostile_words(home: Path) -> None:
    folder = RunFolder(home / "runs" / "20260101-000000-benchmark")
    folder.path.mkdir(parents=True)
    record = RunRecord(
        id=folder.path.name, kind="benchmark", state=RunState.FAILED, spec={"settings": {"model": HOSTILE}}, created_s=1.0,
        verdict=Verdict.NOT_RUN, sentence=HOSTILE, error=HOSTILE, skipped=[HOSTILE], machine={HOSTILE: HOSTILE}, backend={"reason": HOSTILE},
    )  # fmt: skip
    folder.write_record(record)
    app = open_app().switch_page("pages/benchmark.py").run()
    assert check(app) >= 3


def test_what_is_typed_into_a_field(home: Path) -> None:
    app = open_app()
    app.text_input(key=state.widget_key("model")).set_value(HOSTILE).run()
    app.text_input(key=state.widget_key("page_size")).set_value(HOSTILE).run()
    assert check(app) >= 2


def test_runs_with_hostile_labels_beside_each_other(home: Path) -> None:
    ids = [
        store_run(home, number, measured=points(seed=number), map_slots=60, spec={"settings": {"model": HOSTILE}}) for number in (1, 2, 3)
    ]
    with closing(open_store({"KVCANARY_HOME": str(home)})) as store:
        for run_id in ids:
            store.add_label(run_id, SHORT)
            store.set_note(run_id, HOSTILE)
    for chosen in (ids[:1], ids):
        app = open_app(run=",".join(chosen)).switch_page("pages/runs.py").run()
        assert check(app) >= 2
    assert len([head for head in app.subheader if MARK in head.value]) == 2, "two runs are compared with the first, under their names"


def test_a_stored_run_of_a_hostile_kind(home: Path) -> None:
    run_id = store_run(home, 1, kind="benchmark")
    folder = RunFolder(home / "runs" / run_id)
    folder.write_record(replace(folder.read_record(), kind="*bold*"))
    app = open_app(run=run_id).switch_page("pages/runs.py").run()
    assert app.subheader[0].value.startswith("\\*bold\\* of 2023")
