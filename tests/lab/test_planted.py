"""Planted faults: what they expect follows from the hash by hand, they stay apart, and a seed gives the same again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.kernels.backends import get_backend
from kvcanary.lab.planted import expected_flags, kinds_for, kinds_that_fit, plant
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import FailReason, RealKvHashMode

SHAPE = SceneShape(num_slots=600, requests=4, length=96, shuffled=True, page_size=4, row_bytes=48)


def checked_by_hand(scene: Scene) -> dict[int, int]:
    """Reason bits per slot, with the plain-integer hash of layout over the request table as it is."""
    found: dict[int, int] = {}
    table, records = scene.req_to_token.tolist(), [[int(value) for value in row] for row in scene.fields.tolist()]
    for row in table[1:]:
        for position, slot in enumerate(row):
            _, stored_position, prev_hash, real = records[slot]
            expected = layout.CHAIN_START
            if position:
                token, place, before, _ = records[row[position - 1]]
                expected = layout.mix3(layout.to_unsigned(before), token, place)
            bits = 0 if layout.to_unsigned(prev_hash) == expected else int(FailReason.VERIFY_CHAIN_HASH)
            bits |= 0 if stored_position == position else int(FailReason.VERIFY_POSITION)
            if scene.kv is not None:
                read = 16 if scene.shape.hash_mode is RealKvHashMode.PARTIAL else scene.shape.row_bytes
                now = layout.combine_sources([layout.fold_bytes(bytes(scene.kv[slot, :read].tolist()))])
                bits |= 0 if layout.to_unsigned(real) == now else int(FailReason.VERIFY_REAL_KV_HASH)
            if bits:
                found[slot] = found.get(slot, 0) | bits
    return found


@pytest.mark.parametrize("mode", list(RealKvHashMode))
@pytest.mark.parametrize("seed", range(8))
def test_expectations_follow_from_the_hash(mode: RealKvHashMode, seed: int) -> None:
    scene = Scene(replace(SHAPE, hash_mode=mode), seed)
    scene.stamp_everything(get_backend("torch"))
    assert checked_by_hand(scene) == {}
    faults = plant(scene, kinds_for(scene), seed)
    assert checked_by_hand(scene) == expected_flags(faults)


def test_partial_hashing_leaves_a_late_byte_out_of_reach() -> None:
    scene = Scene(replace(SHAPE, hash_mode=RealKvHashMode.PARTIAL), 3)
    faults = {fault.kind: fault for fault in plant(scene, kinds_for(scene), 3)}
    assert faults["KV byte after the first 16"].expected == {}
    assert faults["KV byte in the first 16"].expected == {faults["KV byte in the first 16"].slot: int(FailReason.VERIFY_REAL_KV_HASH)}


def test_without_hashed_bytes_no_kv_fault_is_planted() -> None:
    assert not [kind for kind in kinds_for(Scene(SHAPE, 1)) if kind.startswith("KV")]


def test_no_two_faults_share_a_slot() -> None:
    scene = Scene(SHAPE, 11)
    faults = plant(scene, kinds_for(scene), 11)
    touched = [slot for fault in faults for slot in {fault.slot, *fault.also, *fault.expected}]
    assert len(touched) == len(set(touched))


def test_a_seed_gives_the_same_slots_tokens_and_faults() -> None:
    made = [(scene := Scene(SHAPE, seed), plant(scene, kinds_for(scene), seed)) for seed in (5, 5, 6)]
    (first, faults), (again, same), (other, different) = made
    assert first.slots.equal(again.slots)
    assert first.tokens.equal(again.tokens)
    assert faults == same
    assert not first.slots.equal(other.slots)
    assert faults != different


def test_too_many_faults_are_refused_and_what_fits_is_told() -> None:
    tiny = Scene(SceneShape(num_slots=13, requests=1, length=12), 1)
    with pytest.raises(ConfigError, match="planting 6 faults needs 8 pieces of 4 tokens, the scene has 3"):
        plant(tiny, kinds_for(tiny), 1)
    assert len(plant(tiny, kinds_that_fit(tiny), 1)) == 3
    nothing = Scene(SceneShape(num_slots=4, requests=1, length=3), 1)
    assert kinds_that_fit(nothing) == ()
