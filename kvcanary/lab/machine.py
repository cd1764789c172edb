"""What a run was made on: processor, memory, system, accelerator, and the versions of what computes."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

_REPORTED = ("kvcanary", "torch", "numba", "numpy", "triton")


def machine() -> dict[str, Any]:
    """What ran the numbers: processor, cores, memory, system. On an accelerator its name is added."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def accelerator(device: str) -> str:
    """Name of an accelerator, empty where there is none of that name: the job itself will say so."""
    import torch

    try:
        return torch.cuda.get_device_name(device)
    except (AssertionError, RuntimeError, ValueError):
        return ""


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what computes; packages that are not installed are left out."""
    found = {}
    for name in _REPORTED:
        try:
            found[name] = version(name)
        except ImportError:
            continue
    return found
