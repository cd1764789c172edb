"""Runs on disk: round trips, damage, newer versions, deletion, tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvcanary.errors import StoreError
from kvcanary.lab.points import Point, Timing
from kvcanary.lab.records import RUN_VERSION, BenchmarkSpec, GateCheck, Progress, RunFolder, RunRecord, RunState, Verdict
from kvcanary.lab.tables import POINT_COLUMNS, point_rows, record_columns, write_points, write_slots
from kvcanary.layout import SLOT_FIELDS
from kvcanary.store.database import Store
from kvcanary.store.export import export_csv
from kvcanary.store.home import data_folder
from kvcanary.store.runs import document_json, read_cards, read_slot_arrays
from tests.store.making import card
from tests.stored_runs import store_run

RUN = "20260213-040506-benchmark"


def timing(p50_s: float, items: int = 1000) -> Timing:
    return Timing(p20_s=p50_s * 0.9, p50_s=p50_s, p80_s=p50_s * 1.25, repeats=7, items=items, bytes_moved=items * 64)


POINT = Point(
    workload="decode", layout="shuffled", hash_mode="all", batch=24, prefix=320, stamp=timing(2e-3, 24), stamp_bound=timing(5e-4, 24),
    verify=timing(8e-3), verify_bound=timing(6e-3), plan=timing(1e-3), head_stamp=timing(3e-4, 24), head_verify=timing(4e-3),
    warm_up_s=0.04,
)  # fmt: skip


def stored(root: Path, run_id: str = RUN, **changes: Any) -> RunFolder:
    folder = RunFolder(root / "runs" / run_id)
    folder.path.mkdir(parents=True)
    record = RunRecord(
        id=run_id, kind="benchmark", spec=asdict(BenchmarkSpec(settings={"page_size": 4})), created_s=70.5,
        **{"state": RunState.DONE, "verdict": Verdict.PASS, **changes},
    )  # fmt: skip
    folder.write_record(record)
    return folder


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = stored(
        tmp_path, gate=(GateCheck(name="bytes", ok=True, detail="77 tokens"),), faults=({"kind": "token bit", "slot": 9},),
        skipped=("decode batch 512: too many",), coverage={"verified": 640}, started_s=71.0, pid=12, pid_started_s=70.9,
    )  # fmt: skip
    record = folder.read_record()
    folder.write_record(record)
    assert folder.read_record() == record
    assert (record.gate[0].detail, record.skipped[0][:6], record.verdict) == ("77 tokens", "decode", Verdict.PASS)
    assert json.loads((folder.path / "run.json").read_text())["version"] == RUN_VERSION


def test_points_come_back_as_they_were_appended(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    sweep = Point(workload="sweep", layout="contiguous", hash_mode="none", batch=3, prefix=512, verify=timing(1e-3))
    folder.append_point(POINT)
    folder.append_point(sweep)
    assert folder.read_points() == [POINT, sweep]


def test_one_forward_is_a_plan_and_then_head_and_tail() -> None:
    assert POINT.forward_s == pytest.approx(1e-3 + 4e-3 + 3e-4 + 8e-3 + 2e-3)
    same = {"workload": "decode", "layout": "contiguous", "hash_mode": "none", "batch": 1}
    assert Point(**same, prefix=8, stamp=timing(2.0), verify=timing(3.0)).forward_s == pytest.approx(10.0)
    assert Point(**same, prefix=0, stamp=timing(2.0), plan=timing(0.5)).forward_s == pytest.approx(4.5)
    assert Point(**same, prefix=8, stamp=timing(2.0)).forward_s is None
    assert Point(**{**same, "workload": "sweep"}, prefix=8, stamp=timing(2.0), verify=timing(3.0)).forward_s is None


def test_the_share_of_a_bound_is_what_is_left_to_gain() -> None:
    assert POINT.share_of_bound("verify") == pytest.approx(0.75)
    assert Point(workload="prefill", layout="contiguous", hash_mode="none", batch=1, prefix=0).share_of_bound("stamp") is None


def test_a_line_cut_off_by_a_crash_is_left_out_and_damage_before_it_is_named(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    folder.append_point(POINT)
    lines = folder.path / "points.jsonl"
    whole = lines.read_text()
    lines.write_text(whole + whole[:40])
    assert folder.read_points() == [POINT]
    lines.write_text(whole[:40] + "\n" + whole)
    with pytest.raises(StoreError, match=f"points of run {RUN} are damaged in line 1"):
        folder.read_points()
    lines.write_text('{"workload": "decode", "color": 1}\n')
    with pytest.raises(StoreError, match=r"damaged in line 1.*color"):
        folder.read_points()


def test_progress_that_cannot_be_read_is_no_progress(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    assert folder.read_progress() is None
    folder.write_progress(Progress(stage="gate", done=1, total=5, message="comparing", eta_s=2.5))
    assert folder.read_progress() == Progress(stage="gate", done=1, total=5, message="comparing", eta_s=2.5)
    (folder.path / "progress.json").write_text('{"stage": ')
    assert folder.read_progress() is None


def test_writing_leaves_no_temporary_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path)
    before = (folder.path / "run.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        folder.update_record(sentence="longer")
    assert [path.name for path in folder.path.iterdir()] == ["run.json"]
    assert (folder.path / "run.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": RUN_VERSION + 1}, "written by a newer kvcanary"),
        ({"version": "one"}, "version must be a whole number, got 'one'"),
        ({"schema": "other.run"}, "schema is 'other.run', expected 'kvcanary.run'"),
        ({"state": "asleep"}, "asleep"),
        ({"spec": []}, "spec must be an object, got list"),
        ({"id": "20260213-040506-benchmark-2"}, "it says that it is run '20260213-040506-benchmark-2'"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_a_record_that_is_not_ours_is_refused_with_the_reason(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    file = stored(tmp_path).path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(StoreError, match=f"run {RUN} cannot be read: .*{sentence}"):
        RunFolder(file.parent).read_record()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 5000, "\x00\x01"])
def test_damaged_runs_are_named_and_hide_no_other(tmp_path: Path, text: str) -> None:
    good, bad = stored(tmp_path), stored(tmp_path, "20260213-040507-benchmark")
    (bad.path / "run.json").write_text(text)
    store = Store.open(None, tmp_path)
    assert [row.id for row in store.list()] == [good.path.name]
    assert [sentence.split(" cannot")[0] for sentence in store.damaged()] == ["run 20260213-040507-benchmark"]
    with pytest.raises(StoreError, match="run 20260213-040507-benchmark cannot be read"):
        store.row(bad.path.name)
    store.delete(bad.path.name)
    assert store.damaged() == []
    assert not bad.path.exists()


def test_the_csv_has_one_row_per_operation_with_the_numbers_of_the_point(tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=[POINT])
    rows = list(csv.DictReader(io.StringIO(export_csv(Store.open(None, tmp_path), run))))
    assert tuple(rows[0]) == POINT_COLUMNS
    assert [(row["op"], row["items"], float(row["p50_s"])) for row in rows] == [("stamp", "24", 2e-3), ("verify", "1000", 8e-3)]
    assert float(rows[1]["items_per_s"]) == pytest.approx(1000 / 8e-3)
    assert float(rows[1]["bytes_per_s"]) == pytest.approx(64_000 / 8e-3)
    assert rows[1]["bytes_moved"] == "64000"
    assert float(rows[0]["share_of_bound"]) == pytest.approx(0.25)


def test_points_as_parquet_say_what_the_csv_says(tmp_path: Path) -> None:
    bare = Point(workload="sweep", layout="contiguous", hash_mode="none", batch=3, prefix=512, verify=timing(1e-3))
    write_points(tmp_path / "points.parquet", [POINT, bare])
    table = pq.read_table(tmp_path / "points.parquet")
    assert table.to_pylist() == point_rows([POINT, bare])
    write_points(tmp_path / "one.parquet", [bare])
    assert pq.read_schema(tmp_path / "one.parquet").field("forward_s").type == pa.float64()


def some_slots(count: int = 5000, seed: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "status": random.integers(0, 6, count, dtype=np.uint8),
        "flags": random.integers(0, 8, count, dtype=np.uint8),
        "chain_index": random.integers(-1, count, count),
        **record_columns(random.integers(-(2**63), 2**63 - 1, (count, 4))),
    }


def test_the_slot_map_comes_back_bit_for_bit(tmp_path: Path) -> None:
    folder, columns = stored(tmp_path), some_slots()
    assert read_slot_arrays(folder) is None
    write_slots(folder.slots_file, columns, length=40)
    arrays = read_slot_arrays(folder)
    assert arrays is not None
    assert arrays.fields is not None
    assert arrays.length == 40
    for name in ("status", "flags", "chain_index"):
        found = getattr(arrays, name)
        assert found.dtype == columns[name].dtype
        assert found.tobytes() == columns[name].tobytes()
    for index, name in enumerate(SLOT_FIELDS):
        assert arrays.fields[:, index].tobytes() == columns[name].tobytes()


def test_a_pool_too_large_to_keep_its_records_has_the_rest(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    columns = {name: column for name, column in some_slots().items() if name not in SLOT_FIELDS}
    write_slots(folder.slots_file, columns, length=40)
    arrays = read_slot_arrays(folder)
    assert arrays is not None
    assert arrays.fields is None
    assert arrays.flags.tobytes() == columns["flags"].tobytes()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PAR1 but no more", "cannot be read"),
        (b"", "cannot be read"),
        ({"schema": "kvcanary.slots", "version": "2", "length": "4"}, "written by a newer kvcanary"),
        ({"schema": "something", "version": "1", "length": "4"}, "is no slot map"),
        ({"schema": "kvcanary.slots", "version": "1"}, "cannot be read"),
        ({"schema": "kvcanary.slots", "version": "1", "length": "4"}, "cannot be read"),
    ],
)
def test_a_damaged_slot_map_says_so(tmp_path: Path, content: bytes | dict[str, str], sentence: str) -> None:
    folder = stored(tmp_path)
    file = folder.slots_file
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        pq.write_table(pa.table({"flags": [1]}).replace_schema_metadata(content), file)
    with pytest.raises(StoreError, match=sentence):
        read_slot_arrays(folder)


def test_the_document_of_a_run_is_strict_json(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    folder.append_point(POINT)
    folder.write_cards([card(5)])
    store = Store.open(None, tmp_path)
    document = json.loads(document_json(store.document(RUN)))
    assert (document["schema"], document["version"], document["cards"]) == ("kvcanary.run", RUN_VERSION, [card(5)])
    assert Point.from_dict(document["points"][0]) == POINT
    (folder.path / "cards.json").write_text("[{")
    with pytest.raises(StoreError, match=f"cards.json of run {RUN} cannot be read"):
        store.document(RUN)


def test_cards_of_slots_that_the_map_does_not_have_are_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    status = np.zeros(9, dtype=np.uint8)
    write_slots(folder.slots_file, {"status": status, "flags": status, "chain_index": np.arange(9)}, length=4)
    folder.write_cards([card(3), card(8)])
    assert read_cards(folder) == [card(3), card(8)]
    folder.write_cards([card(9), card(3)])
    with pytest.raises(StoreError, match=rf"cards.json of run {RUN} does not belong to its map: cards\[0\].slot is 9, the map has 9 slots"):
        read_cards(folder)
    folder.slots_file.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"slot map .* cannot be read"):
        read_cards(folder)


@pytest.mark.parametrize("text", ["[1]", '"x"', "{", "[" * 100_000])
def test_a_result_that_is_no_object_is_damage(tmp_path: Path, text: str) -> None:
    folder = stored(tmp_path)
    (folder.path / "result.json").write_text(text)
    with pytest.raises(StoreError, match=f"result.json of run {RUN}"):
        folder.read_result()


def test_where_runs_are_kept(tmp_path: Path) -> None:
    assert data_folder({"KVCANARY_HOME": "/srv/runs"}) == Path("/srv/runs")
    assert data_folder({"KVCANARY_HOME": "/srv/runs"}, tmp_path) == tmp_path
    assert data_folder({"KVCANARY_HOME": ""}).name == "kvcanary"
