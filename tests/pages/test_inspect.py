"""The Inspect page through Streamlit's own test runner."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.diagnosis import diagnose
from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.log_stream import lines_around, read_streams, read_text
from kvcanary.ui import inspect_address, inspect_export, inspect_report, state
from kvcanary.ui.inspect_example import example_log
from tests.analysis.pools import Pool
from tests.analysis.rendering import Row, prefix

APP = str(Path(__file__).parents[2] / "app.py")


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run().switch_page("pages/inspect_log.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def captions(app: AppTest) -> str:
    """As they are read; Markdown's backslashes are not seen."""
    return "\n".join(caption.value for caption in app.caption).replace("\\", "")


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
    assert "Fail. 24 violations listed for slot 9\u202f218 (slot 4\u202f105 only echoes it) on TP0, TP1" in text
    assert "Wrong mapping or slot reuse" in text
    assert "A cause in incident 1: no other slot explains it; echoed by slot 4\u202f105." in text
    [table] = [frame.value for frame in app.dataframe if list(frame.value) == ["slot", "rows", "role"]]
    assert table.values.tolist() == [[9218, 12, "cause"], [4105, 12, "echo of 9218"]], "as many rows each: the cause comes first"


def test_nothing_pasted_is_one_sentence() -> None:
    app = open_page()
    app.button(key="inspect_go").click().run()
    assert "Not read: there is nothing to read; paste some lines or upload a file" in html(app)


TWO = "".join(f"{prefix()}{row.message(step=9)}\n" for row in (Row(slot=70, tag="HEAD_K_FULL", reasons=("verify_position",)), Row(slot=71)))


def test_coverage_says_where_nothing_counts_the_checks() -> None:
    app = paste(open_page(), f"{prefix()}{Row(slot=70).message()}\n")
    assert "Coverage: no line counts the checks; 7 of 7 lines are the canary's" in captions(app)


def test_filters_cross_the_views_and_the_card() -> None:
    app = paste(open_page(), TWO)
    assert not app.exception
    assert "All 2 violations are shown" in captions(app)
    app.multiselect(key="inspect_filter.tag").select("TAIL_K_FULL").run()
    assert "1 of 2 violations are shown: launch tag TAIL_K_FULL." in captions(app)
    assert "1 of 71 slots reported" in captions(app)
    app.text_input(key="inspect_typed").set_value("70").run()
    assert "No violation of slot 70 is listed under these filters" in captions(app)
    app.text_input(key="inspect_typed").set_value("71").run()
    assert "<b>Slot 71</b>" in html(app)
    app.button(key="inspect_clear").click().run()
    assert "All 2 violations are shown" in captions(app)


def test_the_address_holds_filters_and_slot_and_another_session_opens_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text(TWO)
    monkeypatch.setenv("KVCANARY_LOG_FOLDERS", str(tmp_path / "logs"))
    app = open_page()
    app.multiselect(key="inspect_picked").select("0/server.log").run()
    app.button(key="inspect_open").click().run()
    app.multiselect(key="inspect_filter.tag").select("TAIL_K_FULL").run()
    app.text_input(key="inspect_typed").set_value("71").run()
    link = {name: app.query_params[name] for name in ("log", "tag", "slot")}
    assert link == {"log": "0/server.log", "tag": "TAIL_K_FULL", "slot": "71"}
    other = open_page(log="0/server.log", tag="TAIL_K_FULL", slot="71")
    assert not other.exception
    assert "1 of 2 violations are shown" in captions(other)
    assert "<b>Slot 71</b>" in html(other)


def test_a_link_with_labels_that_the_log_does_not_have_says_so() -> None:
    app = paste(open_page(), TWO)
    app.query_params["rank"] = "TP9<img>"
    app.run()
    assert not app.exception
    assert "This log has no rank TP9&lt;img&gt;" in html(app)
    assert "0 of 2 violations are shown" in captions(app)


def test_parameters_of_the_page_are_kept_by_the_frame() -> None:
    assert set(inspect_address.PARAMETERS) | {inspect_address.SLOT} <= set(state.PAGE_PARAMETERS)


def test_one_map_per_rank_and_one_rank_alone() -> None:
    rows = [(Row(slot=7), "TP0"), (Row(slot=8), "TP1"), (Row(slot=9), "TP1")]
    app = paste(open_page(), "".join(f"{prefix(rank)}{row.message()}\n" for row, rank in rows))
    app.selectbox(key="inspect_map_of").set_value("one map per rank").run()
    assert "Reported slots by rank: TP0 1, TP1 2" in captions(app)
    app.selectbox(key="inspect_map_of").set_value("TP0").run()
    assert "1 of 9 slots reported" in captions(app)


def test_many_slots_and_every_row_as_a_table() -> None:
    app = paste(open_page(), "".join(f"{prefix()}{Row(slot=slot).line()}\n" for slot in range(1, 700)))
    assert not app.exception
    assert "The 500 slots with the most rows of 699" in captions(app)
    app.toggle(key="inspect_every_row").set_value(True).run()
    assert not app.exception
    assert "699 rows." in captions(app)


def test_pages_are_named_when_the_log_tells_their_size() -> None:
    args = f"{prefix()}server_args=ServerArgs(model_path='m', page_size=16)\n"
    app = paste(open_page(), args + f"{prefix()}{Row(slot=71).message()}\n")
    assert not app.exception
    assert "pages of 16" in captions(app)
    assert "dotted lines between pages of 16" in captions(app)


def test_only_allowed_folders_are_read_and_links_out_of_them_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, outside = tmp_path / "logs", tmp_path / "secret.log"
    folder.mkdir()
    outside.write_text(TWO)
    (folder / "link.log").symlink_to(outside)
    monkeypatch.setenv("KVCANARY_LOG_FOLDERS", str(folder))
    app = open_page()
    assert app.multiselect(key="inspect_picked").options == []
    for name in ("0/link.log", "0/../secret.log", "1/x.log", "0/absent.log"):
        refused = open_page(log=name)
        assert "Not read: log" in html(refused), name
        assert "kv_canary" not in "".join(code.value for code in refused.code)


def test_following_shows_what_is_appended_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{prefix()}{Row(slot=5).message(step=3)}\n")
    monkeypatch.setenv("KVCANARY_LOG_FOLDERS", str(tmp_path))
    app = open_page()
    app.multiselect(key="inspect_picked").select("0/server.log").run()
    app.button(key="inspect_follow").click().run()
    assert "Following server.log: 1 violations" in html(app)
    with log.open("a") as stream:
        stream.write(f"{prefix()}{Row(slot=6).message(step=4)}\n")
    app.run()
    assert "2 violations in 14 lines, last step 4" in html(app)
    app.button(key="inspect_unfollow").click().run()
    assert "Following" not in html(app)
    assert not app.exception
    assert "2 violations listed (1 counted) for slots 5 and 6" in html(app)


def test_the_card_counts_bits_and_shows_the_raw_line() -> None:
    row = Row(slot=71, reasons=("verify_chain_hash",), stored_hash=0x10, aux=0x11)
    app = paste(open_page(), f"started\n{prefix()}{row.message(step=9)}\n")
    assert '<td class="">0x0000000000000010</td><td class="">0x0000000000000011</td><td class="">0</td>' in html(app)
    raw = next(code.value for code in app.code if "2> " in code.value)
    assert raw.splitlines()[1].startswith("      2> [2027-02-03")


def test_hostile_lines_are_text_and_a_huge_slot_takes_no_memory() -> None:
    hostile = f"{prefix()}{Row(slot=2**60).line()}\n{prefix()}kv_canary <script>alert(1)</script> error\n"
    app = paste(open_page(), hostile + "[2027-02-03 04:05:06 TP0] RuntimeError: <img src=x onerror=alert(1)>\n")
    assert not app.exception
    assert "<script>alert" not in html(app)
    assert "<img" not in html(app)
    assert any("1 reported slot numbers lie outside the map" in caption.value for caption in app.caption)


def test_other_lines_are_listed_with_their_kind() -> None:
    error = f"{prefix('TP0', '2027-02-03 04:05:08')}RuntimeError: device gone\n"
    app = paste(open_page(), f"{prefix()}{Row().message()}\n{error}")
    assert "The one violation is shown." in captions(app)
    assert any(expander.label == "Other lines that matter: 1 error" for expander in app.expander)
    [table] = [frame.value for frame in app.dataframe if "what" in frame.value.columns]
    assert table["what"].tolist() == ["error"]
    assert "Another error 2 s after the first violation: RuntimeError: device gone" in html(app)


def test_a_clean_text_without_canary_lines_says_that_nothing_ran() -> None:
    app = paste(open_page(), "hello\nworld\n")
    assert not app.exception
    assert "Not run. The canary did not run" in html(app)
    assert html(app).count("2 lines and none of the canary") == 2, "in the verdict and under coverage, and no third time"


@pytest.mark.parametrize(
    ("own", "words"), [((41, 42), "echoed by slots 41, 42."), ((41, 42, 43, 44, 45), "echoed by slots 41, 42, 43, 44 and 1 more.")]
)
def test_the_card_names_what_echoes_its_slot(own: tuple[int, ...], words: str) -> None:
    pool = Pool()
    pool.shared_prefix([11, 12, 13], own)
    pool.stamp([34], [704])
    rows = [row for slot in own for row in pool.verify([11, 12, 34, slot])]
    app = paste(open_page(), "".join(f"{prefix()}{row.message(total=len(rows))}\n" for row in rows))
    app.text_input(key="inspect_typed").set_value("34").run()
    assert words in html(app)


def test_an_error_of_the_start_is_handed_to_plan() -> None:
    app = paste(open_page(), "ValueError: kv-canary: pool_slot_count must be positive, got 0\n")
    app.button(key="inspect_to_plan").click().run()
    assert not app.exception
    assert [title.value for title in app.title] == ["Plan"]
    assert "The KV pool came out with 0 slots" in html(app)
    assert app.session_state["settings_text"]["pool_slot_count"] == "0"


@pytest.mark.parametrize("text", [f"{prefix()}{Row().message()}\n", ""])
def test_what_is_of_the_canary_or_nothing_is_not(text: str) -> None:
    app = paste(open_page(), text)
    assert "inspect_to_plan" not in [button.key for button in app.button]


def test_a_new_log_forgets_the_chosen_slot_and_the_filters() -> None:
    app = paste(open_page(), TWO)
    app.text_input(key="inspect_typed").set_value("71").run()
    app.multiselect(key="inspect_filter.tag").select("TAIL_K_FULL").run()
    app.button(key="inspect_example").click().run()
    assert "slot" not in app.query_params
    assert "All 24 violations are shown" in captions(app)


def test_exports_keep_every_digit_and_defuse_formulas() -> None:
    log = read_streams([("=cmd.log", io.BytesIO(f"{prefix()}{Row(stored_hash=2**64 - 3).message()}\n".encode()))])
    (row,) = csv.DictReader(io.StringIO(inspect_export.csv(log.violations.frame())))
    assert (row["stored_chain_hash"], row["slot_idx"], row["file"]) == ("0xfffffffffffffffd", "812", "'=cmd.log")
    data = json.loads(inspect_export.json_text(log, diagnose(log)))
    assert data["violations"][0]["stored_chain_hash"] == "0xfffffffffffffffd"


def test_parquet_keeps_types_and_every_bit() -> None:
    frame = read_text(f"{prefix()}{Row(stored_hash=2**64 - 3).message()}\n").violations.frame()
    again = pd.read_parquet(io.BytesIO(inspect_export.parquet(frame)))
    assert int(again["stored_chain_hash"][0]) == 2**64 - 3
    assert list(again.columns) == list(frame.columns)


def example() -> CanaryLog:
    return read_text(example_log())


def test_issue_text_holds_counts_and_neither_tokens_nor_hashes() -> None:
    log = example()
    text = inspect_export.issue_text(log, diagnose(log))
    assert "| `TP0` | `HEAD_K_FULL` | `verify_chain_hash` | 6 | 2 |" in text
    assert "0x" not in text
    assert "5150" not in text


def test_issue_text_leaves_out_what_is_chosen() -> None:
    log = read_streams([("prod-eu.log", io.BytesIO(f"{prefix('TP3')}{Row(slot=4711).message(total=9, step=812)}\n".encode()))])
    shown = inspect_export.issue_text(log, diagnose(log))
    assert "TP3" in shown
    hidden = inspect_export.issue_text(log, diagnose(log), list(inspect_export.REDACTIONS))
    for word in ("TP3", "prod-eu", "4711", "812"):
        assert word not in hidden
    assert "`TAIL_K_FULL`" in hidden


def test_report_is_one_document_with_every_part() -> None:
    text = inspect_report.html(Inspected(example()), "x<script>.log")
    for part in ("Wrong mapping or slot reuse", "Slot map of the full pool", "Incidents", "Coverage, and what this log cannot tell"):
        assert part in text
    assert "x<script>" not in text
    assert "https://" not in text.split("<script>")[0]


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


def test_a_choice_of_a_view_outlives_a_visit_to_another_page_but_not_its_log() -> None:
    app = open_page()
    app.button(key="inspect_example").click().run()
    app.selectbox(key="inspect_map_of").select("TP1").run()
    app.switch_page("pages/plan.py").run()
    app.switch_page("pages/inspect_log.py").run()
    assert app.selectbox(key="inspect_map_of").value == "TP1"
    other = "".join(f"{prefix(rank)}{Row(slot=7).message()}\n" for rank in ("TP4", "TP5"))
    paste(app, other)
    assert not app.exception
    assert app.selectbox(key="inspect_map_of").value == "all ranks together"


def test_a_slot_number_that_cannot_be_read_is_forgotten_when_a_slot_is_chosen() -> None:
    app = open_page()
    app.button(key="inspect_example").click().run()
    app.text_input(key="inspect_typed").set_value("many").run()
    assert "slot must be" in html(app)
    app.button(key="inspect_go.followed by slot.4105").click().run()
    assert "slot must be" not in html(app)
    assert "<b>Slot 4\u202f105</b>" in html(app)
