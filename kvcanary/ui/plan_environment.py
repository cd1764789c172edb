"""What the environment of this server gives the Plan page: hosts that may be asked, an own list of accelerators, the accelerators here."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from kvcanary.config.devices import Device, parse_devices
from kvcanary.errors import ConfigError
from kvcanary.importers.server_info import HOSTS_VARIABLE, parse_hosts

DEVICES_VARIABLE = "KVCANARY_DEVICES"
_DEVICE_FILE_LIMIT_BYTES = 1 << 20


def fetch_hosts() -> frozenset[str]:
    """Hosts that the Plan page may fetch from; none unless the server was started with the variable."""
    return parse_hosts(os.environ.get(HOSTS_VARIABLE, ""))


def own_devices() -> tuple[Device, ...]:
    """Accelerators of the file that KVCANARY_DEVICES names; ConfigError says why it cannot be read."""
    path = os.environ.get(DEVICES_VARIABLE, "")
    return _devices_of(path, Path(path).stat().st_mtime_ns if path and Path(path).is_file() else 0) if path else ()


@st.cache_data(max_entries=8, show_spinner=False)
def _devices_of(path: str, _changed_ns: int) -> tuple[Device, ...]:
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return parse_devices(stream.read(_DEVICE_FILE_LIMIT_BYTES))
    except OSError as error:
        raise ConfigError(f"{DEVICES_VARIABLE}={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{DEVICES_VARIABLE}={path}: not UTF-8 text") from None


@st.cache_resource
def accelerators() -> tuple[tuple[str, int], ...]:
    """(name, memory in bytes) of each accelerator of this machine, as the driver gives them."""
    import torch

    found = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return tuple((properties.name, properties.total_memory) for properties in found)
