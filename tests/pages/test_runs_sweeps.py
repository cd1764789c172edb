"""Sweeps on Runs: how far one is, stop, and what became of it."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from kvcanary.lab.sweep import read_sweep
from kvcanary.store.sweep_progress import reporting
from kvcanary.ui import services
from tests.stored_runs import store_run

APP = str(Path(__file__).parents[2] / "app.py")
SWEEP = read_sweep("{name: night, kind: campaign, grid: {seeds: [1, 2, 3, 4]}}")


def open_runs() -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/runs.py")
    return app.run()


def lines(app: AppTest) -> str:
    """What the page says in HTML and, without the escapes of Markdown, in bars."""
    return "\n".join(
        [element.proto.body for element in app.get("html")] + [element.proto.text.replace("\\", "") for element in app.get("progress")]
    )


def buttons(app: AppTest, *labels: str) -> list[Button]:
    return [button for button in app.button if button.label in labels]


def test_a_sweep_can_be_watched_stopped_and_put_away(home: Path) -> None:
    assert "Sweep" not in lines(open_runs())
    store_run(home, 1)
    services.runs().add_label(store_run(home, 2), SWEEP.label)
    with reporting(home, SWEEP) as report:
        report.add("done", "pass", found=False)
        report.add("failed", "not run", found=False)
        app = open_runs()
        assert not app.exception
        assert "Sweep night: 1 of 4 points done, 1 failed, 2 left." in lines(app)
        (its_runs,) = buttons(app, "Its runs")
        its_runs.click().run()
        assert app.selectbox(key="runs.label").value == SWEEP.label
        assert "1 run fits." in [caption.value.partition(" All")[0] for caption in app.caption]
        (stop,) = buttons(app, "Stop sweep")
        stop.click().run()
        assert report.stop.wait(20)
        assert [(button.label, button.disabled) for button in buttons(app, "Stop sweep", "Stopping")] == [("Stopping", True)]
    app.run()
    assert "Sweep night: 1 of 4 points done, 1 failed, 2 left." in lines(app)
    (away,) = buttons(app, "Put away")
    away.click().run()
    assert not app.exception
    assert "Sweep night" not in lines(app)
    assert list((home / "sweeps").iterdir()) == []
