"""A stored plan as sections: what the Plan page says, from the document alone, whatever the document is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.charts.plan import memory_bar, memory_key
from kvcanary.charts.plan_sections import plan_sections
from kvcanary.charts.report import Section, report_html
from kvcanary.config.plan_report import plan_document, plan_report
from kvcanary.config.rules import RULES
from tests.charts.documents import NASTY, damaged, shown
from tests.config.plans import server

HEADINGS = ["Findings", "Launch capacities", "Memory of one rank", "Solved backwards", "As a launch command"]
REPORT = plan_report(server(cuda_graph_max_bs=200))
LOG = {"max_total_num_tokens": 140_000}


def document(**changes: Any) -> dict[str, Any]:
    """As the store gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(plan_document(plan_report(server(cuda_graph_max_bs=200, **changes)))))
    return found


def section(sections: list[Section], heading: str) -> Section:
    return next(found for found in sections if found.heading == heading)


def test_a_plan_says_what_its_page_says() -> None:
    sections = plan_sections(document())
    assert [found.heading for found in sections] == HEADINGS
    findings = section(sections, "Findings")
    assert findings.sentence == f"1 note. {len(RULES)} rules were checked."
    assert findings.tables[0].rows == [
        (REPORT.findings[0].message, "note", REPORT.findings[0].why, "set real_data to partial", "--kv-canary-real-data partial"),
        *(("", "", "", fix.text, fix.flag) for fix in REPORT.findings[0].fixes[1:]),
    ]
    assert REPORT.capacities is not None
    capacities = section(sections, "Launch capacities").tables[0].rows
    assert capacities[0][:3] == ("Slots verified per launch", "450\u202f000", "3 * pool_slot_count 150\u202f000 = 450\u202f000")
    solved = dict(row for row in section(sections, "Solved backwards").tables[0].rows)
    assert solved["largest pool for this memory"].endswith("the static share is full")
    assert "--max-total-tokens 150000" in section(sections, "As a launch command").code


def test_memory_is_in_gib_and_drawn_as_on_the_page() -> None:
    memory = section(plan_sections(document()), "Memory of one rank")
    assert memory.sentence == "Dotted line: the static share; solid line: the device."
    lines, sums = memory.tables
    assert ("Weights", "18.00 GiB", "static share") in [row[:3] for row in lines.rows]
    assert ("static share", "38.55 GiB") in [row[:2] for row in sums.rows]
    assert REPORT.plan is not None
    [picture] = memory.pictures
    for theme in ("light", "dark"):
        assert picture.draw(theme).to_json() == memory_bar(REPORT.plan, theme).to_json()
        assert picture.key is not None
        assert picture.key(theme) == memory_key(REPORT.plan, theme)


def test_what_would_help_stands_with_what_does_not_fit() -> None:
    over = section(plan_sections(document(pool_slot_count=900_000)), "Memory of one rank")
    assert over.tables[0].head[0] == "change after which it fits"
    assert any(flag.startswith("--max-total-tokens ") for _, flag in over.tables[0].rows)
    failed = plan_sections(document(pool_slot_count=0))
    assert section(failed, "Findings").sentence.startswith("1 error, 1 note.")
    assert "does not start" in section(failed, "As a launch command").sentence


def test_a_log_beside_the_plan_is_kept() -> None:
    stored = json.loads(json.dumps(plan_document(plan_report(server(), LOG))))
    [row] = section(plan_sections(stored), "Log beside the plan").tables[0].rows
    assert row[2:4] == ("140\u202f000", "150\u202f000")


def test_the_first_documents_had_no_labels() -> None:
    stored = document()
    del stored["rules_checked"], stored["solve"], stored["memory"]["budget_note"]
    for part in (*stored["capacities"].values(), *stored["memory"]["lines"]):
        del part["label"]
    sections = plan_sections(stored)
    assert [found.heading for found in sections] == [heading for heading in HEADINGS if heading != "Solved backwards"]
    assert section(sections, "Launch capacities").tables[0].rows[0][0] == "verify capacity"
    assert section(sections, "Memory of one rank").tables[0].rows[1][0] == "kv pool"
    assert plan_sections({}) == []
    assert [found.heading for found in plan_sections({"memory": {"summary": "much"}, "findings": []})] == ["Memory of one rank"]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_no_document_breaks_the_page(data: st.DataObject) -> None:
    shown(plan_sections(data.draw(damaged(document()))))


def test_imported_text_stays_text() -> None:
    stored = document()
    stored["findings"] = [{"severity": NASTY, "message": NASTY, "why": NASTY, "fixes": [{"text": NASTY, "flag": NASTY, "field": NASTY}]}]
    stored["capacities"] = {NASTY: {"value": 3, "formula": NASTY, "source": NASTY}}
    stored["memory"]["lines"] += [{"name": NASTY, "part": NASTY, "share": NASTY, "bytes": 1 << 30, "formula": NASTY}]
    stored["sglang_command"] = NASTY
    text = report_html("Plan", plan_sections(stored))
    assert "<img" not in text
    assert "\x1b" not in text
    assert text.count("&lt;img src=x") > 10
    assert "%{x}" not in text.partition('id="figures">')[2].partition("</script>")[0], "Plotly would fill it in"
