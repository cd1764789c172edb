"""The Triton backend without a GPU: its kernels in the interpreter, and what it says where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvcanary.errors import BackendUnavailableError
from kvcanary.kernels.backends import choose_backend, get_backend

pytest.importorskip("triton")

from kvcanary.kernels.triton_gpu import TritonBackend
from kvcanary.kernels.types import Launch, RunCounters, VerifyPlan, ViolationRing
from kvcanary.layout import LaunchTag

ROOT = Path(__file__).resolve().parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_kernels_equal_the_reference_in_the_interpreter(request):
    # Triton decides at its import whether it interprets, so these tests need a process of their own.
    profile = request.config.getoption("--hypothesis-profile") or "default"
    command = [sys.executable, "-m", "pytest", "tests/kernels/triton_interpreted.py", "-q", f"--hypothesis-profile={profile}"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@without_gpu
def test_without_a_device_it_says_so():
    availability = TritonBackend().available()
    assert not availability.ok
    assert availability.reason == f"torch {torch.__version__} sees no CUDA or ROCm device"
    with pytest.raises(BackendUnavailableError, match=r"backend 'triton' cannot run here: torch .* sees no CUDA or ROCm device"):
        get_backend("triton")


@without_gpu
def test_auto_says_why_it_passed_over_triton():
    assert choose_backend("auto", "cuda")[1].startswith("torch: ")
    assert "triton cannot run: torch" in choose_backend("auto", "cuda")[1]


def test_tensors_of_another_device_are_refused_before_a_launch():
    launch = Launch(
        buffer=torch.zeros((2, 32), dtype=torch.uint8),
        tag=LaunchTag.HEAD_K_FULL,
        ring=ViolationRing.allocate(1),
        counters=RunCounters.allocate(),
    )
    with pytest.raises(BackendUnavailableError, match="takes tensors on a CUDA or ROCm device, got cpu"):
        TritonBackend().verify(launch, VerifyPlan.allocate(1))
