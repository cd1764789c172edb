"""plan, stamp and verify as Triton kernels: the product path on CUDA and ROCm, one source for both.

A launch reads nothing back to the host and allocates nothing that it has not allocated before, so it can be captured in a CUDA graph.
Illegal values can therefore not raise: an index outside its tensor is never dereferenced and reads as zero, which verify reports.
Launches of one backend object share scratch memory and must be ordered on one stream, as SGLang orders them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton

from kvcanary.errors import BackendUnavailableError
from kvcanary.kernels import contract
from kvcanary.kernels.triton_ops import plan as plan_op
from kvcanary.kernels.triton_ops import stamp as stamp_op
from kvcanary.kernels.triton_ops import verify as verify_op
from kvcanary.kernels.types import (
    Availability,
    Coverage,
    Launch,
    PlanInputs,
    RunCounters,
    StampInputs,
    VerifyPlan,
    ViolationRing,
    WritePlan,
)
from kvcanary.layout import MAX_REAL_KV_SOURCES, PARTIAL_BYTES, REAL_KV_ALIGNMENT, SLOT_BYTES, LaunchTag, RealKvHashMode

SCAN_BLOCK = 1024
ENTRY_BLOCK = 128
TOKEN_BLOCK = 128
"""Requests per step of the plan's scan, verify entries per program, and tokens per program of the real-KV fold."""


class TritonBackend:
    """Triton kernels over CUDA or ROCm tensors; over CPU tensors in Triton's interpreter, for tests. See Backend for the contract."""

    name = "triton"

    def __init__(self) -> None:
        self._entry_starts: dict[tuple[torch.device, int], torch.Tensor] = {}

    def available(self) -> Availability:
        """Whether torch sees a CUDA or ROCm device, or Triton interprets its kernels."""
        if triton.knobs.runtime.interpret:
            return Availability(ok=True, reason=f"triton {triton.__version__} in its interpreter, for checking and not for speed")
        if not torch.cuda.is_available():
            return Availability(ok=False, reason=f"torch {torch.__version__} sees no CUDA or ROCm device")
        runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return Availability(ok=True, reason=f"triton {triton.__version__} on {torch.cuda.get_device_name()}, {runtime}")

    def prepare(self) -> None:
        """Compile every kernel for the current device, or load it from Triton's disk cache: seconds the first time."""
        _exercise(self, "cpu" if triton.knobs.runtime.interpret else "cuda")

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans; layouts are checked, values are not, because that would wait for the device."""
        contract.check_plan(inputs, verify_plan, write_plan)
        batch_size, verify_capacity = inputs.req_pool_indices.shape[0], verify_plan.slot_indices.shape[0]
        write_capacity = write_plan.seed_slot_indices.shape[0]
        entry_starts = self._scratch(inputs.req_pool_indices.device, write_capacity + 1)
        # A tensor that is not there is replaced by another one; the kernel's flags keep it from being read.
        lut = inputs.req_pool_indices if inputs.full_to_swa is None else inputs.full_to_swa
        oracle = inputs.req_to_token if inputs.expected_tokens is None else inputs.expected_tokens
        valid_lens = inputs.prefix_lens if inputs.expected_valid_lens is None else inputs.expected_valid_lens
        has_lut, has_oracle = inputs.full_to_swa is not None, inputs.expected_tokens is not None
        table = (inputs.req_to_token, *inputs.req_to_token.shape, lut, lut.shape[0], inputs.swa_window)
        with _on(inputs.req_pool_indices):
            plan_op.plan_offsets[(1,)](
                inputs.req_pool_indices, inputs.prefix_lens, inputs.extend_seq_lens, batch_size, *table,
                entry_starts, verify_plan.num_valid, verify_plan.enable, verify_capacity,
                write_plan.offsets, write_plan.seed_slot_indices, write_plan.num_valid_reqs, write_capacity,
                HAS_LUT=has_lut, BLOCK=SCAN_BLOCK, num_warps=4,
            )  # fmt: skip
            if batch_size:
                plan_op.plan_entries[(triton.cdiv(verify_capacity, ENTRY_BLOCK),)](
                    inputs.req_pool_indices, inputs.prefix_lens, batch_size, batch_size.bit_length(), *table,
                    oracle, oracle.shape[1], valid_lens, inputs.token_offset, entry_starts, verify_capacity,
                    verify_plan.slot_indices, verify_plan.expected_tokens, verify_plan.expected_positions, verify_plan.prev_slot_indices,
                    HAS_LUT=has_lut, HAS_ORACLE=has_oracle, BLOCK=ENTRY_BLOCK, num_warps=4,
                )  # fmt: skip

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Fold the real KV of all tokens in parallel, and walk the chains with one lane per request."""
        contract.check_stamp(launch, plan, inputs)
        num_tokens, request_capacity = inputs.slots.shape[0], plan.seed_slot_indices.shape[0]
        sources, pages = _source_arguments(launch)
        requests = (plan.offsets, plan.seed_slot_indices, plan.num_valid_reqs, request_capacity)
        expected_tokens = inputs.tokens if inputs.expected_tokens is None else inputs.expected_tokens
        expected_positions = inputs.positions if inputs.expected_positions is None else inputs.expected_positions
        position_assert = plan.num_valid_reqs if inputs.position_assert is None else inputs.position_assert
        lanes = 64 if torch.version.hip else 32
        with _on(launch.buffer):
            if pages["NUM_SOURCES"] and num_tokens:
                stamp_op.fold_tokens[(triton.cdiv(num_tokens, TOKEN_BLOCK),)](
                    *_record_arguments(launch), plan.offsets, plan.num_valid_reqs, request_capacity, inputs.slots, num_tokens,
                    *sources, **pages, BLOCK=TOKEN_BLOCK, num_warps=4,
                )  # fmt: skip
            stamp_op.walk_chains[(triton.cdiv(request_capacity, lanes),)](
                *_record_arguments(launch), *_report_arguments(launch), *requests,
                inputs.tokens, inputs.positions, inputs.slots, num_tokens, expected_tokens, expected_positions, position_assert,
                STORE_NO_HASH=not pages["NUM_SOURCES"], HAS_EXPECTED=inputs.expected_tokens is not None,
                HAS_POSITION_ASSERT=inputs.position_assert is not None, **_coverage_flags(launch), LANES=lanes, num_warps=1,
            )  # fmt: skip

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check all entries in parallel; reads the buffer and never writes it."""
        contract.check_verify(launch, plan)
        sources, pages = _source_arguments(launch)
        capacity = plan.slot_indices.shape[0]
        with _on(launch.buffer):
            verify_op.verify_entries[(max(1, triton.cdiv(capacity, ENTRY_BLOCK)),)](
                *_record_arguments(launch), *_report_arguments(launch),
                plan.slot_indices, plan.expected_tokens, plan.expected_positions, plan.prev_slot_indices,
                plan.num_valid, plan.enable, capacity, *sources, **pages,
                CHECK_TOKENS=check_tokens, **_coverage_flags(launch), BLOCK=ENTRY_BLOCK, num_warps=4,
            )  # fmt: skip

    def _scratch(self, device: torch.device, length: int) -> torch.Tensor:
        """int64 [length], allocated once for each device and plan capacity."""
        key = device, length
        if key not in self._entry_starts:
            self._entry_starts[key] = torch.empty(length, dtype=torch.int64, device=device)
        return self._entry_starts[key]


def _on(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the current one, which is where Triton launches."""
    if tensor.device.type == "cuda":
        return torch.cuda.device(tensor.device)
    if not triton.knobs.runtime.interpret:
        raise BackendUnavailableError(f"backend 'triton' takes tensors on a CUDA or ROCm device, got {tensor.device}; use --backend auto")
    return nullcontext()


def _record_arguments(launch: Launch) -> tuple[object, ...]:
    """The canary buffer as int64, words per slot, slots."""
    return launch.buffer.view(torch.int64), launch.buffer.shape[1] // 8, launch.buffer.shape[0]


def _report_arguments(launch: Launch) -> tuple[object, ...]:
    ring, counters, coverage = launch.ring, launch.counters, launch.coverage
    counts = counters.slot_runs if coverage is None else coverage.counts
    flags = launch.buffer if coverage is None or coverage.slot_flags is None else coverage.slot_flags
    return int(launch.tag), ring.rows, ring.write_index, ring.rows.shape[0], counters.kernel_runs, counters.slot_runs, counts, flags


def _coverage_flags(launch: Launch) -> dict[str, bool]:
    coverage = launch.coverage
    return {"HAS_COVERAGE": coverage is not None, "HAS_FLAGS": coverage is not None and coverage.slot_flags is not None}


def _source_arguments(launch: Launch) -> tuple[list[object], dict[str, int]]:
    """Four groups (words, units per row, units per token, units hashed), a unit being 16 bytes, and the constants that go with them."""
    hashed = () if launch.hash_mode == RealKvHashMode.NONE else launch.sources
    arguments: list[object] = []
    constants = {"NUM_SOURCES": len(hashed)}
    for index in range(MAX_REAL_KV_SOURCES):
        if index >= len(hashed):
            arguments += [launch.counters.slot_runs, 0, 0, 0]
            constants[f"PAGE_{index}"] = 1
            continue
        source = hashed[index]
        num_bytes = PARTIAL_BYTES if launch.hash_mode == RealKvHashMode.PARTIAL else source.read_bytes
        units = [size // REAL_KV_ALIGNMENT for size in (source.tensor.stride(0), source.num_bytes_per_token, num_bytes)]
        # Kernels step rows by their stride, so the words of one row stand for the whole strided tensor.
        arguments += [source.tensor[0, :REAL_KV_ALIGNMENT].view(torch.int64), *units]
        constants[f"PAGE_{index}"] = source.page_size
    return arguments, constants


def _exercise(backend: TritonBackend, device: str) -> None:
    """Run each op once on a pool of two slots, with and without the optional parts that change a kernel."""
    inputs = PlanInputs(
        req_pool_indices=torch.ones(1, dtype=torch.int64, device=device),
        prefix_lens=torch.ones(1, dtype=torch.int64, device=device),
        extend_seq_lens=torch.ones(1, dtype=torch.int64, device=device),
        req_to_token=torch.ones((2, 2), dtype=torch.int32, device=device),
    )
    verify_plan, write_plan = VerifyPlan.allocate(1, device=device), WritePlan.allocate(1, device=device)
    backend.plan(inputs, verify_plan, write_plan)
    ones = torch.ones(1, dtype=torch.int64, device=device)
    for coverage in (None, Coverage.allocate(2, device=device)):
        launch = Launch(
            buffer=torch.zeros((2, SLOT_BYTES), dtype=torch.uint8, device=device),
            tag=LaunchTag.HEAD_K_FULL,
            ring=ViolationRing.allocate(4, device=device),
            counters=RunCounters.allocate(device=device),
            coverage=coverage,
        )
        backend.stamp(launch, write_plan, StampInputs(tokens=ones, positions=ones, slots=ones))
        backend.verify(launch, verify_plan)
