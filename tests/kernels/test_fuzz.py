"""Every backend against the reference on random scenes: all bytes that an op may write, and all that it may not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.kernels.backends import get_backend
from kvcanary.kernels.numba_cpu import NumbaBackend
from tests.kernels.scenes import FUZZ, clone, plan_scenes, stamp_scenes, tensors_of, verify_scenes

REFERENCE = get_backend("reference")
BACKENDS = {
    "torch": get_backend("torch"),
    "numba": get_backend("numba"),
    "numba, two threads": NumbaBackend(threads=2, chunk_work=1),
}


def assert_equal_to_reference(scene, backend_name: str) -> None:
    expected, actual = clone(scene), clone(scene)
    expected.run(REFERENCE)
    actual.run(BACKENDS[backend_name])
    before, wanted = tensors_of(scene), tensors_of(expected)
    for name, got in tensors_of(actual).items():
        assert torch.equal(got, wanted[name]), f"{name}: reference {wanted[name].tolist()}, {backend_name} {got.tolist()}"
        assert name.startswith(scene.WRITES) or torch.equal(got, before[name]), f"{backend_name} wrote {name}"


@pytest.mark.parametrize("backend_name", BACKENDS)
@FUZZ
@given(scene=plan_scenes())
def test_plan_equals_reference(backend_name, scene):
    assert_equal_to_reference(scene, backend_name)


@pytest.mark.parametrize("backend_name", BACKENDS)
@FUZZ
@given(scene=st.data())
def test_stamp_equals_reference(backend_name, scene):
    ordered = backend_name != "numba, two threads"
    assert_equal_to_reference(scene.draw(stamp_scenes(ordered=ordered)), backend_name)


@pytest.mark.parametrize("backend_name", BACKENDS)
@FUZZ
@given(scene=verify_scenes())
def test_verify_equals_reference(backend_name, scene):
    assert_equal_to_reference(scene, backend_name)
