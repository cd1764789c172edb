"""The Inspect page through Streamlit's own test runner."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.analysis.diagnosis import diagnose
from kvcanary.analysis.log_stream import lines_around, read_streams, read_text
from kvcanary.ui import inspect_export, services
from kvcanary.ui.inspect_example import example_log
from kvcanary.ui.inspect_input import SLOT
from tests.analysis.rendering import Row, prefix

APP = str(Path(__file__).parents[2] / "app.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    yield
    services.jobs.clear()


def open_page() -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run()
    return app.switch_page("pages/inspect_log.py").run()


def html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def paste(app: AppTest, text: str) -> AppTest:
    app.text_area(key="inspect_text").set_value(text).run()
    return app.button(key="inspect_go").click().run()


def test_the_empty_page_teaches_and_the_example_is_diagnosed() -> None:
    app = open_page()
    assert any("No log has been read yet" in caption.value for caption in app.caption)
    app.button(key="inspect_example").click().run()
    assert not app.exception
    text = html(app)
    assert "Fail. 24 violations listed for 1 slot and 1 that only echoes it" in text
    assert "Wrong mapping or slot reuse" in text
    assert "A cause in incident 1: no other slot explains it; echoed by slot 4105." in text


def test_nothing_pasted_is_one_sentence() -> None:
    app = open_page()
    app.button(key="inspect_go").click().run()
    assert "Not read: there is nothing to read; paste some lines or upload a file" in html(app)


def test_filters_cross_the_views_and_the_card() -> None:
    rows = Row(slot=70, tag="HEAD_K_FULL", reasons=("verify_position",)), Row(slot=71)
    app = paste(open_page(), "".join(f"{prefix()}{row.message(step=9)}\n" for row in rows))
    assert not app.exception
    app.multiselect(key="inspect_tag").select("TAIL_K_FULL").run()
    assert any(caption.value.startswith("1 of 2 violations are shown") for caption in app.caption)
    assert any(caption.value.startswith("1 of 72 slots reported") for caption in app.caption)
    app.text_input(key="inspect_typed").set_value("70").run()
    assert any("No violation of slot 70 is listed under these filters" in caption.value for caption in app.caption)
    app.text_input(key="inspect_typed").set_value("71").run()
    assert "<b>Slot 71</b>" in html(app)


def test_the_card_counts_bits_and_shows_the_raw_line() -> None:
    row = Row(slot=71, reasons=("verify_chain_hash",), stored_hash=0x10, aux=0x11)
    app = paste(open_page(), f"started\n{prefix()}{row.message(step=9)}\n")
    assert '<td class="">0x0000000000000010</td><td class="">0x0000000000000011</td><td class="">0</td>' in html(app)
    raw = next(code.value for code in app.code if "kv_canary violation" in code.value)
    assert raw.splitlines()[1].startswith("      2> [2027-02-03")


def test_hostile_lines_are_text_and_a_huge_slot_takes_no_memory() -> None:
    hostile = f"{prefix()}{Row(slot=2**60).line()}\n{prefix()}kv_canary <script>alert(1)</script> error\n"
    app = paste(open_page(), hostile + "[2027-02-03 04:05:06 TP0] RuntimeError: <img src=x onerror=alert(1)>\n")
    assert not app.exception
    assert "<script>alert" not in html(app)
    assert "<img" not in html(app)
    assert any("1 reported slot numbers lie outside the map" in caption.value for caption in app.caption)


def test_a_clean_text_without_canary_lines_says_that_nothing_ran() -> None:
    app = paste(open_page(), "hello\nworld\n")
    assert not app.exception
    assert "Not run. The canary did not run" in html(app)


def test_a_new_log_forgets_the_chosen_slot() -> None:
    app = paste(open_page(), f"{prefix()}{Row(slot=71).message()}\n")
    app.text_input(key="inspect_typed").set_value("71").run()
    assert app.session_state[SLOT] == 71
    app.button(key="inspect_example").click().run()
    assert SLOT not in app.session_state


def test_exports_keep_every_digit_and_defuse_formulas() -> None:
    log = read_streams([("=cmd.log", io.BytesIO(f"{prefix()}{Row(stored_hash=2**64 - 3).message()}\n".encode()))])
    (row,) = csv.DictReader(io.StringIO(inspect_export.csv(log.violations.frame())))
    assert (row["stored_chain_hash"], row["slot_idx"], row["file"]) == ("0xfffffffffffffffd", "812", "'=cmd.log")
    data = json.loads(inspect_export.json_text(log, diagnose(log)))
    assert data["violations"][0]["stored_chain_hash"] == "0xfffffffffffffffd"


def test_issue_text_holds_counts_and_neither_tokens_nor_hashes() -> None:
    log = read_text(example_log())
    text = inspect_export.issue_text(log, diagnose(log))
    assert "| `TP0` | `HEAD_K_FULL` | `verify_chain_hash` | 6 | 2 |" in text
    assert "0x" not in text
    assert "5150" not in text


def test_streams_are_read_oldest_first_and_rotated_ones_joined() -> None:
    late = f"{prefix(time='2027-02-04 01:00:00')}{Row(slot=2).message()}\n".encode()
    early = f"{prefix(time='2027-02-03 01:00:00')}{Row(slot=1).message()}\n".encode()
    log = read_streams([("server.log", io.BytesIO(late)), ("server.log.1", io.BytesIO(early))])
    assert [violation.slot_idx for violation in log.violations] == [1, 2]
    assert [report.stream.server for report in log.streams] == ["server.log"]


@pytest.mark.parametrize(("line", "numbers"), [(1, [1, 2, 3]), (5, [3, 4, 5, 6, 7]), (10, [8, 9, 10]), (11, [])])
def test_lines_around_are_numbered_as_in_the_file(line: int, numbers: list[int]) -> None:
    data = b"\n".join(b"text %d" % number for number in range(1, 11))
    assert lines_around(io.BytesIO(data), line=line, before=2, after=2) == [(number, f"text {number}") for number in numbers]


def test_lines_around_do_not_depend_on_block_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcanary.analysis.log_stream._read_all", lambda stream, *_: iter(lambda: stream.read(3), b""))
    data = "".join(f"text {number}\n" for number in range(1, 30)).encode()
    assert [number for number, _ in lines_around(io.BytesIO(data), line=17, before=2, after=2)] == [15, 16, 17, 18, 19]
