"""What is said about runs beside each other: campaigns by their cells, benchmarks up to the number that a chart can tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvcanary.charts.compare import RUN_LIMIT
from kvcanary.charts.sections import compare_sections, run_sections
from kvcanary.errors import StoreError
from kvcanary.lab.campaign_job import CampaignSpec, run_campaign_job
from kvcanary.lab.records import RunFolder
from kvcanary.store.database import Store
from tests.stored_runs import points, store_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(None, tmp_path)
    yield opened
    opened.close()


def campaign(root: Path, number: int, *configs: str) -> str:
    spec = CampaignSpec(faults=["payload_bytes.bit_flip"], configs=list(configs), seeds=1)
    run_id = store_run(root, number, kind="campaign", spec=asdict(spec))
    run_campaign_job(RunFolder(root / "runs" / run_id), spec)
    return run_id


def test_campaigns_are_compared_cell_by_cell(store: Store, tmp_path: Path) -> None:
    first, same, other = campaign(tmp_path, 1, "partial"), campaign(tmp_path, 2, "partial"), campaign(tmp_path, 3, "chain only")
    differing, detection = compare_sections(store, [first, same])
    assert detection.sentence == "All cells are the same."
    assert (len(detection.pictures), list(detection.tables), list(differing.tables)) == (2, [], [])
    differing, detection = compare_sections(store, [first, other])
    assert [row[:4] for row in detection.tables[0].rows] == [
        ("payload_bytes.bit_flip", "partial", "100 % (1 of 1)", "not run"),
        ("payload_bytes.bit_flip", "chain only", "not run", "out of reach (0 of 1)"),
    ]
    assert [tuple(row[1:]) for row in differing.tables[0].rows] == [("configs", "partial", "chain only")]


def test_a_campaign_has_its_matrix_and_its_costs(store: Store, tmp_path: Path) -> None:
    headings = [section.heading for section in run_sections(store, campaign(tmp_path, 1, "partial"))]
    assert headings == ["Detection", "Cost and detection", "Outcome", "What ran", "Coverage", "Machine and versions"]


def test_a_part_that_cannot_be_read_says_why_and_the_rest_stands(store: Store, tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=points())
    (tmp_path / "runs" / run / "points.jsonl").write_text("{}\n{}\n")
    sections = run_sections(store, run)
    assert [section.heading for section in sections][:2] == ["Not readable here", "Outcome"]
    assert "damaged in line 1" in sections[0].sentence


def test_as_many_runs_are_compared_as_a_chart_can_tell_apart(store: Store, tmp_path: Path) -> None:
    runs = [store_run(tmp_path, number, measured=points(seed=number)) for number in range(RUN_LIMIT + 1)]
    sections = compare_sections(store, runs[:RUN_LIMIT])
    assert [section.heading for section in sections] == ["What differs", *(f"Ratios: {run}" for run in runs[1:RUN_LIMIT]), "Throughput"]
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
