"""An inspection as sections: the same from its stored document as from the log itself, whatever the document is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.inspection import report_data
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.stored_inspection import reported_rows
from kvcanary.charts.inspection_sections import inspection_sections
from kvcanary.charts.report import Section, report_html
from kvcanary.typed import Loose
from kvcanary.ui import inspect_report
from tests.analysis.rendering import Row, prefix, stats
from tests.charts.documents import NASTY, damaged, shown

LINES = (
    *(
        f"{prefix(rank, f'2027-02-03 04:05:{second:02}')}{Row(slot=slot, tag=tag).message(step=second, total=second)}"
        for second, (rank, slot, tag) in enumerate(
            (("TP0", 70, "HEAD_K_FULL"), ("TP1", 70, "HEAD_K_FULL"), ("TP0", 9812, "TAIL_K_FULL"), ("TP1", 33, "TAIL_K_SWA")), start=1
        )
    ),
    stats(9, 4),
)
INSPECTED = Inspected(read_text("\n".join(LINES)))


def document(**options: Any) -> dict[str, Any]:
    """As the store gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(report_data(INSPECTED.log, INSPECTED.diagnosis, **options)))
    return found


def stored(found: dict[str, Any]) -> list[Section]:
    return inspection_sections(found, reported_rows(Loose(found)))


def test_what_was_stored_reads_as_what_was_just_read() -> None:
    sections = stored(document())
    assert [section.heading for section in sections][1:] == [
        "Violations", "Slot map of the full pool", "Slot map of the window pool", "Incidents", "Coverage by rank",
        "Coverage, and what this log cannot tell", "Violations as listed",
    ]  # fmt: skip
    assert sections[0].heading.startswith("Likeliest cause: ")
    assert sections[0].heading.endswith(" confidence)")
    assert shown(sections) == shown(inspect_report.sections(INSPECTED))


def test_counts_coverage_and_slots_are_in_tables() -> None:
    tables = {section.heading: section.tables for section in stored(document())}
    assert ("TP0", "HEAD_K_FULL", "verify_real_kv_hash", "1", "1") in tables["Violations"][0].rows
    assert sorted(row[:2] for row in tables["Slot map of the full pool"][0].rows) == [("70", "2"), ("9\u202f812", "1")]
    assert [row[0] for row in tables["Slot map of the window pool"][0].rows] == ["33"]
    assert tables["Coverage by rank"][0].rows[0][:4] == ("TP0", "2", "4", "9")
    assert "5\u202f000" in tables["Coverage by rank"][0].rows[0]


def test_figures_of_a_part_say_that_they_are_of_a_part() -> None:
    sections = stored(document(max_violations=3))
    words = "The first 3 violations are stored; 1 more are not shown."
    pictures = [picture.alt for section in sections for picture in section.pictures]
    assert len(pictures) == 2
    assert all(alt.endswith(words) for alt in pictures)
    assert sections[-1].tables[0].caption == "The first 3 of 4 violations."
    assert not any(words in picture.alt for section in stored(document()) for picture in section.pictures)


def test_slots_have_their_page_where_the_server_stated_its_size() -> None:
    found = document()
    found["events"] = [{"kind": "server_args", "values": {"page_size": 64}, "text": "server_args=..."}] * 2
    found["ranks"] = [{**rank, "pool_slots": 20_000} for rank in found["ranks"]]
    [pool] = [section for section in stored(found) if section.heading == "Slot map of the full pool"]
    assert pool.tables[0].head == ("slot", "violations", "role", "page", "in page")
    assert ("153", "20") in [row[3:] for row in pool.tables[0].rows]
    assert "of 20\u202f000 slots reported (0.01\u202f%); pool size from the log; pages of 64." in pool.pictures[0].alt


def test_without_times_the_steps_are_the_axis() -> None:
    found = document()
    for row in found["violations"]:
        row["time"] = None
    [violations] = [section for section in stored(found) if section.heading == "Violations"]
    assert violations.pictures[0].alt.startswith("4 violations by step, from 1 on; ")


def test_an_inspection_without_violations_has_its_coverage() -> None:
    clean = Inspected(read_text(stats(9, 0)))
    found = report_data(clean.log, clean.diagnosis)
    assert [section.heading for section in stored(found)] == ["Coverage by rank", "Coverage, and what this log cannot tell"]
    assert stored({}) == []


def test_more_slots_than_are_stored_are_counted() -> None:
    found = document()
    found["incidents"][0] |= {"causes": [{"slot": slot} for slot in range(100)], "causes_found": 250}
    [incidents] = [section.tables[0].rows for section in stored(found) if section.heading == "Incidents"]
    assert incidents[0][5] == "0, 1, 2, 3, 4, 5 and 244 more"


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_no_document_breaks_the_page(data: st.DataObject) -> None:
    shown(stored(data.draw(damaged(document()))))


def test_imported_text_stays_text() -> None:
    found = document()
    found["violations"] = [{**row, "launch_tag": NASTY, "reasons": [NASTY], "rank": NASTY, "time": NASTY} for row in found["violations"]]
    found["causes"] = [{"title": NASTY, "confidence": NASTY, "meaning": NASTY, "evidence": [NASTY], "flags": [NASTY]}]
    found["events"] = [{"kind": NASTY, "text": NASTY}]
    found["notes"] = [NASTY]
    text = report_html("Inspection", stored(found))
    assert "<img" not in text
    assert "\x1b" not in text
    assert text.count("&lt;img src=x") > 10
