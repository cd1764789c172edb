"""Memory that a run may use on its device: of the host, of the container around it, or of an accelerator."""

from __future__ import annotations

from pathlib import Path

import psutil

from kvcanary.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")


def usable_bytes(device: str) -> int:
    """Upper limit known without touching the device: free memory of the host, or all memory of an accelerator.

    Raises ConfigError for an accelerator that is not there.
    """
    if device == "cpu":
        return free_bytes(device)
    import torch

    return int(torch.cuda.get_device_properties(_index(device)).total_memory)


def free_bytes(device: str) -> int:
    """Free memory now; on an accelerator this opens a context there. Raises ConfigError for an accelerator that is not there."""
    if device == "cpu":
        available = int(psutil.virtual_memory().available)
        container = container_free_bytes(_CGROUP)
        return available if container is None else min(available, container)
    import torch

    return int(torch.cuda.mem_get_info(_index(device))[0])


def container_free_bytes(cgroup: Path) -> int | None:
    """What a control group (v2) still allows, cached file pages counted as free; None where it sets no limit."""
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used + int(stat.get("inactive_file", 0)))


def _index(device: str) -> int:
    import torch

    index, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"device {device} is not there: torch sees {count} accelerators; use cpu, or a torch build for your accelerator")
    return index
