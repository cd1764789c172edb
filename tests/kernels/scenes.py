"""Random but reproducible inputs for the three ops, small enough for plain loops and nasty enough to matter.

A scene holds the arguments of one op and everything that op may write. `clone()` gives every backend its own copy, `state()` the
tensors to compare. Memory that nobody has to write is poisoned with a loud pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from kvcanary.kernels.types import (
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
from kvcanary.layout import LaunchTag, RealKvHashMode

FUZZ = settings(max_examples=max(180, settings.default.max_examples))
"""Per op, so that each backend sees more than 500 scenes; a longer profile counts when one is chosen."""

POISON = 0x5AA5C33C0FF01EE1
POISON_INT32 = 0x5AA5C33C
POISON_BYTE = 0xA5
INT64_MAX = 2**63 - 1
INT64_EDGES = (0, 1, -1, 2**31, -(2**31), -(2**63), 0x0123456789ABCDEF, INT64_MAX)


def clone(value):
    """Deep copy of a scene part: tensors are cloned with their strides, everything else is kept."""
    if isinstance(value, torch.Tensor):
        copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        return copy.copy_(value)
    if isinstance(value, tuple):
        return tuple(clone(item) for item in value)
    if is_dataclass(value):
        return replace(value, **{field.name: clone(getattr(value, field.name)) for field in fields(value)})
    return value


def tensors_of(value, prefix=""):
    """Every tensor of a scene by its dotted name."""
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    if isinstance(value, tuple):
        children = [(str(index), item) for index, item in enumerate(value)]
    elif is_dataclass(value):
        children = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        return {}
    return {name: tensor for key, item in children for name, tensor in tensors_of(item, f"{prefix}.{key}" if prefix else key).items()}


def poison(plan):
    """Fill a plan or a ring with the loud pattern."""
    for tensor in tensors_of(plan).values():
        tensor.fill_(POISON if tensor.dtype == torch.int64 else POISON_INT32)
    return plan


@dataclass(frozen=True)
class PlanScene:
    WRITES: ClassVar = ("verify_plan", "write_plan")

    inputs: PlanInputs
    verify_plan: VerifyPlan
    write_plan: WritePlan

    def run(self, backend):
        backend.plan(self.inputs, self.verify_plan, self.write_plan)


@dataclass(frozen=True)
class StampScene:
    WRITES: ClassVar = ("launch.buffer", "launch.ring", "launch.counters", "launch.coverage")

    launch: Launch
    plan: WritePlan
    inputs: StampInputs

    def run(self, backend):
        backend.stamp(self.launch, self.plan, self.inputs)


@dataclass(frozen=True)
class VerifyScene:
    WRITES: ClassVar = ("launch.ring", "launch.counters", "launch.coverage")

    launch: Launch
    plan: VerifyPlan
    check_tokens: bool

    def run(self, backend):
        backend.verify(self.launch, self.plan, check_tokens=self.check_tokens)


@st.composite
def plan_scenes(draw) -> PlanScene:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width, batch = draw(st.integers(2, 6)), draw(st.integers(1, 12)), draw(st.integers(0, 6))
    pool = draw(st.integers(2, 50))
    table = rng.integers(1, pool, (rows, width), dtype=np.int32)
    table[rng.random((rows, width)) < draw(st.sampled_from([0.0, 0.2]))] = 0
    table[rng.random((rows, width)) < draw(st.sampled_from([0.0, 0.1]))] = -1
    row_index = rng.integers(1, rows, batch)
    row_index[rng.random(batch) < draw(st.sampled_from([0.0, 0.4]))] = 0
    prefix = rng.integers(draw(st.sampled_from([-2, 0, 1])), width + 1, batch)
    extend = rng.integers(draw(st.sampled_from([-2, 0, 1])), 5, batch)
    window = draw(st.sampled_from([0, 0, 1, 2, 3, width, 1000]))
    with_table = window > 0 or draw(st.booleans())
    swa = rng.integers(-1, pool, pool)
    swa[rng.random(pool) < 0.4] = 0
    with_tokens = draw(st.booleans())
    token_width = width + draw(st.integers(0, 3))
    lengths = np.where(row_index != 0, np.maximum(prefix, 0), 0)
    total = int(np.minimum(lengths, window).sum() if window else lengths.sum())
    capacity = max(1, total + draw(st.sampled_from([-3, -1, 0, 1, 9])))
    return PlanScene(
        inputs=PlanInputs(
            req_pool_indices=torch.from_numpy(row_index),
            prefix_lens=torch.from_numpy(prefix),
            extend_seq_lens=torch.from_numpy(extend),
            req_to_token=torch.from_numpy(table),
            swa_window=window,
            full_to_swa=torch.from_numpy(swa) if with_table else None,
            expected_tokens=torch.from_numpy(rng.integers(-3, 2**31 - 1, (rows, token_width), dtype=np.int32)) if with_tokens else None,
            expected_valid_lens=torch.from_numpy(rng.integers(-1, token_width + 1, batch)) if with_tokens else None,
            token_offset=draw(st.sampled_from([0, 1, -1])),
        ),
        verify_plan=poison(VerifyPlan.allocate(capacity)),
        write_plan=poison(WritePlan.allocate(max(1, batch + draw(st.integers(0, 3))))),
    )


@st.composite
def launches(draw, rng: np.random.Generator) -> Launch:
    """A launch on a buffer of random records; ring anywhere between empty and overfull."""
    num_slots = draw(st.integers(2, 40))
    stride = draw(st.sampled_from([32, 32, 40, 64]))
    buffer = rng.integers(0, 256, (num_slots, stride), dtype=np.uint8)
    ring = poison(ViolationRing.allocate(draw(st.sampled_from([1, 3, 64]))))
    ring.write_index.fill_(draw(st.sampled_from([0, 0, 2, 70])))
    counters = RunCounters.allocate()
    counters.kernel_runs.copy_(torch.from_numpy(rng.integers(0, 9, 12)))
    counters.slot_runs.copy_(torch.from_numpy(rng.integers(0, 2**40, 12)))
    coverage = draw(st.sampled_from([None, Coverage.allocate(), Coverage.allocate(num_slots)]))
    coverage = clone(coverage)
    if coverage is not None:
        coverage.counts.copy_(torch.from_numpy(rng.integers(0, 99, 6)))
    return Launch(
        buffer=torch.from_numpy(buffer),
        tag=draw(st.sampled_from(LaunchTag)),
        ring=ring,
        counters=counters,
        sources=tuple(draw(sources(rng, num_slots)) for _ in range(draw(st.integers(0, 4)))),
        hash_mode=draw(st.sampled_from(RealKvHashMode)),
        coverage=coverage,
    )


@st.composite
def sources(draw, rng: np.random.Generator, num_slots: int) -> RealKvSource:
    """A strip of random bytes: packed or padded pages, rows with a stride wider than the row, zero bytes now and then."""
    page_size = draw(st.sampled_from([1, 1, 2, 3, 4, 16]))
    num_bytes = draw(st.sampled_from([16, 32, 48, 144]))
    row_bytes = page_size * num_bytes + draw(st.sampled_from([0, 5, 16]))
    row_stride = -(-row_bytes // 16) * 16 + draw(st.sampled_from([0, 0, 32]))
    rows = -(-num_slots // page_size) + draw(st.integers(0, 1))
    storage = torch.from_numpy(rng.integers(0, 256, rows * row_stride, dtype=np.uint8))
    if draw(st.integers(0, 9)) == 0:
        storage.zero_()
    return RealKvSource(
        tensor=storage.as_strided((rows, row_bytes), (row_stride, 1)),
        page_size=page_size,
        num_bytes_per_token=num_bytes,
        read_bytes=draw(st.integers(1, num_bytes // 16)) * 16,
    )


@st.composite
def stamp_scenes(draw, *, ordered: bool = True, wrapping: bool = True) -> StampScene:
    """ordered=False leaves out what the contract leaves open: a slot that two requests stamp, or one stamps and another starts from.

    wrapping=False leaves out the one position whose successor wraps around.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    launch = draw(launches(rng))
    num_slots = launch.buffer.shape[0]
    capacity = draw(st.sampled_from([1, 2, 3, 7, 20]))
    lengths = rng.integers(0, draw(st.sampled_from([1, 2, 9, 40])) + 1, capacity)
    offsets = draw(st.sampled_from([0, 0, 3])) + np.concatenate([[0], np.cumsum(lengths)])
    num_tokens = int(offsets[-1]) + draw(st.integers(0, 3))
    slots = rng.permutation(num_tokens) % num_slots if draw(st.booleans()) else rng.integers(0, num_slots, num_tokens)
    seeds = rng.integers(draw(st.sampled_from([-2, -1, 0])), num_slots, capacity)
    if not ordered:
        _keep_apart(rng, offsets, slots, seeds, num_slots)
    slots[rng.random(num_tokens) < draw(st.sampled_from([0.0, 0.2]))] = -1
    slots[rng.random(num_tokens) < draw(st.sampled_from([0.0, 0.3]))] = 0
    tokens, positions = rng.integers(0, 150_000, num_tokens), rng.integers(0, 40, num_tokens)
    plan = WritePlan(
        offsets=torch.from_numpy(offsets),
        seed_slot_indices=torch.from_numpy(seeds),
        num_valid_reqs=torch.tensor([draw(st.sampled_from([capacity, capacity, capacity - 1, 0, capacity + 5, -3]))], dtype=torch.int32),
    )
    if draw(st.booleans()):
        _make_consecutive(launch, offsets, seeds, slots, positions, rng)
    tokens[rng.random(num_tokens) < 0.1] = rng.choice(INT64_EDGES)
    positions[rng.random(num_tokens) < draw(st.sampled_from([0.0, 0.1]))] = rng.choice(INT64_EDGES if wrapping else INT64_EDGES[:-1])
    armed = draw(st.booleans())
    wrong = draw(st.sampled_from([0.0, 0.3]))
    return StampScene(
        launch,
        plan,
        StampInputs(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            expected_tokens=torch.from_numpy(np.where(rng.random(num_tokens) < wrong, 7, tokens)) if armed else None,
            expected_positions=torch.from_numpy(np.where(rng.random(num_tokens) < wrong, 7, positions)) if armed else None,
            position_assert=draw(st.sampled_from([None, torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)])),
        ),
    )


def _keep_apart(rng, offsets, slots, seeds, num_slots) -> None:
    """Give each request slots of its own (repeats within it allowed); every other slot but 0 is stamped by nobody else."""
    owner_of_slot = rng.integers(0, len(seeds), num_slots)
    for request, (first, last) in enumerate(pairwise(offsets)):
        mine = np.flatnonzero(owner_of_slot == request)
        slots[first:last] = rng.choice(mine, last - first) if len(mine) else -1
        if seeds[request] > 0:
            seeds[request] = rng.choice(mine) if len(mine) else -1


def _make_consecutive(launch, offsets, seeds, slots, positions, rng) -> None:
    """Positions that go on from each request's seed, so that the +1 assert has something to accept."""
    stored = launch.buffer.view(torch.int64)[:, 1]
    stored.copy_(torch.from_numpy(rng.integers(0, 40, stored.shape[0])))
    for request, seed in enumerate(seeds):
        position = int(stored[seed]) if seed >= 0 else -1
        for index in range(offsets[request], offsets[request + 1]):
            position += slots[index] >= 0
            positions[index] = position


@st.composite
def verify_scenes(draw) -> VerifyScene:
    """Entries over random records, or over chains that were stamped and then damaged here and there."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    launch = draw(launches(rng))
    num_slots = launch.buffer.shape[0]
    capacity = draw(st.integers(1, 30))
    plan = poison(VerifyPlan.allocate(capacity))
    plan.slot_indices.copy_(torch.from_numpy(rng.integers(0, num_slots, capacity)))
    plan.prev_slot_indices.copy_(torch.from_numpy(rng.integers(-2, num_slots, capacity)))
    if draw(st.booleans()):
        plan.prev_slot_indices[1:] = plan.slot_indices[:-1]
    plan.expected_positions.copy_(torch.from_numpy(rng.integers(0, 40, capacity)))
    plan.expected_tokens.copy_(torch.from_numpy(rng.integers(-1, 3, capacity)))
    if draw(st.booleans()):
        _make_sound(launch, plan)
        wrong = torch.from_numpy(rng.random(capacity)) < draw(st.sampled_from([0.0, 0.3]))
        plan.expected_tokens[wrong] = 5
    num_valid = draw(st.sampled_from([capacity, capacity, capacity // 2, 0, capacity + 5, -3]))
    plan.num_valid.fill_(num_valid)
    plan.enable.fill_(draw(st.sampled_from([1, 1, 1, 7, 0])))
    if 0 <= num_valid < capacity:
        for column in (plan.slot_indices, plan.prev_slot_indices):
            column[num_valid:] = POISON
    return VerifyScene(launch, plan, check_tokens=draw(st.booleans()))


def _make_sound(launch, plan) -> None:
    """Rewrite each entry's record so that many entries pass: stamped by the reference, one entry per request, in plan order."""
    from kvcanary.kernels.reference import ReferenceBackend

    count = plan.slot_indices.shape[0]
    scratch = replace(launch, ring=ViolationRing.allocate(1), counters=RunCounters.allocate(), coverage=None)
    for index in range(count):
        write = WritePlan(
            offsets=torch.tensor([0, 1]),
            seed_slot_indices=plan.prev_slot_indices[index : index + 1],
            num_valid_reqs=torch.ones(1, dtype=torch.int32),
        )
        inputs = StampInputs(
            tokens=plan.expected_tokens[index : index + 1].clamp(min=0),
            positions=plan.expected_positions[index : index + 1],
            slots=plan.slot_indices[index : index + 1],
        )
        ReferenceBackend().stamp(scratch, write, inputs)
