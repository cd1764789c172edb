"""A pool with requests in it: request table, slots, tokens and KV bytes, built from a seed and stamped by a backend."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from kvcanary import layout
from kvcanary.kernels.types import (
    Backend,
    Coverage,
    Launch,
    PlanInputs,
    RealKvSource,
    RunCounters,
    StampInputs,
    VerifyPlan,
    ViolationRing,
    WritePlan,
)
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import LaunchTag, RealKvHashMode

VOCABULARY = 150_000
# An odd multiplier makes neighbouring words differ in most bits; the low bit keeps every word non-zero, since zeros hash to zero.
_KV_MULTIPLIER = 0x9E3779B97F4A7C15


class Scene:
    """Tensors of one pool on one device.

    Chains are rows 1..requests of req_to_token int32 [requests + 1, length]; tokens int64 [used] and slots int64 [used] are flat in
    chain order. buffer is uint8 [num_slots, 32]. kv uint8 [num_slots, row_bytes] may be given, to be shared by scenes of equal pools.
    """

    def __init__(self, shape: SceneShape, seed: int, device: torch.device | str = "cpu", kv: torch.Tensor | None = None) -> None:
        self.shape, self.device = shape, torch.device(device)
        random = np.random.default_rng(seed)
        self.slots = torch.from_numpy(_chain_slots(shape, random)).to(self.device)
        self.tokens = torch.from_numpy(random.integers(0, VOCABULARY, shape.used, dtype=np.int64)).to(self.device)
        self.positions = torch.arange(shape.length, dtype=torch.int64, device=self.device).repeat(shape.requests)
        self.req_to_token = torch.zeros((shape.requests + 1, shape.length), dtype=torch.int32, device=self.device)
        self.req_to_token[1:] = self.slots.view(shape.requests, shape.length).to(torch.int32)
        self.buffer = torch.zeros((shape.num_slots, layout.SLOT_BYTES), dtype=torch.uint8, device=self.device)
        self.kv = None if shape.hash_mode is RealKvHashMode.NONE else kv_rows(shape, self.device) if kv is None else kv
        self.ring = ViolationRing.allocate(shape.ring_capacity, device=self.device)
        self.counters = RunCounters.allocate(device=self.device)
        self.coverage = Coverage.allocate(shape.num_slots, device=self.device)
        self.write_plan = WritePlan.allocate(shape.requests, device=self.device)

    @cached_property
    def verify_plan(self) -> VerifyPlan:
        """A verify plan that holds every token of the scene."""
        return VerifyPlan.allocate(self.shape.used, device=self.device)

    @cached_property
    def head_buffer(self) -> torch.Tensor:
        """HEAD's own records, which carry no real-KV hash; uint8 [num_slots, 32], blank until stamped."""
        return torch.zeros_like(self.buffer)

    @property
    def fields(self) -> torch.Tensor:
        """The buffer as int64 [num_slots, 4]."""
        return self.buffer.view(torch.int64)

    def launch(self, tag: LaunchTag) -> Launch:
        """The launch context for a tag; HEAD tags have their own buffer and hash no KV, as in SGLang."""
        head = tag.name.startswith("HEAD")
        hashed = self.kv is not None and not head
        return Launch(
            buffer=self.head_buffer if head else self.buffer,
            tag=tag,
            ring=self.ring,
            counters=self.counters,
            sources=self.sources if hashed else (),
            hash_mode=self.shape.hash_mode if hashed else RealKvHashMode.NONE,
            coverage=self.coverage,
        )

    @cached_property
    def sources(self) -> tuple[RealKvSource, ...]:
        """The layer-0 K rows, as a view of the pool."""
        if self.kv is None:
            return ()
        partial = self.shape.hash_mode is RealKvHashMode.PARTIAL
        read = layout.PARTIAL_BYTES if partial else self.shape.row_bytes
        return (RealKvSource(tensor=self.kv, page_size=1, num_bytes_per_token=self.shape.row_bytes, read_bytes=read),)

    def plan_inputs(self, prefix: int, extend: int) -> PlanInputs:
        """One batch of all requests with `prefix` tokens behind them and `extend` to write."""
        count = self.shape.requests
        return PlanInputs(
            req_pool_indices=torch.arange(1, count + 1, dtype=torch.int64, device=self.device),
            prefix_lens=torch.full((count,), prefix, dtype=torch.int64, device=self.device),
            extend_seq_lens=torch.full((count,), extend, dtype=torch.int64, device=self.device),
            req_to_token=self.req_to_token,
        )

    def stamp_inputs(self, prefix: int, extend: int) -> StampInputs:
        """The tokens [prefix, prefix + extend) of every request, flat in request order, with the +1 assert on as in a live server."""
        view = (self.shape.requests, self.shape.length)
        part = slice(prefix, prefix + extend)
        return StampInputs(
            tokens=self.tokens.view(view)[:, part].reshape(-1).contiguous(),
            positions=self.positions.view(view)[:, part].reshape(-1).contiguous(),
            slots=self.slots.view(view)[:, part].reshape(-1).contiguous(),
            position_assert=torch.ones(1, dtype=torch.int32, device=self.device),
        )

    def plan(self, backend: Backend, prefix: int, extend: int) -> tuple[VerifyPlan, WritePlan]:
        """Plan one batch; the plans are the scene's own and hold until the next call."""
        backend.plan(self.plan_inputs(prefix, extend), self.verify_plan, self.write_plan)
        return self.verify_plan, self.write_plan

    def stamp_everything(self, backend: Backend, tag: LaunchTag = LaunchTag.TAIL_K_FULL) -> None:
        """Write the records of all tokens, as a prefill would."""
        _, write_plan = self.plan(backend, 0, self.shape.length)
        backend.stamp(self.launch(tag), write_plan, self.stamp_inputs(0, self.shape.length))

    def sweep(self, backend: Backend, tag: LaunchTag = LaunchTag.SWEEP_K_FULL) -> None:
        """Verify every token of the scene with one launch."""
        verify_plan, _ = self.plan(backend, self.shape.length, 0)
        backend.verify(self.launch(tag), verify_plan)


def _chain_slots(shape: SceneShape, random: np.random.Generator) -> np.ndarray:
    """Slots of all tokens in chain order, int64 [used]: whole pages per request, in pool order or in random order."""
    pages = np.arange(1, shape.pages + 1, dtype=np.int64)
    chosen = (random.permutation(pages) if shape.shuffled else pages)[: shape.requests * shape.pages_per_request]
    slots = chosen[:, None] * shape.page_size + np.arange(shape.page_size)
    return np.ascontiguousarray(slots.reshape(shape.requests, -1)[:, : shape.length]).reshape(-1)


def kv_rows(shape: SceneShape, device: torch.device | str) -> torch.Tensor:
    """Non-zero bytes that are a function of the slot alone, uint8 [num_slots, row_bytes]."""
    words = torch.arange(shape.num_slots * shape.row_bytes // 8, dtype=torch.int64, device=device)
    words.mul_(layout.to_signed(_KV_MULTIPLIER)).bitwise_or_(1)
    return words.view(torch.uint8).view(shape.num_slots, shape.row_bytes)
