"""The map of a swept pool: what each slot is called, and what the card of a bad one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcanary import layout
from kvcanary.kernels.backends import get_backend
from kvcanary.lab import pool_map
from kvcanary.lab.planted import PlantedFault, kinds_for, plant
from kvcanary.lab.records import RunFolder
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.lab.tables import read_slots
from kvcanary.layout import SLOT_FIELDS, RealKvHashMode, SlotStatus

SHAPE = SceneShape(num_slots=640, requests=6, length=80, shuffled=True, page_size=2, row_bytes=48, hash_mode=RealKvHashMode.PARTIAL)


@pytest.fixture
def scene() -> Scene:
    made = Scene(SHAPE, 4)
    made.stamp_everything(get_backend("numba"))
    return made


def swept(scene: Scene, folder: RunFolder) -> dict[str, PlantedFault]:
    faults = plant(scene, kinds_for(scene), 4)
    scene.sweep(get_backend("numba"))
    pool_map.write_map(folder, scene, faults)
    return {fault.kind: fault for fault in faults}


def test_every_slot_has_one_status(scene: Scene, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    faults = swept(scene, folder)
    columns, length = read_slots(folder.slots_file, ("status", "flags", "chain_index", *SLOT_FIELDS))
    status = columns["status"]
    assert length == 80
    assert (status[:2] == SlotStatus.RESERVED).all()
    used = set(scene.slots.tolist())
    assert {slot for slot in range(2, 640) if status[slot] == SlotStatus.FREE} == set(range(2, 640)) - used
    reported = {slot for fault in faults.values() for slot in fault.expected}
    assert {slot for slot in range(640) if status[slot] == SlotStatus.CORRUPTED} == reported
    touched = {slot for fault in faults.values() for slot in (fault.slot, *fault.also)}
    assert {slot for slot in range(640) if status[slot] == SlotStatus.INJECTED} == touched - reported
    assert [columns[name][faults["token bit"].slot] for name in SLOT_FIELDS] == scene.fields[faults["token bit"].slot].tolist()


def test_a_token_that_no_table_cell_leads_to_was_skipped(scene: Scene, tmp_path: Path) -> None:
    lost = int(scene.slots[10])
    scene.req_to_token[1, 10] = scene.slots[200]
    scene.sweep(get_backend("numba"))
    pool_map.write_map(RunFolder(tmp_path), scene, [])
    status = read_slots(RunFolder(tmp_path).slots_file, ("status",))[0]["status"]
    assert status[lost] == SlotStatus.SKIPPED


def test_a_card_shows_what_verify_compared(scene: Scene, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    faults = swept(scene, folder)
    cards = {card["slot"]: card for card in folder.read_cards()}
    reasons = {slot: layout.reason_labels(bits) for fault in faults.values() for slot, bits in fault.expected.items()}
    assert {slot: card["reasons"] for slot, card in cards.items() if card["reasons"]} == reasons
    for slot, card in cards.items():
        stored, expected = card["stored"], card["expected"]
        assert ("verify_position" in card["reasons"]) == (stored[1] != expected[1]), slot
        assert ("verify_chain_hash" in card["reasons"]) == (stored[2] != expected[2]), slot
        assert ("verify_real_kv_hash" in card["reasons"]) == (stored[3] != expected[3]), slot


def test_a_wrong_cell_is_shown_from_the_request_that_reads_it(scene: Scene, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    fault = swept(scene, folder)["table cell to another slot"]
    cards = {card["slot"]: card for card in folder.read_cards()}
    there, here = cards[fault.after], cards[fault.slot]
    assert (there["request"], there["position"]) == (here["request"], here["position"])
    assert there["stored"][0] != there["expected"][0] == here["expected"][0]
    assert there["fault"]["kind"] == here["fault"]["kind"] == fault.kind


def test_cards_are_limited_when_everything_is_reported(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_map, "CARD_LIMIT", 7)
    scene.buffer[:, 16] ^= 1
    scene.sweep(get_backend("numba"))
    pool_map.write_map(RunFolder(tmp_path), scene, [])
    assert len(RunFolder(tmp_path).read_cards()) == 7


def test_records_of_a_pool_that_is_too_large_are_left_out(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_map, "MAP_BYTES_LIMIT", 100)
    pool_map.write_map(RunFolder(tmp_path), scene, [])
    columns, _ = read_slots(RunFolder(tmp_path).slots_file, ("status",), optional=SLOT_FIELDS)
    assert list(columns) == ["status"]


def test_coverage_counts_what_is_out_of_reach(scene: Scene) -> None:
    faults = plant(scene, kinds_for(scene), 4)
    scene.sweep(get_backend("numba"))
    found = pool_map.coverage(scene, faults)
    assert found["faults_out_of_reach"] == 1
    assert found["kv_bytes_hashed_per_slot"] == 16
    assert found["verified"] == 480
    assert found["reserved"] == 2
    assert found["free"] == 640 - 2 - 480
    assert found["ring_kept"] == found["reported"] == len({slot for fault in faults for slot in fault.expected})
