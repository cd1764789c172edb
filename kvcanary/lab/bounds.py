"""Bounds measured in the same run: kernels that move the bytes of stamp and verify and hash nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from kvcanary import layout
from kvcanary.kernels.types import StampInputs, VerifyPlan
from kvcanary.lab.scene import Scene
from kvcanary.layout import RealKvHashMode

# Bytes per entry or token that an operation cannot avoid: plan columns in, records in or out. The predecessor of an entry is the slot
# of the entry before it, so its record is counted once.
VERIFY_BYTES, STAMP_BYTES = 4 * 8 + layout.SLOT_BYTES, 3 * 8 + layout.SLOT_BYTES
# Below this much work a second thread costs more than it saves.
_THREAD_BYTES = 1 << 20


def verify_bytes(scene: Scene, entries: int) -> int:
    """Bytes that verify has to move: the plan's four columns, the record, and the hashed KV bytes."""
    return entries * (VERIFY_BYTES + hashed_bytes(scene))


def stamp_bytes(scene: Scene, tokens: int) -> int:
    """Bytes that stamp has to move: token, position and slot in, one record out, and the hashed KV bytes."""
    return tokens * (STAMP_BYTES + hashed_bytes(scene))


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
        from kvcanary.lab.bounds_numba import gather

        arrays = (fields.numpy(), slots.numpy(), previous.numpy(), positions.numpy(), _words(scene), hashed_bytes(scene) // 8)
        return in_threads(lambda first, last: gather(*arrays, first, last), entries, verify_bytes(scene, entries))

    def gather_on_device() -> tuple[torch.Tensor, ...]:
        first = fields[slots].sum() + fields[previous].sum() + positions.sum()
        return (first, kv[slots].sum(dtype=torch.int64)) if kv is not None else (first,)

    return gather_on_device


def stamp_bound(scene: Scene, inputs: StampInputs) -> Callable[[], Any]:
    """A call that reads what stamp reads and stores records of the same size at the same slots, in a buffer of its own."""
    scratch, kv = torch.zeros_like(scene.fields), _hashed_view(scene)
    if scene.device.type == "cpu":
        from kvcanary.lab.bounds_numba import scatter

        columns = (inputs.slots.numpy(), inputs.tokens.numpy(), inputs.positions.numpy())
        arrays = (scratch.numpy(), *columns, _words(scene), hashed_bytes(scene) // 8)
        count = inputs.slots.numel()
        return in_threads(lambda first, last: scatter(*arrays, first, last), count, stamp_bytes(scene, count))

    def scatter_on_device() -> Any:
        record = torch.stack([inputs.tokens, inputs.positions, inputs.tokens, inputs.positions], dim=1)
        scratch.index_copy_(0, inputs.slots, record)
        return kv[inputs.slots].sum(dtype=torch.int64) if kv is not None else None

    return scatter_on_device


def in_threads(work: Callable[[int, int], Any], items: int, moved: int) -> Callable[[], Any]:
    """Call `work` on even ranges of the items, on as many threads as torch uses when there is enough to move."""
    threads = max(1, min(torch.get_num_threads(), moved // _THREAD_BYTES))
    edges = [items * index // threads for index in range(threads + 1)]

    def run() -> list[Any]:
        helpers = [_pool(threads).submit(work, edges[index], edges[index + 1]) for index in range(1, threads)]
        return [work(0, edges[1]), *(helper.result() for helper in helpers)]

    return run


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kvcanary-bound")


def _hashed_view(scene: Scene) -> torch.Tensor | None:
    return None if scene.kv is None else scene.kv[:, : hashed_bytes(scene)]


def _words(scene: Scene) -> Any:
    """The KV rows as int64 [num_slots, words]; whole rows, because a contiguous array is what compiles to plain loads."""
    return np.zeros((1, 1), dtype=np.int64) if scene.kv is None else scene.kv.numpy().view(np.int64)
