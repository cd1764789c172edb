"""What is said about runs beside each other: campaigns by rates and costs, benchmarks up to the number that a chart can tell apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvcanary.charts.compare import RUN_LIMIT
from kvcanary.charts.compare_sections import compare_report, compare_sections
from kvcanary.charts.sections import run_name
from kvcanary.errors import StoreError
from kvcanary.store.database import Store
from kvcanary.units import format_fraction
from tests.stored_runs import SETTINGS, points, run_campaign, store_run


def name(store: Store, run_id: str) -> str:
    return run_name(store.row(run_id))


def test_campaigns_are_compared_by_detection_rates_and_costs(store: Store, tmp_path: Path) -> None:
    first, same, other = run_campaign(tmp_path, 1, "partial"), run_campaign(tmp_path, 2, "partial"), run_campaign(tmp_path, 3, "chain only")
    differing, rates, costs, matrices = compare_sections(store, [first, same])
    assert rates.sentence.startswith("1 detection rates compared: 1 no difference shown. 1 configurations by time per step: 1 too few")
    assert tuple(rates.tables[0].rows[0][:5]) == ("payload_bytes", "partial", "1 of 1", "1 of 1", format_fraction(0.0))
    assert (rates.tables[0].rows[0][6], costs.tables[0].rows[0][0], costs.tables[0].rows[0][5]) == (
        "no difference shown", "partial", "too few repeats",
    )  # fmt: skip
    assert [tuple(row) for row in differing.tables[0].rows] == [("id", "run", first, same), ("verdict", "run", "pass", "pass")]
    assert differing.sentence == "Settings, options, machine and versions are the same."
    assert len(matrices.pictures) == 2
    assert rates.pictures[0].alt == "Detection rates that differ: 0 of 1."
    for section in (rates, costs):
        assert len(section.pictures[0].draw("dark").data) == 1
    differing, nothing, matrices = compare_sections(store, [first, other])
    assert nothing.sentence == "The two have no fault and configuration in common, so there is nothing to compare."
    assert [tuple(row) for row in differing.tables[0].rows[2:]] == [("configs", "run", "partial", "chain only")]
    headings = [section.heading for section in compare_sections(store, [first, same, other])]
    assert headings == [
        "What differs", f"Detection rates: {name(store, same)}", f"Costs: {name(store, same)}", f"Detection rates: {name(store, other)}",
        "Matrices",
    ]  # fmt: skip
    assert "<h2>Detection rates</h2>" in compare_report(store, [first, same], 0.9)


def test_campaigns_without_a_common_seed_have_no_section_of_costs(store: Store, tmp_path: Path) -> None:
    first, second = run_campaign(tmp_path, 1, "partial"), run_campaign(tmp_path, 2, "partial")
    lines = tmp_path / "runs" / second / "campaign.jsonl"
    line = json.loads(lines.read_text())
    line["key"][3] += 50
    lines.write_text(json.dumps(line) + "\n")
    headings = [section.heading for section in compare_sections(store, [first, second])]
    assert headings == ["What differs", "Detection rates", "Matrices"]


def test_runs_of_two_kinds_have_no_measurement_in_common(store: Store, tmp_path: Path) -> None:
    differing, nothing = compare_sections(store, [store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2, kind="campaign")])
    assert differing.heading == "What differs"
    assert nothing.sentence.startswith("A benchmark and a campaign have no measurement in common; choose runs of one kind")
    plans = compare_sections(store, [store_run(tmp_path, 3, kind="plan"), store_run(tmp_path, 4, kind="plan", spec={"settings": {}})])
    assert [section.heading for section in plans] == ["What differs"]
    assert {"req_to_token_pool_size", "model"} <= {row[0] for row in plans[0].tables[0].rows}


def test_as_many_runs_are_compared_as_a_chart_can_tell_apart(store: Store, tmp_path: Path) -> None:
    runs = [store_run(tmp_path, number, measured=points(seed=number)) for number in range(RUN_LIMIT + 1)]
    sections = compare_sections(store, runs[:RUN_LIMIT])
    assert [section.heading for section in sections] == [
        "What differs", *(f"Ratios: {name(store, run)}" for run in runs[1:RUN_LIMIT]), "Throughput",
    ]  # fmt: skip
    assert len(sections[-1].pictures[0].draw("light").data) == RUN_LIMIT
    for wrong in (runs, runs[:1], [runs[0], runs[0]]):
        with pytest.raises(StoreError, match=f"compare 2 to {RUN_LIMIT} different runs, got {len(wrong)}"):
            compare_sections(store, wrong)


def test_a_run_without_the_variant_of_the_others_has_no_line(store: Store, tmp_path: Path) -> None:
    both = store_run(tmp_path, 1, measured=[*points(), *(replace(point, hash_mode="all") for point in points(2.0))])
    one = store_run(tmp_path, 2, measured=points(seed=4))
    throughput = compare_sections(store, [both, one])[-1]
    assert [(picture.alt.partition(" slots")[0], len(picture.draw("dark").data)) for picture in throughput.pictures] == [
        ("verify, hash none, contiguous", 2), ("stamp, hash none, contiguous", 2), ("verify, hash all, contiguous", 1),
        ("stamp, hash all, contiguous", 1),
    ]  # fmt: skip


def test_runs_go_by_a_name_that_can_be_read_and_their_ids_stand_once(store: Store, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "/data/models/a-model-7b"}
    first = store_run(tmp_path, 1, measured=points(), map_slots=50, spec={"settings": settings})
    second = store_run(tmp_path, 2, measured=points(seed=2), map_slots=50, spec={"settings": {**settings, "model": ""}})
    third = store_run(tmp_path, 3, measured=points(seed=3), map_slots=50)
    store.add_label(third, "after the fix")
    names = ["a-model-7b, 2023-11-14 22:13, 00000001", "benchmark, 2023-11-14 22:13, 00000002", "after the fix, 2023-11-14 22:13, 00000003"]
    assert [name(store, run) for run in (first, second, third)] == names
    differing, *others = compare_sections(store, [first, second, third])
    assert list(differing.tables[0].head) == ["what differs", "of", *names]
    assert tuple(differing.tables[0].rows[0][2:]) == (first, second, third)
    assert ("model", "settings", "/data/models/a-model-7b", "none", "small-model") in map(tuple, differing.tables[0].rows)
    said = [section.heading for section in others] + [picture.alt for section in others for picture in section.pictures]
    assert not [text for text in said if any(run in text for run in (first, second, third))]
    throughput = next(section for section in others if section.heading == "Throughput")
    assert [line.name for line in throughput.pictures[0].draw("light").data] == names


def test_a_lone_outcome_is_named_and_no_axis_title_is_wider_than_a_phone(store: Store, tmp_path: Path) -> None:
    first, second = store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2, measured=points(2.0, seed=2))
    campaigns = [run_campaign(tmp_path, 3, "partial"), run_campaign(tmp_path, 4, "partial")]
    pictures = [
        picture.draw("light")
        for runs in ([first, second], campaigns)
        for section in compare_sections(store, runs)
        if section.heading in ("Ratios", "Detection rates", "Costs")
        for picture in section.pictures
    ]
    assert len(pictures) == 3
    for figure in pictures:
        assert figure.layout.showlegend
        assert max(map(len, figure.layout.xaxis.title.text.split("<br>"))) <= 18


def test_names_from_a_stored_file_are_text_in_a_chart(store: Store, tmp_path: Path) -> None:
    first, second = (
        store_run(tmp_path, number, measured=[replace(point, layout="<b>bold</b>") for point in points(seed=number)]) for number in (1, 2)
    )
    ratios = next(section for section in compare_sections(store, [first, second]) if section.heading == "Ratios")
    drawn = ratios.pictures[0].draw("light")
    assert not [name for trace in drawn.data for name in trace.y if "<b>" in name]
    assert set(drawn.layout.yaxis.categoryarray) == {name for trace in drawn.data for name in trace.y}
