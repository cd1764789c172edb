"""Bounds measured in the same run: kernels that move the bytes of stamp and verify and hash nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvcanary import layout
from kvcanary.kernels.types import StampInputs, VerifyPlan
from kvcanary.lab.scene import Scene
from kvcanary.layout import RealKvHashMode

# Bytes per entry or token that an operation cannot avoid: plan columns in, records in or out.
VERIFY_PLAN_BYTES, STAMP_INPUT_BYTES = 3 * 8, 3 * 8


def verify_bytes(scene: Scene, entries: int) -> int:
    """Bytes that verify has to move: slot, position and predecessor of the plan, two records, and the hashed KV bytes."""
    return entries * (VERIFY_PLAN_BYTES + 2 * layout.SLOT_BYTES + hashed_bytes(scene))


def stamp_bytes(scene: Scene, tokens: int) -> int:
    """Bytes that stamp has to move: token, position and slot in, one record out, and the hashed KV bytes."""
    return tokens * (STAMP_INPUT_BYTES + layout.SLOT_BYTES + hashed_bytes(scene))


def hashed_bytes(scene: Scene) -> int:
    """KV bytes hashed per slot."""
    if scene.kv is None:
        return 0
    return layout.PARTIAL_BYTES if scene.shape.hash_mode is RealKvHashMode.PARTIAL else scene.shape.row_bytes


def verify_bound(scene: Scene, plan: VerifyPlan, entries: int) -> Callable[[], Any]:
    """A call that gathers what verify of these entries reads."""
    slots, previous = plan.slot_indices[:entries], plan.prev_slot_indices[:entries].clamp(min=0)
    positions, fields, kv = plan.expected_positions[:entries], scene.fields, _hashed_view(scene)
    if scene.device.type == "cpu":
        gather = _numba_kernels()[0]
        arrays = (fields.numpy(), slots.numpy(), previous.numpy(), positions.numpy(), _words(kv))
        return lambda: gather(*arrays)

    def gather_on_device() -> tuple[torch.Tensor, ...]:
        first = fields[slots].sum() + fields[previous].sum() + positions.sum()
        return (first, kv[slots].sum(dtype=torch.int64)) if kv is not None else (first,)

    return gather_on_device


def stamp_bound(scene: Scene, inputs: StampInputs) -> Callable[[], Any]:
    """A call that reads what stamp reads and stores records of the same size at the same slots, in a buffer of its own."""
    scratch, kv = torch.zeros_like(scene.fields), _hashed_view(scene)
    if scene.device.type == "cpu":
        scatter = _numba_kernels()[1]
        arrays = (scratch.numpy(), inputs.slots.numpy(), inputs.tokens.numpy(), inputs.positions.numpy(), _words(kv))
        return lambda: scatter(*arrays)

    def scatter_on_device() -> Any:
        record = torch.stack([inputs.tokens, inputs.positions, inputs.tokens, inputs.positions], dim=1)
        scratch.index_copy_(0, inputs.slots, record)
        return kv[inputs.slots].sum(dtype=torch.int64) if kv is not None else None

    return scatter_on_device


def _hashed_view(scene: Scene) -> torch.Tensor | None:
    return None if scene.kv is None else scene.kv[:, : hashed_bytes(scene)]


def _words(kv: torch.Tensor | None) -> Any:
    return np.zeros((1, 0), dtype=np.int64) if kv is None else kv.numpy().view(np.int64)


_compiled: list[Callable[..., Any]] = []


def _numba_kernels() -> list[Callable[..., Any]]:
    """Compile on first use, so that importing the lab stays cheap."""
    if not _compiled:
        from kvcanary.lab.bounds_numba import gather, scatter

        _compiled.extend((gather, scatter))
    return _compiled
