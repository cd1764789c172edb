"""The list on Runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.units import MIB
from tests.stored_runs import store_run

APP = str(Path(__file__).parents[2] / "app.py")


def test_a_size_is_a_number_in_the_unit_of_the_sentence_above(home: Path) -> None:
    for number in (1, 2):
        log = home / "runs" / store_run(home, number) / "worker.log"
        log.write_bytes(bytes(3 * MIB * number))
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/runs.py")
    (table,) = app.run().dataframe
    # Numbers, so that a click on the head sorts 10 MiB behind 9.
    assert table.value["size"].tolist() == pytest.approx([6, 3], rel=0.01)
    assert json.loads(table.proto.columns)["size"]["type_config"] == {"type": "number", "format": "%.3f MiB"}
    assert f"All runs take {sum(table.value['size']):.2f} MiB" in "\n".join(caption.value for caption in app.caption)


@pytest.mark.parametrize("asked", ["20250102-030405-benchmark", "20260101-000000-plan-x,20250102-030405-benchmark"])
def test_a_link_to_no_run_says_what_to_do_and_not_where_the_store_lies(home: Path, asked: str) -> None:
    store_run(home, 1)
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/runs.py")
    app.query_params["run"] = asked
    (said,) = [element.proto.body for element in app.run().get("html") if "There is no run" in element.proto.body]
    assert f"There is no run &#x27;{asked.partition(',')[0]}&#x27;; choose from the table above." in said
    assert str(home) not in said
