"""The Triton kernels in Triton's interpreter against the reference; test_triton.py runs this in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from hypothesis import given, settings

from kvcanary import layout
from kvcanary.kernels.backends import get_backend
from kvcanary.kernels.types import ViolationRing
from tests.kernels.scenes import PlanScene, StampScene, clone, plan_scenes, stamp_scenes, tensors_of, verify_scenes

REFERENCE, TRITON = get_backend("reference"), get_backend("triton")


def all_violations(scene):
    """Every row that the reference reports for a scene, in a ring that holds them all."""
    scene = clone(scene)
    ring = ViolationRing.allocate(4096)
    replace(scene, launch=replace(scene.launch, ring=ring)).run(REFERENCE)
    return Counter(map(tuple, ring.kept().tolist()))


def split_ring(scene, ring):
    """Rows that this launch wrote, as a multiset, and the rows that it must leave alone, given the ring after it."""
    first = int(scene.launch.ring.write_index)
    last = min(int(ring.write_index), ring.rows.shape[0])
    return Counter(map(tuple, ring.rows[first:last].tolist())), torch.cat([ring.rows[:first], ring.rows[max(first, last) :]])


def assert_equal_to_reference(scene) -> None:
    expected, actual = clone(scene), clone(scene)
    expected.run(REFERENCE)
    actual.run(TRITON)
    before, wanted = tensors_of(scene), tensors_of(expected)
    for name, got in tensors_of(actual).items():
        if name == "launch.ring.rows":
            continue
        assert torch.equal(got, wanted[name]), f"{name}: reference {wanted[name].tolist()}, triton {got.tolist()}"
        assert name.startswith(scene.WRITES) or torch.equal(got, before[name]), f"triton wrote {name}"
    if isinstance(scene, PlanScene):
        return
    (rows, untouched), (wanted_rows, wanted_untouched) = (split_ring(scene, side.launch.ring) for side in (actual, expected))
    assert torch.equal(untouched, wanted_untouched)
    # Which violations a full ring keeps is open on a GPU; that it keeps as many, and only true ones, is not.
    assert rows.total() == wanted_rows.total()
    assert rows <= all_violations(scene)


def with_one_owner_of_padding(scene: StampScene) -> StampScene:
    """The contract leaves open what requests that meet at slot 0 leave there on a GPU; let the first one keep it."""
    owner = None
    for request, seed in enumerate(scene.plan.seed_slot_indices.tolist()):
        tokens = scene.inputs.slots[int(scene.plan.offsets[request]) : int(scene.plan.offsets[request + 1])]
        if owner is None and (seed == layout.PADDING_SLOT or bool((tokens == layout.PADDING_SLOT).any())):
            owner = request
        elif owner is not None:
            tokens[tokens == layout.PADDING_SLOT] = -1
            if seed == layout.PADDING_SLOT:
                scene.plan.seed_slot_indices[request] = layout.CHAIN_HEAD
    return scene


CASES = settings(max_examples=max(60, settings.default.max_examples if settings.default.max_examples > 100 else 0))


@CASES
@given(scene=plan_scenes())
def test_plan_equals_reference(scene):
    assert_equal_to_reference(scene)


@CASES
@given(scene=stamp_scenes(ordered=False).map(with_one_owner_of_padding))
def test_stamp_equals_reference(scene):
    assert_equal_to_reference(scene)


@CASES
@given(scene=verify_scenes())
def test_verify_equals_reference(scene):
    assert_equal_to_reference(scene)


def test_prepare_runs_every_op():
    TRITON.prepare()
