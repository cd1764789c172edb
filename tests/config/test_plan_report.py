"""A plan in one sentence and as a document."""

from __future__ import annotations

import pytest

from kvcanary.config.plan_report import plan_document, plan_report
from kvcanary.config.rules import RULES
from kvcanary.config.stored_plan import LINE_LIMIT, StoredMemory, read_memory
from kvcanary.typed import Loose
from tests.config.plans import server


def test_the_sentence_counts_by_severity_and_ends_each_part() -> None:
    report = plan_report(server(cuda_graph_max_bs=200))
    assert report.sentence.startswith(f"Starts, 1 note from {len(RULES)} rules. Memory of one rank: ")
    assert report.sentence.endswith(".")
    failed = plan_report(server(cuda_graph_max_bs=200, pool_slot_count=0))
    assert failed.sentence == f"Will not start, 1 error, 1 note from {len(RULES)} rules: {failed.findings[0].message}"


def test_a_pool_that_sglang_cuts_by_itself_starts_but_not_as_asked_for() -> None:
    report = plan_report(server(cuda_graph_max_bs=200, pool_slot_count=900_000))
    assert (report.verdict, report.starts) == ("partial", True)
    assert report.sentence.startswith(f"Starts with a smaller pool, 1 note from {len(RULES)} rules. Over budget: ")
    assert "900\u202f000 -> " in report.sentence
    assert "SGLang cuts the pool by itself" in report.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # The weights alone are too large: there is no pool to cut to.
        ({"weight_bytes": 60 << 30}, "more than the static share."),
        # Within the static share, but the rest of the device is too small for what comes on top.
        ({"mem_fraction_static": None, "pool_slot_count": 600_000}, "so it runs out of memory: 600\u202f000 -> "),
        # The pool is cut to a static share that leaves too little for the graphs.
        (
            {"mem_fraction_static": 0.97, "pool_slot_count": 900_000, "graph_bytes": 4 << 30},
            "fit, but SGLang cuts the pool to more than the device holds.",
        ),
    ],
)
def test_a_plan_that_the_memory_does_not_hold_fails(changes: dict[str, object], words: str) -> None:
    report = plan_report(server(cuda_graph_max_bs=200, **changes))
    assert (report.verdict, report.starts, plan_document(report)["verdict"]) == ("fail", False, "fail")
    assert report.sentence.startswith("Does not fit, 1 ")
    assert words in report.sentence
    assert "by itself" not in report.sentence


def test_the_memory_that_was_stored_has_the_sums_of_the_plan() -> None:
    report = plan_report(server(weight_bytes=None, post_capture_kv_sizing=True))
    assert report.plan is not None
    stored = read_memory(Loose(plan_document(report)["memory"]))
    for name in (
        "summary", "known_bytes", "canary_bytes", "budget_bytes", "budget_note", "headroom_bytes", "static_left_bytes", "static_limit_bytes",
    ):  # fmt: skip
        assert getattr(stored, name) == getattr(report.plan, name), name
    assert [line.label for line in stored.unknown_lines] == [line.label for line in report.plan.unknown_lines] != []


def test_a_memory_of_another_version_is_read_as_far_as_it_goes() -> None:
    lines = [{"name": "kv_pool", "bytes": 5, "share": "slack"}, {"bytes": -1}, {"bytes": True, "part": 3}, "x", {}] + LINE_LIMIT * [
        {"bytes": 1}
    ]
    stored = read_memory(Loose({"lines": lines, "budget_bytes": "80", "static_left_bytes": 2}))
    assert [(line.label, line.part, line.bytes) for line in stored.lines[:3]] == [
        ("kv pool", "other", 5), ("without a name", "other", None), ("without a name", "other", None),
    ]  # fmt: skip
    assert (len(stored.lines), stored.lines_left_out) == (LINE_LIMIT, 3)
    assert stored.known_bytes == 5 + LINE_LIMIT - 3
    assert stored.static_limit_bytes == 2 + LINE_LIMIT - 3
    assert (stored.budget_bytes, stored.headroom_bytes) == (None, None)
    assert read_memory(Loose(None)) == StoredMemory(
        summary="", lines=(), lines_left_out=0, budget_bytes=None, budget_note="", static_left_bytes=None
    )
