"""What each op refuses: the error names the field, and nothing has been written."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from kvcanary.errors import ContractError
from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
from kvcanary.kernels.sweep import sweep_plan
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
from tests.kernels.scenes import PlanScene, StampScene, VerifyScene, clone, poison, tensors_of


def source(rows=8, **options):
    tensor = torch.zeros(rows, 32, dtype=torch.uint8)
    return RealKvSource(**({"tensor": tensor, "page_size": 1, "num_bytes_per_token": 32, "read_bytes": 32} | options))


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def plan_scene():
    inputs = PlanInputs(
        req_pool_indices=torch.tensor([1, 2]),
        prefix_lens=torch.tensor([3, 2]),
        extend_seq_lens=torch.tensor([1, 1]),
        req_to_token=torch.arange(12, dtype=torch.int32).reshape(3, 4),
        swa_window=2,
        full_to_swa=torch.arange(12),
        expected_tokens=torch.zeros(3, 4, dtype=torch.int32),
        expected_valid_lens=torch.tensor([3, 2]),
    )
    return PlanScene(inputs, poison(VerifyPlan.allocate(9)), poison(WritePlan.allocate(3)))


def launch():
    return Launch(
        buffer=torch.zeros(8, 32, dtype=torch.uint8),
        tag=LaunchTag.HEAD_K_FULL,
        ring=ViolationRing.allocate(4),
        counters=RunCounters.allocate(),
        sources=(source(),),
        hash_mode=RealKvHashMode.ALL,
        coverage=Coverage.allocate(8),
    )


def stamp_scene():
    plan = WritePlan(offsets=torch.tensor([0, 2, 3]), seed_slot_indices=torch.tensor([-1, 6]), num_valid_reqs=int32(2))
    tokens = torch.arange(3)
    return StampScene(
        launch(),
        plan,
        StampInputs(
            tokens=tokens,
            positions=tokens,
            slots=torch.tensor([1, 2, 3]),
            expected_tokens=tokens,
            expected_positions=tokens,
            position_assert=int32(1),
        ),
    )


def verify_scene():
    plan = sweep_plan(torch.tensor([1, 2, 0]), torch.tensor([0, 1, 2]), torch.tensor([-1, 1, 7]))
    return VerifyScene(launch(), plan, check_tokens=True)


def with_(scene, path, value):
    """The scene with one field replaced; path is dotted, value may be a function of the old one."""
    head, _, rest = path.partition(".")
    old = getattr(scene, head)
    if rest:
        return replace(scene, **{head: with_(old, rest, value)})
    return replace(scene, **{head: value(old) if callable(value) else value})


def longer(tensor):
    return torch.cat([tensor, tensor[:1]])


def strided(tensor):
    return torch.stack([tensor, tensor], dim=tensor.ndim).select(tensor.ndim, 0)


def set_at(index, value):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return change


def unaligned(old):
    storage = torch.zeros(8 * 48 + 8, dtype=torch.uint8)
    return (replace(old[0], tensor=storage[8:].as_strided((8, 32), (48, 1))),)


PLAN_CASES = [
    ("inputs.full_to_swa", None, "requires full_to_swa_index_mapping when swa_window_size > 0"),
    ("inputs.swa_window", -1, "inputs.swa_window must be non-negative, got -1"),
    ("inputs.expected_valid_lens", None, "requires req_to_verify_expected_tokens_valid_lens when req_to_verify_expected_tokens is set"),
    ("inputs.expected_tokens", None, "pass inputs.expected_tokens and inputs.expected_valid_lens together"),
    ("inputs.prefix_lens", longer, "inputs.prefix_lens length must be 2 (bs, as inputs.req_pool_indices has), got 3"),
    ("inputs.extend_seq_lens", longer, "inputs.extend_seq_lens length must be 2"),
    ("inputs.req_pool_indices", lambda t: t.int(), "inputs.req_pool_indices must have dtype torch.int64, got torch.int32"),
    ("inputs.req_to_token", lambda t: t.long(), "inputs.req_to_token must have dtype torch.int32, got torch.int64"),
    ("inputs.req_to_token", lambda t: t.flatten(), "inputs.req_to_token must be 2-D, got shape (12,)"),
    ("inputs.req_to_token", strided, "inputs.req_to_token must be contiguous, got strides (8, 2)"),
    ("inputs.prefix_lens", [3, 2], "inputs.prefix_lens must be a torch tensor, got list"),
    ("verify_plan.prev_slot_indices", longer, "verify_plan.prev_slot_indices length must be 9"),
    ("verify_plan.enable", longer, "verify_plan.enable length must be 1, got 2"),
    ("write_plan.offsets", longer, "write_offsets_len must equal write_req_capacity + 1, got 5 and 3"),
    ("write_plan", WritePlan.allocate(1), "bs=2 exceeds write_req_capacity=1"),
    ("inputs.req_pool_indices", set_at(0, 3), "inputs.req_pool_indices[0] must be in [0, 3), got 3"),
    ("inputs.req_pool_indices", set_at(1, -1), "inputs.req_pool_indices[1] must be in [0, 3), got -1"),
    ("inputs.prefix_lens", set_at(1, 5), "inputs.prefix_lens[1] must be in [0, 5), got 5; a row of inputs.req_to_token holds 4 tokens"),
    ("inputs.expected_tokens", lambda t: t[:, :2].contiguous(), "inputs.expected_valid_lens[0] must be in [0, 3), got 3"),
    ("inputs.full_to_swa", lambda t: t[:6], "SWA slot 6 is outside full_to_swa_index_mapping length 6"),
]
LAUNCH_CASES = [
    ("launch.buffer", torch.zeros(8, 24, dtype=torch.uint8), "slot_stride_bytes must hold at least 32 bytes per slot, got 24"),
    ("launch.buffer", torch.zeros(8, 36, dtype=torch.uint8), "launch.buffer must consist of aligned int64 fields, got a slot stride of 36"),
    ("launch.buffer", torch.zeros(8, 4, dtype=torch.int64), "launch.buffer must have dtype torch.uint8"),
    ("launch.buffer", strided, "launch.buffer must be contiguous"),
    ("launch.tag", 12, "launch.tag must be a LaunchTag in [0, 12), got 12"),
    ("launch.sources", lambda old: old * 5, "at most 4 RealKvSource entries supported by the CUDA ABI, got 5"),
    ("launch.sources", (source(7),), "launch.sources[0].tensor must cover every canary slot: 7 rows x page_size=1"),
    ("launch.sources", unaligned, "launch.sources[0].tensor must start at a multiple of 16 bytes"),
    ("launch.ring.rows", torch.zeros(4, 7, dtype=torch.int64), "ring.rows dimension 1 must be 8, got 7"),
    ("launch.ring.write_index", torch.zeros(1, dtype=torch.int64), "ring.write_index must have dtype torch.int32"),
    ("launch.counters.slot_runs", longer, "counters.slot_runs length must be 12, got 13"),
    ("launch.coverage.counts", longer, "coverage.counts length must be 6, got 7"),
    ("launch.coverage.slot_flags", longer, "coverage.slot_flags length must be 8 (num_slots, as launch.buffer has), got 9"),
]
STAMP_CASES = [
    *LAUNCH_CASES,
    ("inputs.expected_tokens", None, "expected input tensors are required when enable_write_input_assert=True"),
    ("inputs.expected_positions", None, "expected input tensors are required when enable_write_input_assert=True"),
    ("inputs.positions", longer, "inputs.positions length must be 3 (num_tokens, as inputs.tokens has), got 4"),
    ("inputs.position_assert", torch.ones(1), "inputs.position_assert must have dtype torch.int32, got torch.float32"),
    ("plan.offsets", longer, "write_offsets_len must equal write_req_capacity + 1, got 4 and 2"),
    ("plan.offsets", set_at(2, 4), "write_plan.offsets[2] must be in [0, 4), got 4; inputs.tokens has 3 tokens"),
    ("plan.offsets", set_at(0, -1), "write_plan.offsets[0] must be in [0, 4), got -1"),
    ("plan.offsets", set_at(1, 3), None),
    ("plan.offsets", torch.tensor([2, 1, 3]), "write_plan.offsets must not decrease"),
    ("inputs.slots", set_at(2, 8), "inputs.slots[2] must be below 8, got 8; launch.buffer has 8 slots"),
    ("plan.seed_slot_indices", set_at(1, 8), "write_plan.seed_slot_indices[1] must be below 8, got 8"),
]
VERIFY_CASES = [
    *LAUNCH_CASES,
    ("plan.expected_positions", longer, "verify_plan.expected_positions length must be 3 (verify_capacity, as verify_plan.slot_indices"),
    ("plan.num_valid", torch.tensor([3]), "verify_plan.num_valid must have dtype torch.int32, got torch.int64"),
    ("plan.slot_indices", set_at(1, 8), "verify_plan.slot_indices[1] must be in [0, 8), got 8; launch.buffer has 8 slots"),
    ("plan.slot_indices", set_at(0, -1), "verify_plan.slot_indices[0] must be in [0, 8), got -1"),
    ("plan.prev_slot_indices", set_at(1, 9), "verify_plan.prev_slot_indices[1] must be below 8, got 9"),
    ("plan.prev_slot_indices", set_at(2, 9), None),
]
CASES = [
    (build, *case)
    for build, cases in ((plan_scene, PLAN_CASES), (stamp_scene, STAMP_CASES), (verify_scene, VERIFY_CASES))
    for case in cases
]


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
@pytest.mark.parametrize(("build", "path", "value", "message"), CASES, ids=[f"{case[0].__name__}-{case[1]}-{case[3]}" for case in CASES])
def test_a_broken_field_is_named_and_nothing_is_written(backend_name, build, path, value, message):
    scene = with_(build(), path, value)
    before = clone(scene) if not isinstance(value, list) else None
    if message is None:
        scene.run(get_backend(backend_name))
        return
    with pytest.raises(ContractError, match=f"^kv-canary: .*{re.escape(message)}"):
        scene.run(get_backend(backend_name))
    if before is not None:
        untouched = tensors_of(before)
        assert all(torch.equal(tensor, untouched[name]) for name, tensor in tensors_of(scene).items())


@pytest.mark.parametrize("build", [plan_scene, stamp_scene, verify_scene])
@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
def test_the_unbroken_scene_runs(backend_name, build):
    build().run(get_backend(backend_name))


@pytest.mark.parametrize("build", [plan_scene, stamp_scene, verify_scene])
def test_devices_must_agree(build):
    scene = build()
    path = "inputs.prefix_lens" if build is plan_scene else "launch.ring.rows"
    with pytest.raises(ContractError, match=r"must be on .*'s device cpu, got meta"):
        with_(scene, path, lambda tensor: tensor.to("meta")).run(get_backend("reference"))


def test_numba_refuses_other_devices():
    scene = plan_scene()
    scene = PlanScene(*(to_meta(part) for part in (scene.inputs, scene.verify_plan, scene.write_plan)))
    with pytest.raises(ContractError, match="numba backend works on cpu tensors, got meta"):
        scene.run(get_backend("numba"))


def to_meta(part):
    return replace(part, **{name: tensor.to("meta") for name, tensor in tensors_of(part).items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 0}, "page_size must be >= 1, got 0"),
        ({"num_bytes_per_token": 24}, "num_bytes_per_token must be a positive multiple of 16, got 24"),
        ({"num_bytes_per_token": 0}, "num_bytes_per_token must be a positive multiple of 16, got 0"),
        ({"read_bytes": 8}, "read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token=32], got 8"),
        ({"read_bytes": 48}, "read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token=32], got 48"),
        ({"tensor": torch.zeros(8, 32)}, "tensor must be uint8"),
        ({"tensor": torch.zeros(8, dtype=torch.uint8)}, "tensor must be uint8 [rows, row_bytes]"),
        ({"tensor": torch.zeros(8, 40, dtype=torch.uint8)}, "row stride must be a multiple of 16 bytes"),
        ({"tensor": torch.zeros(32, 8, dtype=torch.uint8).T}, "contiguous rows"),
        ({"page_size": 2}, "tensor row is 32 bytes wide but page_size=2 x num_bytes_per_token=32 needs 64"),
        ({"page_size": 0, "read_bytes": 8}, "page_size must be >= 1"),
    ],
)
def test_real_kv_source_rules_in_sglangs_order(change, message):
    with pytest.raises(ContractError, match=re.escape(message)):
        source(**change)


@pytest.mark.parametrize(
    ("allocate", "message"),
    [
        (VerifyPlan.allocate, "kv-canary: VerifyPlan verify_capacity must be positive, got 0"),
        (WritePlan.allocate, "kv-canary: WritePlan write_req_capacity must be positive, got 0"),
        (ViolationRing.allocate, "kv-canary: ViolationLog ring_capacity must be positive, got 0"),
    ],
)
def test_nothing_of_size_zero_is_allocated(allocate, message):
    with pytest.raises(ContractError, match=f"^{message}$"):
        allocate(0)
