"""Exported documents of every version are read back, and another store takes them in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcanary.errors import StoreError
from kvcanary.lab.records import RUN_VERSION, RunState, Verdict
from kvcanary.store.documents import parse_document, read_document
from kvcanary.store.runs import document_json
from tests.store.conftest import OpenStore
from tests.store.making import card, point, run_folder

GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_version_of_the_document_has_a_golden_file() -> None:
    assert sorted(path.name for path in GOLDEN.glob("run_v*.json")) == [f"run_v{number}.json" for number in range(1, RUN_VERSION + 1)]


@pytest.mark.parametrize("version", range(1, RUN_VERSION + 1))
def test_a_document_of_each_version_is_read(version: int) -> None:
    run = parse_document((GOLDEN / f"run_v{version}.json").read_text(encoding="utf-8"))
    assert (run.record.kind, run.record.state, run.record.verdict) == ("benchmark", RunState.DONE, Verdict.PASS)
    assert run.record.spec["settings"] == {"model": "qwen3-32b", "pool_slot_count": 4096, "page_size": 16}
    assert [check.name for check in run.record.gate] == ["bytes equal the reference", "planted faults"]
    assert [(one.workload, one.batch, one.prefix) for one in run.points] == [("decode", 8, 128), ("sweep", 1, 4000)]
    assert run.points[0].stamp is not None
    assert (run.points[0].stamp.p50_s, run.points[0].stamp.items) == (1e-4, 8)
    assert run.points[0].forward_s == pytest.approx(3e-5 + 9e-5 + 4e-5 + 2e-4 + 1e-4)
    assert run.cards == (card(77),)
    assert (run.note, run.labels, run.result) == (("", (), None) if version == 1 else ("golden", ("baseline",), None))


@pytest.mark.parametrize("version", range(1, RUN_VERSION + 1))
def test_a_store_takes_in_what_another_one_exported(open_store: OpenStore, version: int) -> None:
    document = parse_document((GOLDEN / f"run_v{version}.json").read_text(encoding="utf-8"))
    store = open_store()
    run_id = store.take_in(document)
    assert read_document(store.document(run_id)) == document
    row = store.list()[0]
    assert (row.id, row.model, row.points, row.labels) == (run_id, "qwen3-32b", 2, document.labels)
    with pytest.raises(StoreError, match=f"run {run_id} is in the store already"):
        store.take_in(document)


def test_every_kind_of_run_goes_out_and_in_again(open_store: OpenStore, tmp_path: Path) -> None:
    store, other = open_store(), open_store("elsewhere")
    folder = run_folder(tmp_path / "home", 5)
    folder.append_point(point())
    store.set_note(folder.path.name, "note")
    store.save_plan({"model": "m"}, verdict=Verdict.PASS, sentence="Starts.", document={"schema": "kvcanary.plan"})
    for row in store.list():
        text = document_json(store.document(row.id))
        store.delete(row.id)
        assert store.purge(after_s=0) == [row.id]
        assert other.take_in(parse_document(text)) == row.id
        assert document_json(other.document(row.id)) == text


def test_a_run_that_is_not_over_or_has_no_id_is_not_taken_in(open_store: OpenStore) -> None:
    document = parse_document((GOLDEN / "run_v1.json").read_text(encoding="utf-8"))
    with pytest.raises(StoreError, match="is running; only a run that is over can be taken in"):
        open_store().take_in(replace(document, record=replace(document.record, state=RunState.RUNNING)))
    with pytest.raises(StoreError, match=r"run id must look like .*, got '\.\./up'"):
        open_store().take_in(replace(document, record=replace(document.record, id="../up")))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": RUN_VERSION + 1}, "written by a newer kvcanary"),
        ({"version": RUN_VERSION + 1, "temperature_c": 41}, "written by a newer kvcanary"),
        ({"temperature_c": 41}, "'temperature_c' is no field of it"),
        ({"schema": "kvcanary.plan"}, "schema is 'kvcanary.plan', expected 'kvcanary.run'"),
        ({"points": [{"workload": "decode"}]}, "not a run"),
        ({"points": 3}, "not a run"),
        ({"state": "asleep"}, "asleep"),
        ({"gate": [{"name": "x"}]}, "not a run"),
        ({"cards": {}}, "cards must be a list, got dict"),
        ({"cards": [card(3), card(4, stored=[1, 2])]}, r"cards\[1\]\.stored must be 4 whole numbers, got"),
        ({"result": "good"}, "result must be an object or null, got str"),
    ],
)
def test_what_is_no_run_is_refused_with_the_reason(changes: dict[str, Any], sentence: str) -> None:
    document = json.loads((GOLDEN / "run_v1.json").read_text(encoding="utf-8"))
    with pytest.raises(StoreError, match=sentence):
        read_document({**document, **changes})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 100_000])
def test_text_that_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="not a run"):
        parse_document(text)
