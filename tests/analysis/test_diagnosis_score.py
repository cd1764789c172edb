"""The score of the diagnosis: what counts as right, what is never forgiven, and that the targets hold on a small sample."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.analysis.causes import Cause
from kvcanary.analysis.diagnosis_score import TRUTH, Answer, Score, score
from kvcanary.analysis.marks import Confidence
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.diagnosis_benchmark import KnownLog, known_logs, visible_cells

RIGHT = Answer(
    key=("slot_alias", "wrong_cell", "partial", 1),
    deployment="plain",
    mode="log",
    truth=Cause.WRONG_MAPPING,
    first=Cause.WRONG_MAPPING,
    confidence=Confidence.HIGH,
    named=True,
)
WRONG = replace(RIGHT, first=Cause.KV_BYTES_CHANGED, confidence=Confidence.MEDIUM)


def test_every_visible_fault_has_a_true_cause() -> None:
    assert {fault for fault, _ in visible_cells()} == set(TRUTH)


def test_targets() -> None:
    assert Score(answers=(RIGHT,) * 17 + (WRONG,) * 3, silent=0).holds
    assert not Score(answers=(RIGHT,) * 16 + (WRONG,) * 3, silent=0).holds
    assert not Score(answers=(RIGHT,) * 99 + (replace(WRONG, confidence=Confidence.HIGH),), silent=0).holds
    assert not Score(answers=(), silent=5).holds


def test_document_counts() -> None:
    document = Score(answers=(RIGHT, RIGHT, WRONG), silent=4).to_document()
    assert (document["runs"], document["right"], document["silent"]) == (3, 2, 4)
    assert document["matrix"] == [["wrong_mapping", "kv_bytes_changed", 1], ["wrong_mapping", "wrong_mapping", 2]]
    assert document["by_fault"] == [["slot_alias.wrong_cell", 2, 3]]
    assert document["confidence"]["high"] == [2, 2]


def test_silent_runs_are_counted_apart() -> None:
    silent = KnownLog(key=RIGHT.key, deployment="plain", mode="log", text="", without_start="")
    whole, cut = score([silent])
    assert (whole.silent, whole.answers, cut.silent) == (1, (), 1)


def test_targets_hold_on_one_seed_of_every_cell() -> None:
    whole, cut = score(known_logs([77], choose_backend("auto", "cpu")[0]))
    assert len(whole.answers) >= 120
    assert whole.holds, [(answer.key, answer.first) for answer in whole.answers if not answer.right]
    assert not cut.wrong_and_sure
