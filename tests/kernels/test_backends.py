"""Which backend is chosen, why, and what is imported on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcanary.errors import BackendUnavailableError
from kvcanary.kernels import backends
from kvcanary.kernels.backends import available_backends, check_choice, choose_backend, get_backend


def without(monkeypatch, name):
    """A machine on which the backend's package is not installed."""

    def missing():
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setitem(backends._FACTORIES, name, missing)


@pytest.mark.parametrize("name", backends.BACKEND_NAMES)
def test_a_backend_is_known_by_its_name(name):
    backend = get_backend(name)
    assert backend.name == name
    assert backend.available().ok
    backend.prepare()


def test_every_backend_is_listed_with_a_reason():
    listed = dict(available_backends())
    assert tuple(listed) == backends.BACKEND_NAMES
    assert all(availability.reason for availability in listed.values())
    assert all(availability.ok for name, availability in listed.items() if name != "triton")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendUnavailableError, match=r"backend must be one of auto, reference, torch, numba, triton, got 'cuda'"):
        get_backend("cuda")


def test_auto_is_asked_with_a_device():
    with pytest.raises(BackendUnavailableError, match=r"backend 'auto' depends on the device; ask choose_backend"):
        get_backend("auto")


@pytest.mark.parametrize(("device", "name"), [("cpu", "numba"), ("cuda:1", "torch"), ("xpu", "torch")])
def test_auto_takes_the_fastest_for_the_device_and_says_why(device, name):
    backend, reason = choose_backend("auto", device)
    assert backend.name == name
    assert reason.startswith(f"{name}: ")
    assert f"on {device.split(':')[0]}" in reason


def test_auto_passes_over_what_is_missing_and_says_so(monkeypatch):
    without(monkeypatch, "numba")
    backend, reason = choose_backend("auto")
    assert backend.name == "torch"
    assert reason.endswith("; numba cannot run: No module named 'numba'")
    assert not dict(available_backends())["numba"].ok


def test_an_explicit_choice_is_never_replaced(monkeypatch):
    without(monkeypatch, "numba")
    with pytest.raises(BackendUnavailableError, match="backend 'numba' cannot run here: No module named 'numba'"):
        choose_backend("numba")
    assert choose_backend("reference")[1] == "reference: asked for by name"


def test_a_choice_that_can_never_work_is_refused_before_anything_is_imported():
    for name, device, words in (
        ("abacus", "cpu", "must be one of auto, .*, got 'abacus'"),
        ("numba", "cuda:0", "works on cpu only, got device 'cuda:0'; choose backend 'auto'"),
        ("triton", "cpu", "works on cuda only, got device 'cpu'"),
    ):
        with pytest.raises(BackendUnavailableError, match=words):
            check_choice(name, device)


def test_choices_that_may_work_are_left_to_the_machine():
    for name, device in (("auto", "cuda:0"), ("numba", "cpu"), ("triton", "cuda:3"), ("torch", "cuda:0"), ("reference", "cpu")):
        check_choice(name, device)


@pytest.mark.parametrize("module", ["kvcanary", "kvcanary.kernels.backends"])
def test_the_import_is_light(module):
    script = f"import sys, {module}; print(sorted({{'torch', 'numba', 'triton'}} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root).stdout == "[]\n"
