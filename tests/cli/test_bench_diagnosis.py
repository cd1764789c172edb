"""`kvcanary bench --preset diagnosis`: the confusion matrix on the terminal, the document, and the exit code."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvcanary.analysis.causes import Cause
from kvcanary.analysis.diagnosis_score import Answer, Score
from kvcanary.analysis.marks import Confidence
from kvcanary.cli import app, bench_diagnosis

runner = CliRunner()


def answers(first: Cause, count: int, confidence: Confidence = Confidence.MEDIUM) -> tuple[Answer, ...]:
    key, truth = ("slot_alias", "wrong_cell", "partial", 1), Cause.WRONG_MAPPING
    one = Answer(key=key, deployment="plain", mode="log", truth=truth, first=first, confidence=confidence, named=True)
    return (one,) * count


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[Score]:
    """The benchmark itself is replaced: what is tested here is what is said about its result."""
    result: list[Score] = []
    monkeypatch.setattr(bench_diagnosis, "known_logs", lambda seeds, backend: iter(()))
    monkeypatch.setattr(bench_diagnosis, "score", lambda logs: (result[0], result[0]))
    return result


def test_targets_decide_the_exit_code(scored: list[Score]) -> None:
    scored[:] = [Score(answers=answers(Cause.WRONG_MAPPING, 9) + answers(Cause.STALE_RECORD, 1), silent=2)]
    good = runner.invoke(app, ["bench", "--preset", "diagnosis"])
    assert good.exit_code == 0
    for part in (
        "90\u202f% of 10 logs",
        "0 stated with high confidence and wrong",
        "slot_alias.wrong_cell: 9 of 10; otherwise stale_record",
    ):
        assert part in good.stdout
    scored[:] = [Score(answers=answers(Cause.WRONG_MAPPING, 9) + answers(Cause.STALE_RECORD, 1, Confidence.HIGH), silent=0)]
    assert runner.invoke(app, ["bench", "--preset", "diagnosis"]).exit_code == 1


def test_document(scored: list[Score]) -> None:
    scored[:] = [Score(answers=answers(Cause.WRONG_MAPPING, 3) + answers(Cause.STALE_RECORD, 2), silent=1)]
    result = runner.invoke(app, ["bench", "--preset", "diagnosis", "--seed", "4", "--json", "-"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert (data["schema"], data["seeds"], data["holds"]) == ("kvcanary.diagnosis_benchmark", [40, 50], False)
    assert data["logs"]["matrix"] == [["wrong_mapping", "stale_record", 2], ["wrong_mapping", "wrong_mapping", 3]]
