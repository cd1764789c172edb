"""Pick an accelerator: the ones of this machine, the catalogue, the operator's own list."""

from __future__ import annotations

import streamlit as st

from kvcanary.config.devices import Device, catalogue, find_device, match_device, parse_devices
from kvcanary.errors import ConfigError
from kvcanary.escape import markdown_text
from kvcanary.ui import plan_environment, state, style
from kvcanary.units import GIB, MIB, format_bytes, format_rate

_PICKED, _UPLOAD, _OWN, _PROBLEM = "accelerator", "device_file", "own_devices", "device_problem"
_EXAMPLE = """{"schema": 1, "devices": [{"name": "Our card", "aliases": [], "memory_mib": 49140, "memory_source": "nvidia-smi",
  "sheet_gb": 48, "bandwidth_gb_s": 768, "bandwidth_source": "data sheet"}]}"""


def draw() -> None:
    """The picker with a line that says where the figures come from, and the way to an own list."""
    own, problem = _own()
    devices = {device.name: device for device in (*own, *catalogue())}
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        st.selectbox(
            "Accelerator", list(devices), index=None, key=_PICKED, placeholder="Pick one to fill in its memory", on_change=_apply,
            help="Fills in Device memory by the source named below it, and changes no other field.",
            format_func=lambda name: _label(devices[name]) if name in devices else name,
        )  # fmt: skip
        with st.popover("Own", help="Accelerators of your own, as JSON."):
            st.file_uploader(
                "Own accelerators (JSON)", type=["json"], key=_UPLOAD, on_change=_take_file, max_upload_size=1,
                help="They stand before the others in the list, for this session alone.",
            )  # fmt: skip
            style.caption(f"Or start the dashboard with {plan_environment.DEVICES_VARIABLE}=FILE. The form of the file:")
            st.code(_EXAMPLE, language="json", wrap_lines=True)
    picked = devices.get(st.session_state.get(_PICKED) or "")
    if problem:
        style.line(problem, "error")
    elif picked is not None:
        style.line(_sources(picked), "source")
    else:
        style.line(_here(), "note")
    for index, (name, memory) in enumerate(plan_environment.accelerators()):
        label = f"This machine: {name}, {format_bytes(memory)}"
        st.button(markdown_text(label), key=f"here.{index}", on_click=_apply_here, args=(name, memory), type="tertiary")


def _label(device: Device) -> str:
    size = f"{device.memory_bytes // MIB} MiB" if device.memory_bytes else f"{device.sheet_bytes / 1e9:.0f} GB"
    rate = f" · {format_rate(device.bandwidth_bytes_s, 'B')}" if device.bandwidth_bytes_s else ""
    return f"{device.name} · {size}{rate}"


def _sources(device: Device) -> str:
    return f"memory: {device.memory_source}; bandwidth: {device.bandwidth_source}"


def _here() -> str:
    found = plan_environment.accelerators()
    return match_device(*found[0], _own()[0]).text if found else "no accelerator found on this machine"


def _own() -> tuple[tuple[Device, ...], str]:
    """The operator's own list: uploaded in this session, else the server's; with the sentence of what is wrong with it."""
    uploaded: tuple[Device, ...] | None = st.session_state.get(_OWN)
    problem: str = st.session_state.get(_PROBLEM, "")
    if uploaded is not None or problem:
        return uploaded or (), problem
    try:
        return plan_environment.own_devices(), ""
    except ConfigError as error:
        return (), str(error)


def _take_file() -> None:
    file = st.session_state.get(_UPLOAD)
    if file is None:
        st.session_state[_OWN], st.session_state[_PROBLEM] = None, ""
        return
    try:
        st.session_state[_OWN] = parse_devices(file.getvalue().decode("utf-8"))
        st.session_state[_PROBLEM] = ""
    except UnicodeDecodeError:
        st.session_state[_PROBLEM] = f"{file.name}: not UTF-8 text"
    except ConfigError as error:
        st.session_state[_PROBLEM] = f"{file.name}: {error}"


def _apply() -> None:
    device = find_device(st.session_state.get(_PICKED) or "", _own()[0])
    if device is not None:
        memory = device.memory_bytes or device.sheet_bytes
        state.merge_in({"device_memory_bytes": _size_text(memory)}, {"device_memory_bytes": f"{device.name}: {device.memory_source}"})


def _apply_here(name: str, memory: int) -> None:
    state.merge_in({"device_memory_bytes": str(memory)}, {"device_memory_bytes": f"{name}, as the driver of this machine gives it"})


def _size_text(size: int) -> str:
    """A size in the form field: in MiB where that is exact, as SGLang and nvidia-smi count."""
    return f"{size // MIB}MiB" if size % MIB == 0 and size < 1024 * GIB else str(size)
