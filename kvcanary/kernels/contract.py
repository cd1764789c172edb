"""What the canary ops demand of their tensors: one declaration per op, shared by every backend.

Shapes name their dimensions, and a name that stands on several tensors must have one size. Layout checks read no tensor data, so they
cost no device synchronisation. The value checks at the end do read data; backends that can afford it run them before anything is
written, so that a ContractError leaves every output untouched. Sentences that SGLang 0.5.23 has are spelled as SGLang spells them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvcanary import layout
from kvcanary.errors import ContractError
from kvcanary.kernels.types import Launch, PlanInputs, StampInputs, VerifyPlan, WritePlan

Dim = str | int

_MAX_SLOTS = 1 << 31


class TensorRule(NamedTuple):
    """One tensor of an op: its name `owner.field`, its dtype, and its dimensions by name or exact size."""

    name: str
    owner: str
    field: str
    dtype: torch.dtype
    shape: tuple[Dim, ...]
    optional: bool


def _rule(name: str, dtype: torch.dtype, *shape: Dim, optional: bool = False) -> TensorRule:
    owner, field = name.split(".")
    return TensorRule(name, owner, field, dtype, shape, optional)


_VERIFY_PLAN = (
    _rule("verify_plan.slot_indices", torch.int64, "verify_capacity"),
    _rule("verify_plan.expected_tokens", torch.int64, "verify_capacity"),
    _rule("verify_plan.expected_positions", torch.int64, "verify_capacity"),
    _rule("verify_plan.prev_slot_indices", torch.int64, "verify_capacity"),
    _rule("verify_plan.num_valid", torch.int32, 1),
    _rule("verify_plan.enable", torch.int32, 1),
)
_WRITE_PLAN = (
    _rule("write_plan.seed_slot_indices", torch.int64, "write_req_capacity"),
    _rule("write_plan.offsets", torch.int64, "write_offsets_len"),
    _rule("write_plan.num_valid_reqs", torch.int32, 1),
)
_LAUNCH = (
    _rule("launch.buffer", torch.uint8, "num_slots", "slot_stride_bytes"),
    _rule("ring.rows", torch.int64, "ring_capacity", len(layout.RING_FIELDS)),
    _rule("ring.write_index", torch.int32, 1),
    _rule("counters.kernel_runs", torch.int64, layout.NUM_TAGS),
    _rule("counters.slot_runs", torch.int64, layout.NUM_TAGS),
    _rule("coverage.counts", torch.int64, 6, optional=True),
    _rule("coverage.slot_flags", torch.uint8, "num_slots", optional=True),
)

PLAN_RULES = (
    _rule("inputs.req_pool_indices", torch.int64, "bs"),
    _rule("inputs.prefix_lens", torch.int64, "bs"),
    _rule("inputs.extend_seq_lens", torch.int64, "bs"),
    _rule("inputs.req_to_token", torch.int32, "max_reqs", "max_seq_len"),
    _rule("inputs.full_to_swa", torch.int64, "lut_len", optional=True),
    _rule("inputs.expected_tokens", torch.int32, "max_reqs", "max_context_len", optional=True),
    _rule("inputs.expected_valid_lens", torch.int64, "bs", optional=True),
    *_VERIFY_PLAN,
    *_WRITE_PLAN,
)
STAMP_RULES = (
    *_LAUNCH,
    *_WRITE_PLAN,
    _rule("inputs.tokens", torch.int64, "num_tokens"),
    _rule("inputs.positions", torch.int64, "num_tokens"),
    _rule("inputs.slots", torch.int64, "num_tokens"),
    _rule("inputs.expected_tokens", torch.int64, "num_tokens", optional=True),
    _rule("inputs.expected_positions", torch.int64, "num_tokens", optional=True),
    _rule("inputs.position_assert", torch.int32, 1, optional=True),
)
VERIFY_RULES = (*_LAUNCH, *_VERIFY_PLAN)


def check_plan(inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
    """Layout of the plan op; ContractError names the first field that breaks its rule."""
    if inputs.swa_window > 0 and inputs.full_to_swa is None:
        raise ContractError(
            "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0; "
            f"inputs.swa_window={inputs.swa_window} came without inputs.full_to_swa"
        )
    if inputs.swa_window < 0:
        raise ContractError(f"kv-canary: inputs.swa_window must be non-negative, got {inputs.swa_window}; 0 means a FULL group")
    if (inputs.expected_tokens is None) != (inputs.expected_valid_lens is None):
        raise ContractError(
            "kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens when "
            "req_to_verify_expected_tokens is set; pass inputs.expected_tokens and inputs.expected_valid_lens together"
        )
    sizes = _match(PLAN_RULES, {"inputs": inputs, "verify_plan": verify_plan, "write_plan": write_plan})
    _require_offsets_len(sizes)
    if sizes["bs"] > sizes["write_req_capacity"]:
        raise ContractError(
            f"kv-canary: bs={sizes['bs']} exceeds write_req_capacity={sizes['write_req_capacity']}; allocate a larger WritePlan"
        )


def check_stamp(launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
    """Layout of the stamp op; ContractError names the first field that breaks its rule."""
    if (inputs.expected_tokens is None) != (inputs.expected_positions is None):
        raise ContractError(
            "kv-canary: expected input tensors are required when enable_write_input_assert=True; "
            "pass inputs.expected_tokens and inputs.expected_positions together"
        )
    sizes = _match(STAMP_RULES, {**_launch_owners(launch), "write_plan": plan, "inputs": inputs})
    _require_offsets_len(sizes)
    _require_launch(launch, sizes)


def check_verify(launch: Launch, plan: VerifyPlan) -> None:
    """Layout of the verify op; ContractError names the first field that breaks its rule."""
    sizes = _match(VERIFY_RULES, {**_launch_owners(launch), "verify_plan": plan})
    _require_launch(launch, sizes)


def check_plan_values(inputs: PlanInputs) -> None:
    """Rows, prefixes and table cells that the plan would read out of bounds; ContractError names the first one."""
    rows, row_len = inputs.req_to_token.shape
    active = inputs.req_pool_indices != layout.PADDING_ROW
    row_index = inputs.req_pool_indices.where(active, 0)
    prefix = inputs.prefix_lens.where(active, 0)
    _require_range("inputs.req_pool_indices", row_index, 0, rows, f"inputs.req_to_token has {rows} rows")
    _require_range("inputs.prefix_lens", prefix.clamp(min=0), 0, row_len + 1, f"a row of inputs.req_to_token holds {row_len} tokens")
    if inputs.expected_tokens is not None and inputs.expected_valid_lens is not None:
        last = torch.minimum(prefix + inputs.token_offset, inputs.expected_valid_lens.where(active, 0))
        last = last.where(prefix > 0, 0).clamp(min=0)
        width = inputs.expected_tokens.shape[1]
        _require_range(
            "inputs.expected_valid_lens", last, 0, width + 1, f"a row of inputs.expected_tokens holds {width} tokens, longest read shown"
        )
    _require_lut(inputs)


def check_stamp_values(launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
    """Offsets, slots and seeds that the stamp would read or write out of bounds; ContractError names the first one."""
    active = active_count(plan.num_valid_reqs, plan.seed_slot_indices)
    offsets = plan.offsets[: active + 1]
    num_tokens, num_slots = inputs.slots.shape[0], launch.buffer.shape[0]
    if active == 0:
        return
    _require_range("write_plan.offsets", offsets, 0, num_tokens + 1, f"inputs.tokens has {num_tokens} tokens")
    if bool((offsets[1:] < offsets[:-1]).any()):
        raise ContractError("kv-canary: write_plan.offsets must not decrease; they are the exclusive prefix sums of extend_seq_lens")
    why = f"launch.buffer has {num_slots} slots"
    first, last = int(offsets[0]), int(offsets[-1])
    _require_range("inputs.slots", inputs.slots[first:last], None, num_slots, why, base=first)
    seeds = plan.seed_slot_indices[:active].where(offsets[1:] > offsets[:-1], layout.CHAIN_HEAD)
    _require_range("write_plan.seed_slot_indices", seeds, None, num_slots, why)


def check_verify_values(launch: Launch, plan: VerifyPlan) -> None:
    """Slots that verify would read out of bounds; ContractError names the first one. An entry at slot 0 is never read."""
    if int(plan.enable) == 0:
        return
    active, num_slots = active_count(plan.num_valid, plan.slot_indices), launch.buffer.shape[0]
    why = f"launch.buffer has {num_slots} slots"
    slots, prevs = plan.slot_indices[:active], plan.prev_slot_indices[:active]
    _require_range("verify_plan.slot_indices", slots, 0, num_slots, why)
    _require_range("verify_plan.prev_slot_indices", prevs.where(slots != layout.PADDING_SLOT, 0), None, num_slots, why)


def active_count(num_valid: torch.Tensor, column: torch.Tensor) -> int:
    """Active entries of a plan column: num_valid, int32 [1], limited to the column's length as SGLang limits it."""
    return max(0, min(int(num_valid), column.shape[0]))


def swa_slot_error(slot: int, lut_len: int) -> ContractError:
    """A table cell that full_to_swa cannot translate; SGLang's CUDA kernel clamps here, its torch reference raises."""
    return ContractError(
        f"kv-canary: SWA slot {slot} is outside full_to_swa_index_mapping length {lut_len} (inputs.req_to_token, inputs.full_to_swa)"
    )


def _launch_owners(launch: Launch) -> dict[str, object]:
    owners: dict[str, object] = {"launch": launch, "ring": launch.ring, "counters": launch.counters}
    if launch.coverage is not None:
        owners["coverage"] = launch.coverage
    return owners


def _match(rules: tuple[TensorRule, ...], owners: dict[str, object]) -> dict[str, int]:
    """Check every tensor against its rule and return the sizes of the named dimensions."""
    sizes: dict[str, int] = {}
    device: torch.device | None = None
    for name, owner, field, dtype, dims, optional in rules:
        tensor: torch.Tensor | None = getattr(owners[owner], field) if owner in owners else None
        if tensor is None and optional:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ContractError(f"kv-canary: {name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.dtype != dtype:
            raise ContractError(f"kv-canary: {name} must have dtype {dtype}, got {tensor.dtype}")
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            raise ContractError(f"kv-canary: {name} must be on {rules[0].name}'s device {device}, got {tensor.device}")
        shape = tensor.shape
        if len(shape) != len(dims):
            raise ContractError(f"kv-canary: {name} must be {len(dims)}-D, got shape {tuple(shape)}")
        for dim, size in zip(dims, shape, strict=True):
            expected = dim if isinstance(dim, int) else sizes.setdefault(dim, size)
            if size != expected:
                raise _size_error(rules, name, dims, tuple(shape), dim, expected)
        if not tensor.is_contiguous():
            raise ContractError(f"kv-canary: {name} must be contiguous, got strides {tuple(tensor.stride())}")
    return sizes


def _size_error(
    rules: tuple[TensorRule, ...], name: str, dims: tuple[Dim, ...], shape: tuple[int, ...], dim: Dim, expected: int
) -> ContractError:
    """A dimension that differs from its exact size, or from the size that the first tensor with this dimension has."""
    axis = dims.index(dim)
    what = "length" if len(dims) == 1 else f"dimension {axis}"
    binder = next(rule.name for rule in rules if dim in rule.shape)
    because = f" ({dim}, as {binder} has)" if isinstance(dim, str) else ""
    return ContractError(f"kv-canary: {name} {what} must be {expected}{because}, got {shape[axis]}")


def _require_offsets_len(sizes: dict[str, int]) -> None:
    if sizes["write_offsets_len"] != sizes["write_req_capacity"] + 1:
        raise ContractError(
            f"kv-canary: write_offsets_len must equal write_req_capacity + 1, got {sizes['write_offsets_len']} and "
            f"{sizes['write_req_capacity']} (write_plan.offsets and write_plan.seed_slot_indices)"
        )


def _require_launch(launch: Launch, sizes: dict[str, int]) -> None:
    stride, num_slots = sizes["slot_stride_bytes"], sizes["num_slots"]
    if stride < layout.SLOT_BYTES:
        raise ContractError(
            f"kv-canary: slot_stride_bytes must hold at least {layout.SLOT_BYTES} bytes per slot, got {stride} (launch.buffer)"
        )
    if stride % 8 or launch.buffer.data_ptr() % 8:
        raise ContractError(f"kv-canary: launch.buffer must consist of aligned int64 fields, got a slot stride of {stride} bytes")
    if num_slots > _MAX_SLOTS:
        raise ContractError(f"kv-canary: launch.buffer must have at most {_MAX_SLOTS} slots, which int32 tables can name, got {num_slots}")
    if not 0 <= launch.tag < layout.NUM_TAGS:
        raise ContractError(f"kv-canary: launch.tag must be a LaunchTag in [0, {layout.NUM_TAGS}), got {launch.tag}")
    if len(launch.sources) > layout.MAX_REAL_KV_SOURCES:
        raise ContractError(
            f"kv-canary: at most {layout.MAX_REAL_KV_SOURCES} RealKvSource entries supported by the CUDA ABI, got {len(launch.sources)}"
        )
    for index, source in enumerate(launch.sources):
        name = f"launch.sources[{index}].tensor"
        if source.tensor.device != launch.buffer.device:
            raise ContractError(f"kv-canary: {name} must be on launch.buffer's device {launch.buffer.device}, got {source.tensor.device}")
        if source.tensor.data_ptr() % layout.REAL_KV_ALIGNMENT:
            raise ContractError(f"kv-canary: {name} must start at a multiple of 16 bytes, got address {source.tensor.data_ptr():#x}")
        if source.tensor.shape[0] * source.page_size < num_slots:
            raise ContractError(
                f"kv-canary: {name} must cover every canary slot: {source.tensor.shape[0]} rows x page_size={source.page_size} "
                f"is less than launch.buffer's {num_slots} slots"
            )


def _require_range(name: str, values: torch.Tensor, low: int | None, high: int, why: str, *, base: int = 0) -> None:
    """Every value in [low, high), or below high when low is None; base is the index of values[0] in the named field."""
    bad = values >= high if low is None else (values >= high) | (values < low)
    if bool(bad.any()):
        index = int(bad.to(torch.uint8).argmax())
        allowed = f"below {high}" if low is None else f"in [{low}, {high})"
        raise ContractError(f"kv-canary: {name}[{base + index}] must be {allowed}, got {int(values[index])}; {why}")


def _require_lut(inputs: PlanInputs) -> None:
    if inputs.full_to_swa is None:
        return
    lut_len = inputs.full_to_swa.shape[0]
    for row, prefix in zip(inputs.req_pool_indices.tolist(), inputs.prefix_lens.tolist(), strict=True):
        if row != layout.PADDING_ROW and prefix > 0:
            first = max(0, prefix - inputs.swa_window - 1) if inputs.swa_window > 0 else 0
            cells = inputs.req_to_token[row, first:prefix]
            if int(cells.max()) >= lut_len:
                raise swa_slot_error(int(cells[cells >= lut_len][0]), lut_len)
