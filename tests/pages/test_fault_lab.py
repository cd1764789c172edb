"""The Fault lab in each of its states: empty, running, stopped, failed, finished, a replay, and links that lead nowhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.lab.campaign import ALL_FAULTS, DEFAULT_CONFIGS
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs, run_campaign_job
from kvcanary.lab.frontier import latency_curves
from kvcanary.lab.records import RunFolder, RunRecord, RunState, Verdict
from kvcanary.ui import fault_lab_replay, fault_lab_view, services

APP = str(Path(__file__).parents[2] / "app.py")
SPEC = CampaignSpec(faults=["payload_bytes.bit_flip", "slot_leak.never_freed"], configs=["chain only", "partial"], seeds=1)
RUN = "20260102-030405-campaign"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign that has run, without a word about its state."""
    path = tmp_path_factory.mktemp("ran") / RUN
    path.mkdir()
    folder = RunFolder(path)
    folder.write_record(RunRecord(id=RUN, kind="campaign", state=RunState.RUNNING, spec=asdict(SPEC), created_s=1.0))
    run_campaign_job(folder, SPEC)
    # Which configuration is the cheapest must not hang on what else the host did.
    lines = [json.loads(line) for line in (path / "campaign.jsonl").read_text().splitlines()]
    priced = [line | {"canary_s": line["steps"] * (1e-3 if line["key"][2] == "chain only" else 2e-3)} for line in lines]
    (path / "campaign.jsonl").write_text("".join(json.dumps(line) + "\n" for line in priced))
    return path


def store(home: Path, ran: Path, state: RunState, *, runs: int | None = None, **changes: Any) -> RunFolder:
    """Put the campaign into a data folder in a state, with its first runs only."""
    path = home / "runs" / RUN
    shutil.copytree(ran, path)
    folder = RunFolder(path)
    lines = (path / "campaign.jsonl").read_text().splitlines(keepends=True)
    (path / "campaign.jsonl").write_text("".join(lines[:runs]))
    folder.write_record(replace(folder.read_record(), state=state, finished_s=2.0, **changes))
    return folder


def open_page(**address: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    app.switch_page("pages/fault_lab.py")
    for name, value in address.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def text_of(app: AppTest) -> str:
    """Everything that is written on the page."""
    found = [element for kind in ("html", "caption", "markdown", "info", "title") for element in app.get(kind)]
    return "\n".join(str(getattr(element.proto, "body", "") or getattr(element, "value", "")) for element in found).replace("\\", "")


def test_an_empty_store_says_what_to_press() -> None:
    app = open_page()
    assert "No campaign has run yet" in app.info[0].value
    assert not app.button(key="run_campaign").disabled
    assert "66 runs" not in text_of(app)


def test_a_running_campaign_shows_its_stage_its_matrix_so_far_and_stop(home: Path, ran: Path) -> None:
    own = psutil.Process()
    store(home, ran, RunState.RUNNING, runs=1, pid=own.pid, pid_started_s=own.create_time())
    app = open_page()
    assert app.button(key="stop.page").label == "Stop"
    run = app.button(key="run_campaign")
    assert (run.label, run.proto.type) == ("Queue behind 1", "secondary"), "what runs is what the page is about"
    assert len(app.get("plotly_chart")) == 1
    assert "4 cells: 0 detected at least once" in text_of(app)


def test_a_stopped_campaign_offers_what_is_missing(home: Path, ran: Path) -> None:
    store(home, ran, RunState.STOPPED, runs=1, verdict=Verdict.PARTIAL)
    app = open_page()
    assert "Stopped after 1 of 2 runs." in text_of(app)
    assert app.button(key="continue_campaign").label == "Run the 1 missing run"
    app.button(key="continue_campaign").click().run()
    assert not app.exception
    newest = next(path.name for path in (home / "runs").iterdir() if path.name != RUN)
    assert newest in app.query_params["run"]
    record = services.jobs().wait(newest, 120)
    assert (record.state, record.spec["continues"]) == (RunState.DONE, RUN)
    assert [run.key for run in read_runs(services.jobs().folder(newest).path)] == plan_of(SPEC).run_keys()


def test_a_failed_campaign_shows_the_workers_last_words(home: Path, ran: Path) -> None:
    store(home, ran, RunState.FAILED, runs=0, sentence="Not run: the disk is full.", error="OSError: no space", verdict=Verdict.NOT_RUN)
    app = open_page()
    assert "Failed after 0 of 2 runs." in text_of(app)
    assert app.code[0].value == "OSError: no space"
    assert not app.get("plotly_chart")


def test_a_finished_campaign_shows_matrix_latency_frontier_and_flags(home: Path, ran: Path) -> None:
    store(home, ran, RunState.DONE)
    app = open_page()
    assert len(app.get("plotly_chart")) == 3
    written = text_of(app)
    assert "The canary reports from 0" in written
    assert "1 of 2 faults are out of reach of every setting here that SGLang has" in written
    assert "Worth choosing from:" in written
    assert app.code[0].value == "--kv-canary log --kv-canary-real-data partial"
    assert '"title":{"text":"canary per step"}' in app.get("plotly_chart")[2].proto.spec.replace(": ", ":")
    app.segmented_control(key="frontier_price").set_value("cost in entries").run()
    assert '"title":{"text":"entries checked per step"}' in app.get("plotly_chart")[2].proto.spec.replace(": ", ":")
    app.segmented_control(key="latency_unit").set_value("latency in tokens").run()
    assert '"title":{"text":"tokens computed from the fault on"}' in app.get("plotly_chart")[1].proto.spec.replace(": ", ":")
    lines = [trace["x"] for trace in json.loads(app.get("plotly_chart")[1].proto.spec)["data"] if trace["mode"] == "lines"]
    curves = latency_curves(plan_of(SPEC), read_runs(home / "runs" / RUN), SPEC.configs, by_tokens=True)
    assert lines == [list(curve.within) for curve in curves], "what is drawn is counted in what the axis says"
    assert "Tokens computed from the fault to the report" in text_of(app)
    app.switch_page("pages/plan.py").run()
    app.switch_page("pages/fault_lab.py").run()
    assert app.segmented_control(key="latency_unit").value == "latency in tokens"
    assert "Tokens computed from the fault to the report" in text_of(app), "the chart follows the choice that is shown"
    app.selectbox(key=f"answer.{RUN}").set_value("chain only").run()
    assert app.code[0].value == "--kv-canary log"
    assert not app.get("button[continue_campaign]")


def test_a_damaged_campaign_is_named(home: Path, ran: Path) -> None:
    folder = store(home, ran, RunState.DONE)
    (folder.path / "campaign.jsonl").write_text("{}\n" + (folder.path / "campaign.jsonl").read_text())
    assert "The runs of this campaign cannot be shown: campaign 20260102" in text_of(open_page())


def test_a_cell_is_replayed_step_by_step(home: Path, ran: Path) -> None:
    store(home, ran, RunState.DONE)
    app = open_page(run=RUN, fault="payload_bytes.bit_flip", config="partial")
    assert app.title[0].value.replace("\\", "") == "KV bytes change in place: one bit of the first bytes"
    assert "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash" in app.code[0].value
    assert "canary_kind:       per_forward_tail_k_full" in app.code[0].value
    written = text_of(app)
    assert "First reported in the same step, by TAIL_K_FULL as verify_real_kv_hash" in written
    assert 'data-testid="chain-strip"' in written
    fault_step = int(str(app.select_slider[0].value))
    app.button(key="go.Back").click().run()
    assert app.select_slider[0].value == fault_step - 1
    assert not app.code
    app.button(key="go.First report").click().run()
    assert app.select_slider[0].value == fault_step
    app.button(key="back").click().run()
    assert app.title[0].value == "Fault lab"


def test_play_moves_on_and_stops_at_the_end(home: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_lab_replay, "_TICK_S", 0.0)
    store(home, ran, RunState.DONE)
    app = open_page(run=RUN, fault="payload_bytes.bit_flip", config="partial")
    last = int(app.select_slider[0].options[-1])
    app.select_slider[0].set_value(last - 1).run()
    app.button(key="play").click().run()
    for _ in range(3):
        app.run()
    assert app.select_slider[0].value == last
    assert app.button(key="play").label == "Play"


def test_a_link_leads_to_a_step_and_a_slot(home: Path, ran: Path) -> None:
    store(home, ran, RunState.DONE)
    app = open_page(run=RUN, fault="payload_bytes.bit_flip", config="partial", step="3", slot="5")
    assert app.select_slider[0].value == 3
    assert "<b>Slot 5</b>" in text_of(app)
    app.button(key="go.Next").click().run()
    app.button(key="pin").click().run()
    assert [str(app.query_params[name]).strip("[]'") for name in ("fault", "config", "step", "slot")] == [
        "payload_bytes.bit_flip",
        "partial",
        "4",
        "5",
    ]


def test_what_cannot_be_replayed_says_why(home: Path, ran: Path) -> None:
    store(home, ran, RunState.DONE)
    blind = text_of(open_page(run=RUN, fault="slot_leak.never_freed", config="partial"))
    assert "There is nothing to replay: nothing in a slot is wrong" in blind
    assert "has no cell payload_bytes.moths under partial" in text_of(open_page(fault="payload_bytes.moths", config="partial"))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("20250101-000000-campaign", "There is no run 20250101-000000-campaign; the newest campaign is shown."),
        ("<b>", "There is no run &lt;b&gt;; the newest campaign is shown."),
        ("20260102-030406-benchmark", "Run 20260102-030406-benchmark is a benchmark and no campaign: it is shown on Benchmark"),
    ],
)
def test_an_unknown_run_is_never_replaced_without_a_word(home: Path, ran: Path, run: str, words: str) -> None:
    store(home, ran, RunState.DONE)
    other = home / "runs" / "20260102-030406-benchmark"
    other.mkdir()
    record = RunRecord(id=other.name, kind="benchmark", state=RunState.DONE, spec={"settings": {}}, created_s=3.0, finished_s=4.0)
    RunFolder(other).write_record(record)
    assert words in text_of(open_page(run=run))


def test_an_own_trace_is_asked_for_before_anything_runs() -> None:
    app = open_page()
    app.selectbox(key="campaign_workload").set_value("own trace").run()
    assert app.button(key="run_campaign").disabled
    assert "upload a trace first" in text_of(app)


def test_an_uploaded_trace_names_its_bad_rows_and_what_is_served() -> None:
    rows = [json.dumps({"timestamp": 900 * n, "input_length": 3000, "output_length": 40, "hash_ids": [1, 2, 3, 4, 5, n]}) for n in range(8)]
    rows[2] = '{"timestamp": 1}'
    app = open_page()
    app.selectbox(key="campaign_workload").set_value("own trace").run()
    app.file_uploader(key="campaign_trace").upload("day.jsonl", "\n".join(rows).encode(), "application/json").run()
    written = text_of(app)
    assert "Rows left out: line 3: input_length, output_length, hash_ids missing" in written
    assert "7 requests of day.jsonl (mooncake, longest 3 040 tokens), lengths and times divided by 8" in written.replace("\u202f", " ")
    assert not app.button(key="run_campaign").disabled


def test_a_story_is_told_row_by_row_under_each_configuration() -> None:
    app = open_page()
    assert "kvcanary campaign --preset" not in "".join(code.value for code in app.code), "nothing is played before it is opened"
    app.session_state["stories"] = True
    app.session_state["story"] = "one-slot-two-owners"
    app.run()
    written = text_of(app)
    assert "The allocator hands slot 5 to a second request while the first one still reads it." in written
    assert written.count("HEAD_K_FULL slot 5 verify_chain_hash+verify_position") == 6, "one row for each configuration"
    assert written.count("TAIL_K_FULL slot 5 verify_real_kv_hash<") == 5, "all but the one that hashes no bytes"
    assert [written.count(f'<td class="">{config}</td>') for config in DEFAULT_CONFIGS] == [1] * 6, "each is named once"
    assert app.code[0].value == "kvcanary campaign --preset one-slot-two-owners"
    app.selectbox(key="story").set_value("cell-points-at-slot-0").run()
    written = text_of(app)
    assert written.count("verify skips slot 0, and the chain check of its successor with it") == 5
    assert written.count("STRICT request 1 position 3 cell at slot 0") == 1


@pytest.mark.parametrize(("faults", "seeds", "least", "most"), [(1, 1, 2.0, 2.0), (None, 10, 8.0, 20.0)])
def test_a_large_campaign_is_drawn_less_often_while_it_runs(faults: int | None, seeds: int, least: float, most: float) -> None:
    spec = CampaignSpec(faults=[".".join(fault) for fault in ALL_FAULTS[:faults]], configs=list(DEFAULT_CONFIGS), seeds=seeds)
    record = RunRecord(id=RUN, kind="campaign", state=RunState.RUNNING, spec=asdict(spec), created_s=1.0)
    assert least <= fault_lab_view.pace_s(record) <= most
