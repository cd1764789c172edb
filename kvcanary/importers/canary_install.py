"""The two lines that SGLang prints when it installs a canary: the ground truth for its capacities."""

from __future__ import annotations

import re
from typing import Any

from kvcanary.importers.repr_text import read_call

_READ_BYTES = {0: "none", 16: "partial", 9223372036854775807: "all"}
_WORD = re.compile(r"\b(\w{1,60})=(\d{1,19})(?=\s|$)")
_KINDS = re.compile(r"kinds=\[([^\[\]]{0,300})\]")
_POOL = re.compile(r"\bpool=(\w+)")


def read_attach(text: str) -> dict[str, Any]:
    """pool_class, group_kinds, real_data and offset (0 target, 1 draft) of an attach_canary_buffers line; what is cut is missing."""
    found: dict[str, Any] = {}
    text = text[text.index("attach_canary_buffers") :]
    numbers = {name: int(value) for name, value in _WORD.findall(text)}
    if pool := _POOL.search(text):
        found["pool_class"] = pool[1]
    if numbers.get("read_bytes") in _READ_BYTES:
        found["real_data"] = _READ_BYTES[numbers["read_bytes"]]
    if kinds := _KINDS.search(text):
        found["group_kinds"] = _names(kinds[1])
    if "kv_token_id_vs_position_offset" in numbers:
        found["offset"] = numbers["kv_token_id_vs_position_offset"]
    return found


def read_install(text: str) -> dict[str, Any]:
    """Options, capacities and groups of an install_canary line; what is cut is missing."""
    text = text[text.index("install_canary") :]
    found: dict[str, Any] = {}
    options = _call(text, "config=CanaryConfig(")
    for name, key in (
        ("mode", "mode"),
        ("ring_capacity", "ring_capacity"),
        ("sweep_interval", "sweep_interval"),
        ("real_kv_hash_mode", "real_data"),
    ):
        if name in options:
            found[key] = options[name]
    capacities = _call(text, "CanaryLaunchCapacities(")
    for name, key in (
        ("per_forward_verify_capacity", "verify_capacity"),
        ("per_forward_write_req_capacity", "write_req_capacity"),
        ("per_forward_write_entry_capacity", "write_entry_capacity"),
    ):
        if isinstance(capacities.get(name), int):
            found[key] = capacities[name]
    if kinds := _KINDS.search(text):
        found["group_kinds"] = _names(kinds[1])
    numbers = {name: int(value) for name, value in _WORD.findall(text)}
    for name in ("swa_window_size", "speculative_num_steps"):
        if name in numbers:
            found[name] = numbers[name]
    return found


def _call(text: str, opening: str) -> dict[str, Any]:
    at = text.find(opening)
    return read_call(text, at + len(opening)) if at >= 0 else {}


def _names(text: str) -> list[str]:
    return re.findall(r"\w+", text)
