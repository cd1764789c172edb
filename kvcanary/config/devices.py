"""Accelerators by name: memory as the engine reads it, published memory and bandwidth, and the address where each figure was read.

A source that begins with "not" says that no address was found for the figure. Nothing here looks at the machine; `match_device` takes a
name and a memory size that somebody else read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from kvcanary.errors import ConfigError
from kvcanary.units import MIB

SCHEMA = 1
MAX_DEVICES = 1000
KEYS = frozenset({"name", "aliases", "memory_mib", "memory_source", "sheet_gb", "bandwidth_gb_s", "bandwidth_source"})
# A driver that keeps a slice back (ECC, firmware) moves the figure by less than this share; variants of a model differ by far more.
MEMORY_TOLERANCE = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. `memory_bytes` is what the engine sees, None where only the data sheet is known; bandwidth is bytes per second."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: int | None
    memory_source: str
    sheet_bytes: int
    bandwidth_bytes_s: float | None
    bandwidth_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatch:
    """The catalogue entry of a detected device, or None, and one sentence that says how sure that is."""

    device: Device | None
    text: str


@cache
def catalogue() -> tuple[Device, ...]:
    """The devices that come with the package, smallest data-sheet memory first."""
    text = files("kvcanary.config").joinpath("data/devices.json").read_text(encoding="utf-8")
    return tuple(sorted(parse_devices(text), key=lambda device: device.sheet_bytes))


def parse_devices(text: str) -> tuple[Device, ...]:
    """Devices from JSON text in the form of data/devices.json, for the operator's own list; ConfigError names the entry and the key."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"device list: not JSON: {str(error)[:80]}") from None
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA or not isinstance(document.get("devices"), list):
        raise ConfigError(f'device list: must be an object with "schema": {SCHEMA} and a list "devices"')
    entries = document["devices"]
    if len(entries) > MAX_DEVICES:
        raise ConfigError(f"device list: at most {MAX_DEVICES} devices, got {len(entries)}")
    devices = tuple(_device(entry, index) for index, entry in enumerate(entries))
    names = [device.name.lower() for device in devices]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"device list: {twice!r} is listed twice")
    return devices


def find_device(name: str, extra: Iterable[Device] = ()) -> Device | None:
    """A device by its name or an alias, whatever the case; the operator's own devices win over the catalogue."""
    wanted = _plain(name)
    devices = (*extra, *catalogue())
    return next((device for device in devices if wanted in {_plain(device.name), *map(_plain, device.aliases)}), None)


def match_device(name: str, memory_bytes: int | None, extra: Iterable[Device] = ()) -> DeviceMatch:
    """The entry for a device name as a driver prints it ('NVIDIA H100 80GB HBM3') and its memory, if both agree.

    Among entries whose name or alias occurs in the text as whole words, the longest wins; memory decides between variants. A name
    that fits with memory that does not (a partitioned device, another variant) is no match and says so.
    """
    words = f" {_plain(name)} "
    found: list[tuple[int, Device]] = []
    for device in (*extra, *catalogue()):
        lengths = [len(label) for label in map(_plain, (device.name, *device.aliases)) if f" {label} " in words]
        if lengths:
            found.append((max(lengths), device))
    if not found:
        return DeviceMatch(device=None, text=f"{name!r} is not in the device list; give its memory yourself")
    fitting = [(length, device) for length, device in found if memory_bytes is None or _memory_fits(device, memory_bytes)]
    if not fitting:
        device = max(found, key=lambda item: item[0])[1]
        seen = f"{(memory_bytes or 0) / MIB:.0f} MiB"
        return DeviceMatch(device=None, text=f"the name fits {device.name}, but {seen} of memory do not: a partition or another variant")
    device = max(fitting, key=lambda item: item[0])[1]
    return DeviceMatch(device=device, text=f"{name!r} is {device.name}" + ("" if memory_bytes else " by its name alone"))


def _memory_fits(device: Device, memory_bytes: int) -> bool:
    expected = device.memory_bytes or device.sheet_bytes
    # Data sheets do not say whether their GB is binary, so either reading is accepted.
    upper = expected if device.memory_bytes else device.sheet_bytes * 1.074
    return expected * (1 - MEMORY_TOLERANCE) <= memory_bytes <= upper * (1 + MEMORY_TOLERANCE)


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


def _device(entry: Any, index: int) -> Device:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"device list: entry {index} must be an object")
    label = f"device list: entry {index} ({str(entry.get('name', ''))[:40]})"
    if strange := sorted(set(entry) - KEYS):
        raise ConfigError(f"{label}: unknown key {strange[0]!r}; known: {', '.join(sorted(KEYS))}")
    if missing := sorted(KEYS - set(entry) - {"aliases", "memory_mib", "bandwidth_gb_s"}):
        raise ConfigError(f"{label}: {missing[0]} is missing")
    texts = {key: entry[key] for key in ("name", "memory_source", "bandwidth_source")}
    if bad := next((key for key, value in texts.items() if not isinstance(value, str) or not value.strip() or len(value) > 200), None):
        raise ConfigError(f"{label}: {bad} must be text of at most 200 characters")
    aliases = entry.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ConfigError(f"{label}: aliases must be a list of text")
    memory, sheet, bandwidth = (_number(entry.get(key), label, key) for key in ("memory_mib", "sheet_gb", "bandwidth_gb_s"))
    if sheet is None:
        raise ConfigError(f"{label}: sheet_gb must be a number above 0")
    return Device(
        name=texts["name"],
        aliases=tuple(aliases),
        memory_bytes=None if memory is None else int(memory * MIB),
        memory_source=texts["memory_source"],
        sheet_bytes=int(sheet * 10**9),
        bandwidth_bytes_s=None if bandwidth is None else bandwidth * 1e9,
        bandwidth_source=texts["bandwidth_source"],
    )


def _number(value: Any, label: str, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        raise ConfigError(f"{label}: {key} must be a number above 0, got {str(value)[:40]!r}")
    return float(value)
