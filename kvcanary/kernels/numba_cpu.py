"""plan, stamp and verify on the CPU with numba: the product path where there is no GPU."""

from __future__ import annotations

import numpy as np
import torch

from kvcanary import layout
from kvcanary.errors import ContractError
from kvcanary.kernels import contract, numba_kernels
from kvcanary.kernels.types import COVERAGE_FIELDS, Availability, Coverage, Launch, PlanInputs, StampInputs, VerifyPlan, WritePlan
from kvcanary.layout import RealKvHashMode

_NO_INT64 = np.empty(0, dtype=np.int64)
_NO_UINT8 = np.empty(0, dtype=np.uint8)


class NumbaBackend:
    """Compiled loops over numpy views of CPU tensors; see Backend for the contract of each method."""

    name = "numba"

    def available(self) -> Availability:
        """Always, once this module could be imported."""
        return Availability(ok=True, reason="compiled loops on the CPU")

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans; requests are independent once the offsets are known."""
        contract.check_plan(inputs, verify_plan, write_plan)
        _require_cpu(verify_plan.slot_indices)
        contract.check_plan_values(inputs)
        rows, prefix = inputs.req_pool_indices.numpy(), inputs.prefix_lens.numpy()
        batch_size, capacity = rows.shape[0], verify_plan.slot_indices.shape[0]
        active = rows != layout.PADDING_ROW
        lengths = np.where(active, np.maximum(prefix, 0), 0)
        if inputs.swa_window > 0:
            lengths = np.minimum(lengths, inputs.swa_window)
        starts = np.zeros(batch_size + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        total = int(starts[-1])
        verify_plan.num_valid[0] = min(total, capacity)
        verify_plan.enable[0] = int(total <= capacity)
        if total <= capacity:
            numba_kernels.plan_entries(
                rows,
                prefix,
                inputs.req_to_token.numpy(),
                inputs.swa_window,
                _int64(inputs.full_to_swa),
                np.empty((0, 0), dtype=np.int32) if inputs.expected_tokens is None else inputs.expected_tokens.numpy(),
                _int64(inputs.expected_valid_lens),
                inputs.token_offset,
                starts,
                0,
                batch_size,
                verify_plan.slot_indices.numpy(),
                verify_plan.expected_tokens.numpy(),
                verify_plan.expected_positions.numpy(),
                verify_plan.prev_slot_indices.numpy(),
            )
        _fill_write_plan(inputs, write_plan, active)

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Write the records of this forward."""
        contract.check_stamp(launch, plan, inputs)
        _require_cpu(launch.buffer)
        contract.check_stamp_values(launch, plan, inputs)
        launch.counters.kernel_runs[launch.tag] += 1
        num_requests = contract.active_count(plan.num_valid_reqs, plan.seed_slot_indices)
        stamped, skipped = numba_kernels.stamp_serial(
            _records(launch),
            plan.offsets.numpy(),
            plan.seed_slot_indices[:num_requests].numpy(),
            inputs.tokens.numpy(),
            inputs.positions.numpy(),
            inputs.slots.numpy(),
            _source_table(launch),
            _int64(inputs.expected_tokens),
            _int64(inputs.expected_positions),
            inputs.position_assert is not None and bool(inputs.position_assert[0]),
            int(launch.tag),
            launch.ring.rows.numpy(),
            launch.ring.write_index.numpy(),
            _slot_flags(launch),
        )
        launch.counters.slot_runs[launch.tag] += stamped
        _cover(launch.coverage, stamped=stamped, skipped_negative=skipped)

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check the active entries; reads the buffer and never writes it."""
        contract.check_verify(launch, plan)
        _require_cpu(launch.buffer)
        contract.check_verify_values(launch, plan)
        launch.counters.kernel_runs[launch.tag] += 1
        active = contract.active_count(plan.num_valid, plan.slot_indices)
        if int(plan.enable[0]) == 0:
            _cover(launch.coverage, skipped_disabled=active)
            return
        launch.counters.slot_runs[launch.tag] += active
        padding, unlinked = numba_kernels.verify_range(
            _records(launch),
            0,
            active,
            plan.slot_indices.numpy(),
            plan.expected_tokens.numpy(),
            plan.expected_positions.numpy(),
            plan.prev_slot_indices.numpy(),
            check_tokens,
            _source_table(launch),
            int(launch.tag),
            launch.ring.rows.numpy(),
            launch.ring.write_index.numpy(),
            _slot_flags(launch),
        )
        _cover(launch.coverage, verified=active - padding, skipped_padding=padding, unlinked=unlinked)


def _require_cpu(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ContractError(f"kv-canary: the numba backend works on cpu tensors, got {tensor.device}; choose backend 'torch' or 'auto'")


def _int64(tensor: torch.Tensor | None) -> np.ndarray:
    return _NO_INT64 if tensor is None else tensor.numpy()


def _records(launch: Launch) -> np.ndarray:
    """The canary buffer as uint64 [num_slots, stride // 8]."""
    return launch.buffer.numpy().view(np.uint64)


def _slot_flags(launch: Launch) -> np.ndarray:
    flags = None if launch.coverage is None else launch.coverage.slot_flags
    return _NO_UINT8 if flags is None else flags.numpy()


def _source_table(launch: Launch) -> np.ndarray:
    """int64 [number of hashed sources, len(SOURCE_FIELDS)]; empty when nothing is hashed."""
    partial = launch.hash_mode == RealKvHashMode.PARTIAL
    sources = () if launch.hash_mode == RealKvHashMode.NONE else launch.sources
    table = np.empty((len(sources), len(numba_kernels.SOURCE_FIELDS)), dtype=np.int64)
    for row, source in zip(table, sources, strict=True):
        num_bytes = layout.PARTIAL_BYTES if partial else source.read_bytes
        row[:] = source.tensor.data_ptr(), source.tensor.stride(0), source.page_size, source.num_bytes_per_token, num_bytes // 8
    return table


def _fill_write_plan(inputs: PlanInputs, write_plan: WritePlan, active: np.ndarray) -> None:
    batch_size = active.shape[0]
    extend = np.where(active, np.maximum(inputs.extend_seq_lens.numpy(), 0), 0)
    offsets, seeds = write_plan.offsets.numpy(), write_plan.seed_slot_indices.numpy()
    offsets[0], offsets[batch_size + 1 :] = 0, 0
    np.cumsum(extend, out=offsets[1 : batch_size + 1])
    prefix = inputs.prefix_lens.numpy()
    has_seed = (extend > 0) & (prefix > 0)
    rows = inputs.req_pool_indices.numpy()[has_seed]
    cells = inputs.req_to_token.numpy()[rows, prefix[has_seed] - 1].astype(np.int64)
    if inputs.full_to_swa is not None:
        cells = np.where(cells < 0, cells, inputs.full_to_swa.numpy()[np.maximum(cells, 0)])
    seeds[:batch_size] = layout.CHAIN_HEAD
    seeds[:batch_size][has_seed] = cells
    write_plan.num_valid_reqs[0] = batch_size


def _cover(coverage: Coverage | None, **counts: int) -> None:
    if coverage is not None:
        for name, count in counts.items():
            coverage.counts[COVERAGE_FIELDS.index(name)] += count
