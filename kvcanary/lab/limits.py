"""What the machine can do at most, measured in the same run as the points: the roofs that no kernel gets through.

Four things can hold a launch: its own start, the latency of one chain of hashes, memory, and arithmetic. Memory is measured beside each
point, with its own sizes and order (lab.bounds); the rest is measured here, once per run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kvcanary.kernels.types import Backend
from kvcanary.lab.bounds import in_threads
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import LaunchTag

# Larger than the caches of the machines that serve models, small enough for a laptop.
_STREAM_BYTES = 256 << 20
_CHAIN_TOKENS = 200_000
_HASHES = 8_000_000
_REPEATS = 7


def measure_limits(backend: Backend, device: str, seed: int, check: Callable[[], None]) -> dict[str, float]:
    """verify_launch_s, stamp_launch_s, chain_step_s, read_bytes_per_s, copy_bytes_per_s and, on a CPU, hashes_per_s.

    `check` is called in between and may raise. The launches are those of one entry and of one token. chain_step_s is one hash that waits
    for the one before it. hashes_per_s counts chain hashes that do not wait for each other, on all threads and out of registers.
    """
    limits = _launches_s(backend, device, seed)
    check()
    words = torch.ones(_STREAM_BYTES // 8, dtype=torch.int64, device=device)
    limits["copy_bytes_per_s"] = 2 * _STREAM_BYTES / _median_s(_copy(words), device)
    check()
    if device == "cpu":
        from kvcanary.lab import bounds_numba

        array = words.numpy()
        limits["read_bytes_per_s"] = _STREAM_BYTES / _median_s(
            in_threads(lambda first, last: bounds_numba.read(array, first, last), words.numel(), _STREAM_BYTES), device
        )
        limits["chain_step_s"] = _median_s(lambda: bounds_numba.walk(_CHAIN_TOKENS), device) / _CHAIN_TOKENS
        limits["hashes_per_s"] = _HASHES / _median_s(in_threads(bounds_numba.hash_all, _HASHES, _STREAM_BYTES), device)
    else:
        limits["read_bytes_per_s"] = _STREAM_BYTES / _median_s(words.sum, device)
        limits["chain_step_s"] = _chain_step_s(backend, device, seed)
    check()
    return limits


def _copy(words: torch.Tensor) -> Callable[[], Any]:
    target = torch.empty_like(words)
    return lambda: target.copy_(words)


def _launches_s(backend: Backend, device: str, seed: int) -> dict[str, float]:
    """Seconds of a launch that has next to nothing to do: what every launch takes at least."""
    scene = Scene(SceneShape(num_slots=3, requests=1, length=2), seed, device)
    scene.stamp_everything(backend)
    verify_plan, write_plan = scene.plan(backend, 1, 1)
    launch, inputs = scene.launch(LaunchTag.TAIL_K_FULL), scene.stamp_inputs(1, 1)
    return {
        "verify_launch_s": _median_s(lambda: backend.verify(launch, verify_plan), device, repeats=50),
        "stamp_launch_s": _median_s(_stamping(backend, launch, write_plan, inputs), device, repeats=50),
    }


def _chain_step_s(backend: Backend, device: str, seed: int) -> float:
    """Where no loop of ours runs outside the backend: what the second half of a long chain adds to the time of the first."""
    seconds = []
    for length in (16_384, 32_768):
        scene = Scene(SceneShape(num_slots=length + 1, requests=1, length=length), seed, device)
        _, plan = scene.plan(backend, 0, length)
        launch, inputs = scene.launch(LaunchTag.TAIL_K_FULL), scene.stamp_inputs(0, length)
        seconds.append(_median_s(_stamping(backend, launch, plan, inputs), device))
    return max(0.0, seconds[1] - seconds[0]) / 16_384


def _stamping(backend: Backend, launch: Any, plan: Any, inputs: Any) -> Callable[[], Any]:
    return lambda: backend.stamp(launch, plan, inputs)


def _median_s(call: Callable[[], Any], device: str, repeats: int = _REPEATS) -> float:
    """Median seconds of a call that is over when the device is; the first call, which may compile, is left out."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return sorted(times[1:])[repeats // 2]
