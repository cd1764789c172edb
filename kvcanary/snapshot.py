"""Snapshots of the canary of a running server: save inside its process, verify offline.

`save` takes SGLang's own CanaryBufferGroup objects by their attributes and needs torch and safetensors alone, so it can be called from a
patched scheduler or a debugger. A snapshot holds the canary buffers, the KV bytes that are hashed, the request table, and the violation
ring; no prompt text, but token ids are in the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kvcanary import layout, snapshot_file
from kvcanary.errors import ContractError
from kvcanary.kernels.backends import AUTO, choose_backend
from kvcanary.kernels.types import Backend, Launch, PlanInputs, RealKvSource, RunCounters, VerifyPlan, ViolationRing, WritePlan
from kvcanary.layout import FIELD_POSITION, LaunchTag, RealKvHashMode, SlotStatus
from kvcanary.snapshot_file import BUFFER_NAMES, FORMAT, Snapshot, SnapshotGroup

_UNLINKED = layout.PADDING_SLOT


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCheck:
    """What offline verification of one group found.

    rows: int64 [n, 8] violation rows (layout.RING_FIELDS). chained: entries checked with their chain; bytes_only: stamped slots outside
    the request table, whose KV bytes alone can be checked. unlike: int64 [m], slots whose HEAD and TAIL records differ in token, position
    or prev_hash. status: uint8 [num_slots] (layout.SlotStatus).
    """

    kind: str
    rows: torch.Tensor
    chained: int
    bytes_only: int
    unlike: torch.Tensor
    status: torch.Tensor


def save(
    path: str | os.PathLike[str],
    *,
    buffer_groups: Sequence[Any],
    real_kv_hash_mode: int = RealKvHashMode.NONE,
    swa_window: int = 0,
    req_to_token: torch.Tensor | None = None,
    req_pool_indices: torch.Tensor | Sequence[int] | None = None,
    seq_lens: torch.Tensor | Sequence[int] | None = None,
    violation_ring: torch.Tensor | None = None,
    violation_write_index: torch.Tensor | int | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write a snapshot; call it between two forwards, since it reads live tensors.

    buffer_groups: SGLang's CanaryBufferGroup objects, or objects with the same attributes. real_kv_hash_mode: 0 none, 1 partial, 2 all, as
    the server was started; decides how many KV bytes are saved (16 or read_bytes for each slot and source). req_to_token: int32
    [rows, width] with req_pool_indices and seq_lens of the live requests. labels: free text such as rank, model, step. The file appears
    whole or not at all. ContractError when the requests are given in part.
    """
    requests = (req_to_token, req_pool_indices, seq_lens)
    if any(part is None for part in requests) != all(part is None for part in requests):
        raise ContractError("req_to_token, req_pool_indices and seq_lens belong together: give all three or none of them")
    mode = RealKvHashMode(int(real_kv_hash_mode))
    tensors: dict[str, torch.Tensor] = {}
    for index, group in enumerate(buffer_groups):
        tensors |= {f"{index}.{name}": tensor for name, tensor in _group_tensors(group, mode).items()}
    for name, value, dtype in (
        ("req_to_token", req_to_token, torch.int32),
        ("req_pool_indices", req_pool_indices, torch.int64),
        ("seq_lens", seq_lens, torch.int64),
        ("violation_ring", violation_ring, torch.int64),
    ):
        if value is not None:
            tensors[name] = _host(torch.as_tensor(value).to(dtype))
    metadata = {
        "format": FORMAT,
        "groups": json.dumps(
            [{"kind": str(group.kind.name), "token_offset": int(group.kv_token_id_vs_position_offset)} for group in buffer_groups]
        ),
        "hash_mode": str(int(mode)),
        "swa_window": str(int(swa_window)),
        "ring_total": str(0 if violation_write_index is None else int(violation_write_index)),
        "labels": json.dumps(dict(labels or {})),
    }
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    save_file(tensors, temporary, metadata=metadata)
    temporary.replace(target)


def load(source: str | os.PathLike[str] | bytes, name: str = "") -> Snapshot:
    """Read a snapshot, a file or the content of one; ImportTextError, which calls it `name`, when it is none, newer, or damaged."""
    return snapshot_file.read(source, name)


def verify(snapshot: Snapshot, *, backend: str = AUTO) -> list[GroupCheck]:
    """Verify every stamped slot: along the chains of the request table where it is given, and the KV bytes of all others."""
    chosen, _ = choose_backend(backend)
    return [_check_group(snapshot, group, chosen) for group in snapshot.groups]


def _group_tensors(group: Any, mode: RealKvHashMode) -> dict[str, torch.Tensor]:
    """What one buffer group leaves in the file, by name."""
    found = {name: _host(getattr(group, name)) for name in BUFFER_NAMES if getattr(group, name) is not None}
    for half in ("k", "v"):
        slots = 0 if getattr(group, f"{half}_tail") is None else int(getattr(group, f"{half}_tail").shape[0])
        for number, source in enumerate(getattr(group, f"real_kv_sources_{half}")):
            if mode is not RealKvHashMode.NONE and slots:
                found[f"source_{half}.{number}"] = _pack(source, mode, slots)
    if group.swa_index_lut is not None:
        found["full_to_swa"] = _host(group.swa_index_lut)
    return found


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _pack(source: Any, mode: RealKvHashMode, slots: int) -> torch.Tensor:
    """The hashed bytes of every slot, uint8 [slots, bytes]; only these leave the device."""
    count = layout.PARTIAL_BYTES if mode is RealKvHashMode.PARTIAL else int(source.read_bytes)
    page, width = int(source.page_size), int(source.num_bytes_per_token)
    strips = source.tensor[:, : page * width].unflatten(1, (page, width))[:, :, :count]
    return _host(strips.reshape(-1, count)[:slots])


def _check_group(snapshot: Snapshot, group: SnapshotGroup, backend: Backend) -> GroupCheck:
    chained = _chain_plan(snapshot, group, backend)
    num_slots = group.num_slots
    covered = torch.zeros(num_slots, dtype=torch.bool)
    if chained is not None:
        covered[chained.slot_indices] = True
    rows, bytes_only = [], 0
    status = torch.zeros(num_slots, dtype=torch.uint8)
    for name, buffer in group.buffers.items():
        stamped = (buffer.view(torch.int64) != 0).any(dim=1)
        stamped[layout.PADDING_SLOT] = False
        status[stamped] = torch.maximum(status[stamped], torch.tensor(SlotStatus.SKIPPED, dtype=torch.uint8))
        if chained is not None:
            rows.append(_run(snapshot, group, name, chained, backend))
        rest = torch.nonzero(stamped & ~covered).flatten()
        if name.endswith("tail") and group.sources[name[0]] and len(rest):
            bytes_only += len(rest)
            rows.append(_run(snapshot, group, name, _loose_plan(buffer, rest), backend))
            status[rest] = int(SlotStatus.CLEAN)
    status[covered] = int(SlotStatus.CLEAN)
    status[layout.PADDING_SLOT] = int(SlotStatus.RESERVED)
    found = torch.cat(rows) if rows else torch.zeros((0, len(layout.RING_FIELDS)), dtype=torch.int64)
    unlike = _unlike(group)
    status[unlike] = int(SlotStatus.CORRUPTED)
    status[found[:, layout.RING_FIELDS.index("slot_idx")]] = int(SlotStatus.CORRUPTED)
    return GroupCheck(
        kind=group.kind,
        rows=found,
        chained=0 if chained is None else int(chained.num_valid.item()),
        bytes_only=bytes_only,
        unlike=unlike,
        status=status,
    )


def _chain_plan(snapshot: Snapshot, group: SnapshotGroup, backend: Backend) -> VerifyPlan | None:
    """Every position of every live request, planned as SGLang plans a forward."""
    if snapshot.req_to_token is None or snapshot.req_pool_indices is None or snapshot.seq_lens is None:
        return None
    entries = int(snapshot.seq_lens[snapshot.req_pool_indices != layout.PADDING_ROW].sum().item())
    if not entries:
        return None
    window = snapshot.swa_window if group.kind == "SWA" else 0
    plan, write_plan = VerifyPlan.allocate(entries), WritePlan.allocate(len(snapshot.seq_lens))
    inputs = PlanInputs(
        req_pool_indices=snapshot.req_pool_indices,
        prefix_lens=snapshot.seq_lens,
        extend_seq_lens=torch.zeros_like(snapshot.seq_lens),
        req_to_token=snapshot.req_to_token,
        swa_window=window,
        full_to_swa=group.full_to_swa if window else None,
        token_offset=group.token_offset,
    )
    backend.plan(inputs, plan, write_plan)
    count = int(plan.num_valid.item())
    num_slots = group.num_slots
    outside = plan.slot_indices[:count][(plan.slot_indices[:count] < 0) | (plan.slot_indices[:count] >= num_slots)]
    if len(outside):
        raise ContractError(
            f"req_to_token leads to slot {int(outside[0])} in {len(outside)} cells of live requests, and the {group.kind} pool has {num_slots} slots"
        )
    return VerifyPlan(
        slot_indices=plan.slot_indices[:count].clone(),
        expected_tokens=plan.expected_tokens[:count].clone(),
        expected_positions=plan.expected_positions[:count].clone(),
        prev_slot_indices=plan.prev_slot_indices[:count].clone(),
        num_valid=plan.num_valid,
        enable=plan.enable,
    )


def _loose_plan(buffer: torch.Tensor, slots: torch.Tensor) -> VerifyPlan:
    """Slots without a known predecessor: their own position, and slot 0 before them, so that the KV bytes alone are checked."""
    fields = buffer.view(torch.int64)
    return VerifyPlan(
        slot_indices=slots,
        expected_tokens=torch.full_like(slots, layout.NO_EXPECTED_TOKEN),
        expected_positions=fields[slots, FIELD_POSITION].clone(),
        prev_slot_indices=torch.full_like(slots, _UNLINKED),
        num_valid=torch.tensor([len(slots)], dtype=torch.int32),
        enable=torch.ones(1, dtype=torch.int32),
    )


def _run(snapshot: Snapshot, group: SnapshotGroup, name: str, plan: VerifyPlan, backend: Backend) -> torch.Tensor:
    half, place = name.split("_")
    ring = ViolationRing.allocate(len(plan.slot_indices))
    launch = Launch(
        buffer=group.buffers[name],
        tag=LaunchTag[f"{place.upper()}_{half.upper()}_{group.kind}"],
        ring=ring,
        counters=RunCounters.allocate(),
        sources=tuple(_source(packed) for packed in group.sources[half]) if place == "tail" else (),
        hash_mode=snapshot.hash_mode if place == "tail" else RealKvHashMode.NONE,
    )
    backend.verify(launch, plan)
    return ring.kept()


def _source(packed: torch.Tensor) -> RealKvSource:
    width = int(packed.shape[1])
    return RealKvSource(tensor=packed, page_size=1, num_bytes_per_token=width, read_bytes=width)


def _unlike(group: SnapshotGroup) -> torch.Tensor:
    """Slots whose HEAD and TAIL records differ before the data hash; between two forwards they are equal."""
    union = torch.zeros(group.num_slots, dtype=torch.bool)
    for half in ("k", "v"):
        head, tail = group.buffers.get(f"{half}_head"), group.buffers.get(f"{half}_tail")
        if head is not None and tail is not None:
            union |= (head.view(torch.int64)[:, :3] != tail.view(torch.int64)[:, :3]).any(dim=1)
    union[layout.PADDING_SLOT] = False
    return torch.nonzero(union).flatten()
