"""What is said about one run: a campaign has its matrix, and a part that cannot be read hides no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvcanary.charts.sections import run_sections
from kvcanary.lab.records import RunFolder
from kvcanary.store.database import Store
from tests.stored_runs import points, run_campaign, store_run


def test_a_campaign_has_its_matrix_and_its_costs(store: Store, tmp_path: Path) -> None:
    sections = run_sections(store, run_campaign(tmp_path, 1, "partial"))
    headings = [section.heading for section in sections]
    assert headings == ["Detection", "Cost and detection", "Every cell", "Outcome", "What ran", "Coverage", "Machine and versions"]
    costs = sections[1]
    assert [picture.alt[:19] for picture in costs.pictures] == ["Reported in the ste", "Worth choosing from"]
    assert all(picture.draw("dark").data for picture in costs.pictures)
    assert {"steps p50", "tokens p90", "entries per step"} <= set(costs.tables[0].head), "the report says as much as the page"


def test_a_part_that_cannot_be_read_says_why_and_the_rest_stands(store: Store, tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=points())
    (tmp_path / "runs" / run / "points.jsonl").write_text("{}\n{}\n")
    sections = run_sections(store, run)
    assert [section.heading for section in sections][:2] == ["Not readable here", "Outcome"]
    assert "damaged in line 1" in sections[0].sentence


def test_operations_that_were_not_measured_are_left_out(store: Store, tmp_path: Path) -> None:
    alone = [replace(point, verify=None, verify_bound=None, plan=None) for point in points()]
    [text] = [picture.alt for section in run_sections(store, store_run(tmp_path, 1, measured=alone)) for picture in section.pictures]
    assert "stamp reaches" in text
    assert "verify" not in text
    assert "forward" not in text


def test_a_rate_above_its_bound_is_no_percentage_in_the_table(store: Store, tmp_path: Path) -> None:
    [point] = points(batches=[4])
    assert point.verify is not None
    measured = [
        replace(point, stamp_bound=None, verify_bound=replace(point.verify, p50_s=factor * point.verify.p50_s)) for factor in (1.05, 1.2)
    ]
    [table] = run_sections(store, store_run(tmp_path, 1, measured=measured))[0].tables
    shares = [row[table.head.index("share of bound")].replace("\u202f", " ") for row in table.rows]
    assert shares == ["not measured", "105 %", "not measured", "above it, so no limit"]


def test_the_report_shows_the_share_of_the_model_step_and_counts_the_pool_as_plan_does(store: Store, tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=points())
    folder = RunFolder(tmp_path / "runs" / run)
    record = folder.read_record()
    coverage = {"slots": 4097, "reserved": 1}
    folder.write_record(replace(record, spec={**record.spec, "step_time_s": 0.02}, coverage=coverage))
    throughput, *others = run_sections(store, run)
    assert "of a step" in throughput.pictures[0].alt
    assert "of a step" in throughput.tables[0].rows[0][-1]
    [counted] = [section.tables[0].rows for section in others if section.heading == "Coverage"]
    assert [name for name, _ in counted] == ["slots, with the padding page", "slots of the padding page"]


def test_settings_that_are_all_at_their_defaults_are_said_to_be(store: Store, tmp_path: Path) -> None:
    def said(run: str) -> str:
        return next(section.sentence for section in run_sections(store, run) if section.heading == "Settings")

    assert said(store_run(tmp_path, 1, spec={"settings": {}})) == "Every setting has its default."
    one = store_run(tmp_path, 2, spec={"settings": {"pool_slot_count": "70"}})
    assert said(one) == "One setting differs from its default; all others have theirs."
    assert said(store_run(tmp_path, 3)) == "4 settings differ from their defaults; all others have them."


def test_an_inspection_that_was_stored_without_a_version_is_read_whole(store: Store, tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, kind="inspection")
    folder = RunFolder(tmp_path / "runs" / run)
    document = folder.read_result()
    assert document is not None
    whole = [(section.heading, section.sentence) for section in run_sections(store, run)]
    del document["version"]
    folder.write_result({**document, "schema": "kvcanary.inspect/1"})
    assert [(section.heading, section.sentence) for section in run_sections(store, run)] == whole


@pytest.mark.parametrize("kind", ["plan", "inspection"])
def test_a_result_of_a_newer_version_is_shown_as_far_as_it_is_known(store: Store, tmp_path: Path, kind: str) -> None:
    run = store_run(tmp_path, 1, kind=kind)
    folder = RunFolder(tmp_path / "runs" / run)
    known = [section.heading for section in run_sections(store, run)]
    assert "Not all is shown" not in known
    document = folder.read_result()
    assert document is not None
    folder.write_result({**document, "version": document["version"] + 1})
    newer = [section for section in run_sections(store, run) if section.heading not in known]
    assert [section.sentence for section in newer] == [
        "A newer version of kvcanary wrote this result; what only that version knows is not shown."
    ]
    folder.write_result({"schema": "x"})
    assert run_sections(store, run)[0].sentence == "Nothing in the stored result can be read here."


def test_a_plan_took_no_time_and_its_amounts_have_units(store: Store, tmp_path: Path) -> None:
    spec = {"settings": {"pool_slot_count": 4096, "device_memory_bytes": 80 << 30}}
    run = store_run(tmp_path, 1, kind="plan", started_s=1.7e9, finished_s=1.7e9, spec=spec)
    tables = {section.heading: section.tables[0].rows for section in run_sections(store, run) if section.tables}
    assert "took" not in dict(tables["Outcome"])
    assert tables["Settings"] == [("pool_slot_count", "4\u202f096"), ("device_memory_bytes", "80.00 GiB")]
