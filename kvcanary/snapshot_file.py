"""The file of a snapshot: what it holds, and the check of it before anything is computed from it.

The file may come from somebody else, and what is inside decides shapes, addresses and amounts of memory further on. So every tensor that is
looked for is checked here against its rule; safetensors itself has checked only that the bytes are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from kvcanary import layout
from kvcanary.errors import ImportTextError
from kvcanary.layout import RealKvHashMode

FORMAT = "kvcanary.snapshot/1"
BUFFER_NAMES = ("k_head", "k_tail", "v_head", "v_tail")
GROUP_KINDS = ("FULL", "SWA")
MAX_GROUPS = 64
_RING = "violation_ring"
_REQUESTS = ("req_to_token", "req_pool_indices", "seq_lens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotGroup:
    """One buffer group. buffers: uint8 [num_slots, 32] by name (k_head, k_tail, v_head, v_tail); sources: packed bytes by half ('k', 'v'),

    each uint8 [num_slots, bytes hashed]; full_to_swa: int64 [slots of the full pool] or None; token_offset: 1 for an EAGLE draft pool.
    """

    kind: str
    buffers: Mapping[str, torch.Tensor]
    sources: Mapping[str, tuple[torch.Tensor, ...]]
    full_to_swa: torch.Tensor | None
    token_offset: int

    @property
    def num_slots(self) -> int:
        """Slots of the group's pool, which each of its buffers has."""
        return int(next(iter(self.buffers.values())).shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A loaded snapshot; all tensors on the CPU. req_pool_indices and seq_lens: int64 [n], the live requests, each in a row of its own."""

    groups: tuple[SnapshotGroup, ...]
    hash_mode: RealKvHashMode
    swa_window: int
    req_to_token: torch.Tensor | None
    req_pool_indices: torch.Tensor | None
    seq_lens: torch.Tensor | None
    ring_rows: torch.Tensor
    ring_total: int
    labels: Mapping[str, str]


def read(source: str | os.PathLike[str] | bytes, name: str = "") -> Snapshot:
    """Read and check a snapshot, a file or the content of one; name is what errors call it, by default its path.

    ImportTextError when it is none, is from a newer version, or breaks a rule, which it names.
    """
    called = f"snapshot {name or ('in memory' if isinstance(source, bytes) else os.fspath(source))}"
    try:
        metadata, tensors = _content(source)
    except (OSError, SafetensorError, KeyError) as error:
        raise ImportTextError(f"{called} cannot be read: {error}; write it with kvcanary.snapshot.save") from error
    if metadata.get("format") != FORMAT:
        got = repr(metadata.get("format"))[:60]
        raise ImportTextError(f"{called} must have format {FORMAT}, got {got}; write it with this version")
    try:
        return _snapshot(metadata, tensors)
    except _DamageError as error:
        raise ImportTextError(f"{called} is damaged: {error}; write it again with kvcanary.snapshot.save") from None


def _content(source: str | os.PathLike[str] | bytes) -> tuple[Mapping[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors. A tensor of a file starts wherever the one before ends; the kernels want 16-byte alignment, which a clone has."""
    if isinstance(source, bytes):
        # Checks the header, which is what the metadata is then taken from; a dtype that torch has not is a KeyError.
        tensors = {key: tensor.clone() for key, tensor in load(source).items()}
        return json.loads(source[8 : 8 + int.from_bytes(source[:8], "little")]).get("__metadata__", {}), tensors
    with safe_open(os.fspath(source), framework="pt") as file:
        return file.metadata() or {}, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (no iterator)


class _DamageError(ValueError):
    """A rule that the file breaks; never leaves this module."""


def _snapshot(metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> Snapshot:
    groups = _json(metadata, "groups", list)
    labels = _json(metadata, "labels", dict)
    if len(groups) > MAX_GROUPS or not all(isinstance(facts, dict) for facts in groups):
        raise _DamageError(f"groups must be a list of at most {MAX_GROUPS} objects, got {metadata['groups'][:60]!r}")
    mode = _whole(metadata.get("hash_mode"), "hash_mode", max(RealKvHashMode))
    total = _whole(metadata.get("ring_total"), "ring_total", layout.MASK64 >> 1)
    _check_requests(tensors)
    width = len(layout.RING_FIELDS)
    ring = _tensor(tensors, _RING, torch.int64, None, width)
    rows = torch.zeros((0, width), dtype=torch.int64) if ring is None else ring[:total]
    return Snapshot(
        groups=tuple(_group(index, facts, tensors) for index, facts in enumerate(groups)),
        hash_mode=RealKvHashMode(mode),
        swa_window=_whole(metadata.get("swa_window"), "swa_window", layout.MASK64 >> 1),
        req_to_token=tensors.get("req_to_token"),
        req_pool_indices=tensors.get("req_pool_indices"),
        seq_lens=tensors.get("seq_lens"),
        ring_rows=rows,
        ring_total=total,
        labels={str(name): str(value) for name, value in labels.items()},
    )


def _group(index: int, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> SnapshotGroup:
    kind = facts.get("kind")
    if kind not in GROUP_KINDS:
        raise _DamageError(f"groups[{index}].kind must be one of {'/'.join(GROUP_KINDS)}, got {str(kind)[:40]!r}")
    buffers: dict[str, torch.Tensor] = {}
    for name in BUFFER_NAMES:
        slots = next(iter(buffers.values())).shape[0] if buffers else None
        buffer = _tensor(tensors, f"{index}.{name}", torch.uint8, slots, layout.SLOT_BYTES)
        if buffer is not None:
            buffers[name] = buffer
    num_slots = next(iter(buffers.values())).shape[0] if buffers else 0
    if not num_slots:
        raise _DamageError(f"groups[{index}] must have a canary buffer with at least one slot, {index}.k_tail for example")
    sources = {}
    for half in ("k", "v"):
        found = (
            _tensor(tensors, f"{index}.source_{half}.{number}", torch.uint8, num_slots, None)
            for number in range(layout.MAX_REAL_KV_SOURCES)
        )
        sources[half] = tuple(source for source in found if source is not None)
    return SnapshotGroup(
        kind=kind,
        buffers=buffers,
        sources=sources,
        full_to_swa=_tensor(tensors, f"{index}.full_to_swa", torch.int64, None),
        token_offset=_whole(facts.get("token_offset"), f"groups[{index}].token_offset", 1),
    )


def _check_requests(tensors: Mapping[str, torch.Tensor]) -> None:
    """A request table whose rows can all be read, and each request in a row of its own, so that there is less to verify than the file is long."""
    present = [name for name in _REQUESTS if name in tensors]
    if present and len(present) < len(_REQUESTS):
        raise _DamageError(f"{', '.join(_REQUESTS)} belong together, got {', '.join(present)} alone")
    table = _tensor(tensors, "req_to_token", torch.int32, None, None)
    rows = _tensor(tensors, "req_pool_indices", torch.int64, None)
    if table is None or rows is None:
        return
    lengths = _tensor(tensors, "seq_lens", torch.int64, rows.shape[0])
    for name, values, limit in (("req_pool_indices", rows, table.shape[0] - 1), ("seq_lens", lengths, table.shape[1])):
        if values is not None and bool(((values < 0) | (values > limit)).any()):
            raise _DamageError(f"{name} must be from 0 to {limit}, as req_to_token is {list(table.shape)}")
    live = rows[rows != layout.PADDING_ROW].tolist()
    if len(set(live)) < len(live):
        raise _DamageError("req_pool_indices must name each row once")


def _tensor(tensors: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype, *shape: int | None) -> torch.Tensor | None:
    """A tensor by its name, None where it is not there; a size of None is any."""
    tensor = tensors.get(name)
    if tensor is None:
        return None
    fits = len(tensor.shape) == len(shape) and all(want is None or size == want for size, want in zip(tensor.shape, shape, strict=True))
    if tensor.dtype != dtype or not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise _DamageError(f"{name} must be {dtype} [{wanted}], got {tensor.dtype} {list(tensor.shape)}")
    return tensor


def _json(metadata: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = json.loads(metadata.get(name, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise _DamageError(f"metadata {name!r} must be a JSON {kind.__name__}, got {metadata.get(name, '')[:60]!r}")
    return value


def _whole(value: Any, name: str, largest: int) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > largest:
        raise _DamageError(f"{name} must be a whole number from 0 to {largest}, got {text[:40]!r}")
    return int(text)
