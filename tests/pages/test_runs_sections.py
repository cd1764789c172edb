"""An opened plan or inspection on Runs: every section of its report, with keys of figures, captions and lines to copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.charts.sections import run_sections
from kvcanary.escape import markdown_text
from kvcanary.lab.records import RunFolder
from kvcanary.store.database import Store
from tests.stored_runs import inspection_document, store_run

APP = str(Path(__file__).parents[2] / "app.py")


def opened(run: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/runs.py")
    app.query_params["run"] = run
    app.run()
    assert not app.exception
    return app


def html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


@pytest.mark.parametrize("kind", ["plan", "inspection"])
def test_the_page_has_the_sections_of_the_report(home: Path, kind: str) -> None:
    run = store_run(home, 1, kind=kind)
    app = opened(run)
    sections = run_sections(Store.open(None, home), run)
    # The first heading is the run's own.
    assert [heading.value for heading in app.subheader][1:] == [markdown_text(section.heading) for section in sections]
    assert len(app.get("plotly_chart")) == sum(len(section.pictures) for section in sections) > 0
    assert [code.value for code in app.code] == [section.code for section in sections if section.code]
    assert ('<div class="kvc-key"><span><i' in html(app)) == (kind == "plan")


def test_what_is_left_out_of_a_table_is_said(home: Path) -> None:
    run = store_run(home, 1, kind="inspection")
    document = inspection_document()
    RunFolder(home / "runs" / run).write_result({**document, "violations": 150 * document["violations"], "violations_listed": 7000})
    captions = [caption.value for caption in opened(run).caption]
    assert "The first 200 of 7\u202f000 violations." in captions
