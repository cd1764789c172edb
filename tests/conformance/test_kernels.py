"""plan, stamp and verify of every backend against the torch reference that SGLang ships, byte for byte."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings

from kvcanary import layout
from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
from tests.conformance.sglang_wheel import WheelUnavailable, load_kernel
from tests.kernels.scenes import clone, plan_scenes, stamp_scenes, tensors_of, verify_scenes

CASES = settings(max_examples=60)


@pytest.fixture(scope="module")
def sglang() -> SimpleNamespace:
    try:
        return SimpleNamespace(**{name: load_kernel(name) for name in ("consts", "verify", "write", "plan_ref", "write_ref", "verify_ref")})
    except WheelUnavailable as error:
        pytest.skip(str(error))


def sglang_plans(sglang, verify_plan, write_plan):
    """SGLang's plan objects over our tensors: what it writes, we see."""
    verify = write = None
    if verify_plan is not None:
        verify = sglang.verify.VerifyPlan(
            verify_slot_indices=verify_plan.slot_indices,
            verify_expected_tokens=verify_plan.expected_tokens,
            verify_expected_positions=verify_plan.expected_positions,
            verify_prev_slot_indices=verify_plan.prev_slot_indices,
            verify_num_valid=verify_plan.num_valid,
            enable=verify_plan.enable,
        )
    if write_plan is not None:
        write = sglang.write.WritePlan(
            write_offsets=write_plan.offsets,
            write_seed_slot_indices=write_plan.seed_slot_indices,
            write_num_valid_reqs=write_plan.num_valid_reqs,
        )
    return verify, write


def sglang_context(sglang, launch, position_assert=None):
    tag = slice(launch.tag, launch.tag + 1)
    return sglang.verify.VerifyOrWriteContext(
        canary_buf=launch.buffer,
        kernel_kind=sglang.verify.CanaryLaunchTag(int(launch.tag)),
        violation_ring=launch.ring.rows,
        violation_write_index=launch.ring.write_index,
        slot_run_counter=launch.counters.slot_runs[tag],
        kernel_run_counter=launch.counters.kernel_runs[tag],
        real_kv_sources=tuple(
            sglang.verify.RealKvSource(
                tensor=source.tensor,
                page_size=source.page_size,
                num_bytes_per_token=source.num_bytes_per_token,
                read_bytes=source.read_bytes,
            )
            for source in launch.sources
        ),
        real_kv_hash_mode=sglang.consts.RealKvHashMode(int(launch.hash_mode)),
        enable_chain_position_assert=torch.zeros(1, dtype=torch.int32) if position_assert is None else position_assert,
    )


def run_sglang_plan(sglang, scene) -> None:
    verify_plan, write_plan = sglang_plans(sglang, scene.verify_plan, scene.write_plan)
    inputs = scene.inputs
    sglang.plan_ref.launch_canary_plan_kernels_torch_reference(
        verify_plan_out=verify_plan,
        write_plan_out=write_plan,
        req_pool_indices=inputs.req_pool_indices,
        prefix_lens=inputs.prefix_lens,
        extend_seq_lens=inputs.extend_seq_lens,
        req_to_token=inputs.req_to_token,
        swa_window_size=inputs.swa_window,
        full_to_swa_index_mapping=inputs.full_to_swa,
        verify_capacity=scene.verify_plan.slot_indices.shape[0],
        req_to_verify_expected_tokens=inputs.expected_tokens,
        req_to_verify_expected_tokens_valid_lens=inputs.expected_valid_lens,
        kv_token_id_vs_position_offset=inputs.token_offset,
    )


def run_sglang_stamp(sglang, scene) -> None:
    inputs = scene.inputs
    sglang.write_ref.launch_canary_write_kernel_torch_reference(
        context=sglang_context(sglang, scene.launch, inputs.position_assert),
        plan=sglang_plans(sglang, None, scene.plan)[1],
        input_ids=inputs.tokens,
        positions=inputs.positions,
        out_cache_loc=inputs.slots,
        enable_write_input_assert=inputs.expected_tokens is not None,
        expected_input_tokens=inputs.expected_tokens,
        expected_input_positions=inputs.expected_positions,
    )


def run_sglang_verify(sglang, scene) -> None:
    sglang.verify_ref.launch_canary_verify_kernel_torch_reference(
        context=sglang_context(sglang, scene.launch),
        plan=sglang_plans(sglang, scene.plan, None)[0],
        check_verify_expected_token=scene.check_tokens,
    )


def assert_equal_to_sglang(scene, run_sglang, backend_name) -> None:
    """Everything both of them know; coverage is ours alone."""
    theirs, ours = clone(scene), clone(scene)
    run_sglang(theirs)
    ours.run(get_backend(backend_name))
    got = tensors_of(ours)
    for name, wanted in tensors_of(theirs).items():
        if ".coverage." not in name:
            assert torch.equal(got[name], wanted), f"{name}: SGLang {wanted.tolist()}, {backend_name} {got[name].tolist()}"


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
@CASES
@given(scene=plan_scenes())
def test_plan_equals_sglang(sglang, backend_name, scene):
    assert_equal_to_sglang(scene, lambda copy: run_sglang_plan(sglang, copy), backend_name)


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
@CASES
@given(scene=stamp_scenes(wrapping=False))
def test_stamp_equals_sglang(sglang, backend_name, scene):
    """SGLang's reference adds 1 to a position in Python and cannot store the result when it wraps; its CUDA kernel and we do."""
    assert_equal_to_sglang(scene, lambda copy: run_sglang_stamp(sglang, copy), backend_name)


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
@CASES
@given(scene=verify_scenes())
def test_verify_equals_sglang(sglang, backend_name, scene):
    assert_equal_to_sglang(scene, lambda copy: run_sglang_verify(sglang, copy), backend_name)


def test_constants_equal_sglang(sglang):
    consts = sglang.consts
    assert consts.CANARY_CHAIN_ANCHOR == layout.CHAIN_ANCHOR
    assert consts.TOKEN_TO_KV_SLOT_PADDING == layout.PADDING_SLOT
    assert consts.REQ_POOL_IDX_PADDING == layout.PADDING_ROW
    assert consts.MAX_REAL_KV_SOURCES == layout.MAX_REAL_KV_SOURCES
    assert {reason.name.removesuffix("_MISMATCH"): int(reason) for reason in consts.FailReason} == {
        reason.name: int(reason) for reason in layout.FailReason
    }
    assert {mode.name: int(mode) for mode in consts.RealKvHashMode} == {mode.name: int(mode) for mode in layout.RealKvHashMode}
    assert {tag.name: int(tag) for tag in sglang.verify.CanaryLaunchTag} == {tag.name: int(tag) for tag in layout.LaunchTag}


@pytest.mark.parametrize("field", [*layout.SLOT_FIELDS])
def test_slot_field_order_equals_sglang(sglang, field):
    assert getattr(sglang.consts, f"CANARY_FIELD_{field.upper()}") == layout.SLOT_FIELDS.index(field)


@pytest.mark.parametrize("field", [*layout.RING_FIELDS])
def test_ring_field_order_equals_sglang(sglang, field):
    assert getattr(sglang.consts, f"VIOLATION_FIELD_{field.upper()}") == layout.RING_FIELDS.index(field)
