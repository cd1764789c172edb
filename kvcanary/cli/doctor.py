"""`kvcanary doctor`: which backends run on this machine, why the others do not, and whether each of them can be trusted here."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import typer

from kvcanary.cli.exit_codes import VERDICT_EXIT_CODES
from kvcanary.cli.options import JsonTarget, wide_console, write_document
from kvcanary.errors import KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.kernels.backends import available_backends, get_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.gate import run_gate
from kvcanary.lab.records import GateCheck
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import LaunchTag, RealKvHashMode

SCHEMA, VERSION = "kvcanary.doctor", 1
SEED = 20_260
_DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
_GRAPH_SHAPE = SceneShape(num_slots=1030, requests=8, length=65, shuffled=True, row_bytes=64, hash_mode=RealKvHashMode.ALL)
_CAPTURABLE = ("triton",)
"""Backends that read nothing back to the host; the others cannot be captured in a CUDA graph."""


def command(
    json_target: JsonTarget = None,
) -> None:
    """Check every backend on every device here: equal bytes to the reference, planted faults found, and on a GPU graph capture.

    Exit codes: 0 all checks hold · 1 one does not · 4 a GPU is here and nothing could be checked on it.
    """
    document = examine()
    if json_target is not None:
        write_document(document, json_target)
    else:
        _print(document)
    raise typer.Exit(VERDICT_EXIT_CODES[document["verdict"]])


def examine() -> dict[str, Any]:
    """The whole examination as a document: machine, backends, one result per backend and device, verdict."""
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    listed = available_backends()
    results: list[dict[str, Any]] = [
        {"backend": name, "device": device, "checks": _checks(name, device)}
        for device in devices
        for name, availability in listed
        if availability.ok and _takes(name, device)
    ]
    checks = [check for result in results for check in result["checks"]]
    verdict = "fail" if any(not check["ok"] for check in checks) else "pass"
    gpu_checked = any(result["backend"] == "triton" and result["device"] != "cpu" for result in results)
    if verdict == "pass" and len(devices) > 1 and not gpu_checked:
        verdict = "not run"
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": verdict,
        "machine": _machine(devices),
        "backends": [{"name": name, "available": found.ok, "reason": found.reason} for name, found in listed],
        "results": results,
    }


def check_graph(backend: Backend, device: str) -> GateCheck:
    """Capture plan, verify and stamp in a CUDA graph, replay it once, and compare with the same launches made eagerly."""
    name = "a captured graph replays to the eager result"
    eager, captured = Scene(_GRAPH_SHAPE, SEED, device), Scene(_GRAPH_SHAPE, SEED, device)
    for scene in (eager, captured):
        scene.stamp_everything(backend)
        scene.fields[scene.slots[::7], 1] += 1
    steps = [_forward(backend, scene) for scene in (eager, captured)]
    steps[0]()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph):
            steps[1]()
    except RuntimeError as error:
        return GateCheck(name=name, ok=False, detail=f"capture failed: {str(error).splitlines()[0]}")
    graph.replay()
    torch.cuda.synchronize(device)
    pairs = {
        "records": (eager.buffer, captured.buffer),
        "violation count": (eager.ring.write_index, captured.ring.write_index),
        "launches": (eager.counters.kernel_runs, captured.counters.kernel_runs),
        "slots per launch": (eager.counters.slot_runs, captured.counters.slot_runs),
        "coverage": (eager.coverage.counts, captured.coverage.counts),
    }
    different = [what for what, (left, right) in pairs.items() if not torch.equal(left, right)]
    violations = int(captured.ring.write_index.item())
    if different:
        return GateCheck(name=name, ok=False, detail=f"differs from the eager launches in: {', '.join(different)}")
    return GateCheck(name=name, ok=violations > 0, detail=f"{', '.join(pairs)} equal, {violations} planted violations reported by both")


def _forward(backend: Backend, scene: Scene) -> Any:
    """One forward over the last two tokens of each request; everything it needs is allocated here, before a capture."""
    prefix = scene.shape.length - 2
    verify_plan, write_plan = scene.plan(backend, prefix, 2)
    inputs, stamp_inputs = scene.plan_inputs(prefix, 2), scene.stamp_inputs(prefix, 2)
    launch = scene.launch(LaunchTag.TAIL_K_FULL)

    def run() -> None:
        backend.plan(inputs, verify_plan, write_plan)
        backend.verify(launch, verify_plan)
        backend.stamp(launch, write_plan, stamp_inputs)

    return run


def _takes(backend_name: str, device: str) -> bool:
    """Numba takes CPU tensors only, Triton GPU tensors only, the rest any."""
    return {"numba": device == "cpu", "triton": device != "cpu"}.get(backend_name, True)


def _checks(backend_name: str, device: str) -> list[dict[str, Any]]:
    backend = get_backend(backend_name)
    try:
        checks = run_gate(backend, device, SEED)
        if backend_name in _CAPTURABLE and device != "cpu":
            checks.append(check_graph(backend, device))
    except KvCanaryError as error:
        checks = [GateCheck(name="the gate runs to its end", ok=False, detail=str(error))]
    return [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]


def _machine(devices: list[str]) -> dict[str, Any]:
    names = {device: torch.cuda.get_device_name(device) for device in devices if device != "cpu"}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton_version(),
        "driver": next((path.read_text().splitlines()[0] for path in _DRIVER_FILES if path.is_file()), None),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cpu": platform.processor() or platform.machine(),
        "gpus": names,
    }


def _triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _print(document: dict[str, Any]) -> None:
    console, machine = wide_console(), document["machine"]
    gpus = ", ".join(f"{device} {name}" for device, name in machine["gpus"].items()) or "no GPU"
    runtime = f"ROCm {machine['hip']}" if machine["hip"] else f"CUDA {machine['cuda']}" if machine["cuda"] else "CPU build"
    console.print(terminal_text(f"{gpus} · {machine['cpu']} · Python {machine['python']} · torch {machine['torch']} ({runtime})"))
    console.print(terminal_text(f"triton {machine['triton'] or 'not installed'} · driver {machine['driver'] or 'none found'}"))
    for backend in document["backends"]:
        console.print(
            f"{'available    ' if backend['available'] else 'not available'} {backend['name']}: {terminal_text(backend['reason'])}"
        )
    for result in document["results"]:
        for check in result["checks"]:
            mark = "ok  " if check["ok"] else "FAIL"
            console.print(
                f"{mark} {result['backend']} on {result['device']}: {terminal_text(check['name'])} ({terminal_text(check['detail'])})"
            )
    console.print(f"{document['verdict'].upper()}")
