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


TIMING = {"p20_s": 1e-4, "p50_s": 1e-4, "p80_s": 1e-4, "repeats": 5, "items": 8, "bytes_moved": 448}
MEASURED = {"workload": "decode", "layout": "contiguous", "hash_mode": "none", "batch": 8, "prefix": 128, "stamp": TIMING}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": RUN_VERSION + 1}, "written by a newer kvcanary"),
        ({"version": RUN_VERSION + 1, "temperature_c": 41}, "written by a newer kvcanary"),
        ({"temperature_c": 41}, "'temperature_c' is no field of it"),
        ({"schema": "kvcanary.plan"}, "schema is 'kvcanary.plan', expected 'kvcanary.run'"),
        ({"points": [{"workload": "decode"}]}, r"points\.0\.layout: is missing"),
        ({"points": 3}, "points: should be a valid array, got 3"),
        ({"points": [{**MEASURED, "batch": "8"}]}, r"points\.0\.batch: should be a valid integer, got '8'"),
        ({"points": [{**MEASURED, "batch": 10**20}]}, "batch must be at least 0 and at most 9223372036854775807, got 1e"),
        ({"points": [{**MEASURED, "stamp": {**TIMING, "p50_s": 0}}]}, "a time of stamp must be above 0"),
        ({"points": [{**MEASURED, "stamp": {**TIMING, "samples_s": [1e-4, -1e-4]}}]}, "a time of stamp must be above 0"),
        ({"points": [{**MEASURED, "stamp": {**TIMING, "items": -1}}]}, "a count of stamp must be at least 0"),
        ({"points": [{**MEASURED, "warm_up_s": float("nan")}]}, "what JSON does not have"),
        ({"state": "asleep"}, "asleep"),
        ({"state": None}, "state: should be 'queued'"),
        ({"gate": [{"name": "x"}]}, r"gate\.0\.ok: is missing"),
        ({"created_s": "now"}, "created_s: should be a valid number, got 'now'"),
        ({"finished_s": 1e300}, "a time of the run must be at least 0 and at most 253402300799, got 1e"),
        ({"spec": {"settings": {}, "preset": 5}}, "preset: should be a valid string, got 5"),
        ({"kind": "campaign", "spec": {"settings": {}}}, "'settings' is no field of it"),
        ({"note": ["a"]}, "note: should be a valid string"),
        ({"labels": "ab"}, "labels: should be a valid array, got 'ab'"),
        ({"labels": ["ok", " "]}, "each label 1 to 60"),
        ({"note": "x" * 10_001}, "a note may have 10000 characters"),
        ({"sentence": "\ud800"}, "surrogates not allowed"),
        ({"labels": [5]}, r"labels\.0: should be a valid string, got 5"),
        ({"cards": {}}, "cards: should be a valid array"),
        ({"cards": [card(3), card(4, stored=[1, 2])]}, r"cards\[1\]\.stored must be 4 whole numbers, got"),
        ({"result": "good"}, "result: should be an object, got 'good'"),
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
