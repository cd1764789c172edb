"""What goes into the canary kernels and what comes out: buffers, plans, rings and the backend contract.

Every tensor lives on one device. A backend mutates only what its method says it mutates, and never allocates what it hands back.
All backends give equal bytes on the same inputs; on a GPU the violation rows of one launch come in any order, on the CPU in the order
of the entries. A ContractError leaves every output untouched. Rules come from SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from kvcanary import layout
from kvcanary.errors import ContractError
from kvcanary.layout import LaunchTag, RealKvHashMode

Device = torch.device | str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKvSource:
    """One strip of real KV bytes that is hashed into a slot; a view of the live pool, never a copy.

    tensor: uint8 [rows, row_bytes], rows stepped by stride(0), bytes inside a row contiguous. Slot s is row s // page_size, column
    (s % page_size) * num_bytes_per_token; the first read_bytes of it are hashed. Raises ContractError in SGLang's order of checks.
    """

    tensor: torch.Tensor
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        name, align = "kv-canary: RealKvSource", layout.REAL_KV_ALIGNMENT
        if self.page_size < 1:
            raise ContractError(f"{name}.page_size must be >= 1, got {self.page_size}")
        if self.num_bytes_per_token <= 0 or self.num_bytes_per_token % align:
            raise ContractError(f"{name}.num_bytes_per_token must be a positive multiple of 16, got {self.num_bytes_per_token}")
        if not 0 < self.read_bytes <= self.num_bytes_per_token or self.read_bytes % align:
            raise ContractError(
                f"{name}.read_bytes must be a positive multiple of 16 in (0, num_bytes_per_token={self.num_bytes_per_token}], "
                f"got {self.read_bytes}"
            )
        if self.tensor.dtype != torch.uint8 or self.tensor.ndim != 2:
            raise ContractError(
                f"{name}.tensor must be uint8 [rows, row_bytes], got {self.tensor.dtype} {list(self.tensor.shape)}; "
                "pass pool.view(torch.uint8) reshaped to rows"
            )
        if self.tensor.stride(0) % align or self.tensor.stride(1) != 1:
            raise ContractError(
                f"{name}.tensor row stride must be a multiple of 16 bytes with contiguous rows, got strides {self.tensor.stride()}"
            )
        if self.tensor.shape[1] < self.page_size * self.num_bytes_per_token:
            raise ContractError(
                f"{name}.tensor row is {self.tensor.shape[1]} bytes wide but page_size={self.page_size} x "
                f"num_bytes_per_token={self.num_bytes_per_token} needs {self.page_size * self.num_bytes_per_token}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """One forward's batch, as the plan reads it.

    req_pool_indices, prefix_lens, extend_seq_lens: int64 [bs]; row 0 is padding. req_to_token: int32 [rows, max_len].
    swa_window: 0 for a FULL group, else the window, which needs full_to_swa: int64 [full slots + 1] (0 = evicted, negative passes).
    expected_tokens: int32 [rows, max_len] with expected_valid_lens: int64 [bs], or None for no token check.
    token_offset: 0 for a target pool, 1 for an EAGLE draft pool.
    """

    req_pool_indices: torch.Tensor
    prefix_lens: torch.Tensor
    extend_seq_lens: torch.Tensor
    req_to_token: torch.Tensor
    swa_window: int = 0
    full_to_swa: torch.Tensor | None = None
    expected_tokens: torch.Tensor | None = None
    expected_valid_lens: torch.Tensor | None = None
    token_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Flat verify entries: slot_indices, expected_tokens, expected_positions, prev_slot_indices int64 [verify_capacity].

    num_valid int32 [1] is the number of active entries; enable int32 [1] is 0 when the entries did not fit and nothing is verified.
    Entries past num_valid are unspecified.
    """

    slot_indices: torch.Tensor
    expected_tokens: torch.Tensor
    expected_positions: torch.Tensor
    prev_slot_indices: torch.Tensor
    num_valid: torch.Tensor
    enable: torch.Tensor

    @classmethod
    def allocate(cls, verify_capacity: int, *, device: Device = "cpu") -> Self:
        """Uninitialised plan for verify_capacity entries; ContractError unless it is positive."""
        _positive("VerifyPlan verify_capacity", verify_capacity)
        columns = [torch.empty(verify_capacity, dtype=torch.int64, device=device) for _ in range(4)]
        return cls(
            slot_indices=columns[0],
            expected_tokens=columns[1],
            expected_positions=columns[2],
            prev_slot_indices=columns[3],
            num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.zeros(1, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Per-request stamping plan: offsets int64 [write_req_capacity + 1], seed_slot_indices int64 [write_req_capacity],

    num_valid_reqs int32 [1]. Request r stamps tokens [offsets[r], offsets[r + 1]); its seed is -1 at a chain head.
    """

    offsets: torch.Tensor
    seed_slot_indices: torch.Tensor
    num_valid_reqs: torch.Tensor

    @classmethod
    def allocate(cls, write_req_capacity: int, *, device: Device = "cpu") -> Self:
        """Uninitialised plan for write_req_capacity requests; ContractError unless it is positive."""
        _positive("WritePlan write_req_capacity", write_req_capacity)
        return cls(
            offsets=torch.empty(write_req_capacity + 1, dtype=torch.int64, device=device),
            seed_slot_indices=torch.empty(write_req_capacity, dtype=torch.int64, device=device),
            num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationRing:
    """Fill-once log: rows int64 [ring_capacity, 8] (layout.RING_FIELDS), write_index int32 [1] counts every violation, kept or not."""

    rows: torch.Tensor
    write_index: torch.Tensor

    @classmethod
    def allocate(cls, ring_capacity: int = layout.DEFAULT_RING_CAPACITY, *, device: Device = "cpu") -> Self:
        """Empty ring; ContractError unless ring_capacity is positive."""
        _positive("ViolationLog ring_capacity", ring_capacity)
        return cls(
            rows=torch.zeros((ring_capacity, len(layout.RING_FIELDS)), dtype=torch.int64, device=device),
            write_index=torch.zeros(1, dtype=torch.int32, device=device),
        )

    def kept(self) -> torch.Tensor:
        """The stored rows, int64 [n, 8], on the CPU."""
        return self.rows[: min(int(self.write_index.item()), self.rows.shape[0])].cpu()

    def dropped(self) -> int:
        """Violations that were counted and not stored."""
        return max(0, int(self.write_index.item()) - self.rows.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounters:
    """Proof that launches ran: kernel_runs and slot_runs, int64 [12], indexed by launch tag."""

    kernel_runs: torch.Tensor
    slot_runs: torch.Tensor

    @classmethod
    def allocate(cls, *, device: Device = "cpu") -> Self:
        """Zeroed counters for every launch tag."""
        return cls(
            kernel_runs=torch.zeros(layout.NUM_TAGS, dtype=torch.int64, device=device),
            slot_runs=torch.zeros(layout.NUM_TAGS, dtype=torch.int64, device=device),
        )


COVERAGE_FIELDS = ("verified", "skipped_padding", "skipped_disabled", "unlinked", "stamped", "skipped_negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Beyond SGLang: what a launch looked at. counts int64 [6] in the order of COVERAGE_FIELDS.

    verified = entries checked; skipped_padding = verify entries at slot 0; skipped_disabled = entries of an overflowed plan;
    unlinked = verified entries whose predecessor is slot 0, so that the chain was not checked; stamped = tokens written;
    skipped_negative = tokens with a negative slot. slot_flags uint8 [num_slots], optional: OR of the fail reasons seen at each slot.
    """

    counts: torch.Tensor
    slot_flags: torch.Tensor | None = None

    @classmethod
    def allocate(cls, num_slots: int | None = None, *, device: Device = "cpu") -> Self:
        """Zeroed coverage, with a slot map when num_slots is given."""
        flags = None if num_slots is None else torch.zeros(num_slots, dtype=torch.uint8, device=device)
        return cls(counts=torch.zeros(len(COVERAGE_FIELDS), dtype=torch.int64, device=device), slot_flags=flags)

    def to_dict(self) -> dict[str, int]:
        """Counts by name."""
        return dict(zip(COVERAGE_FIELDS, self.counts.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What verify and stamp launches share.

    buffer: uint8 [num_slots, stride >= 32, multiple of 8], contiguous; stamp writes it, verify never does. ring, counters and
    coverage are added to. sources: 0 to 4; none, or hash_mode NONE, stores and expects real hash 0.
    """

    buffer: torch.Tensor
    tag: LaunchTag
    ring: ViolationRing
    counters: RunCounters
    sources: tuple[RealKvSource, ...] = ()
    hash_mode: RealKvHashMode = RealKvHashMode.NONE
    coverage: Coverage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StampInputs:
    """Tokens of one forward: tokens, positions, slots int64 [n], flat in plan order; slots are already in the group's index space.

    expected_tokens and expected_positions int64 [n], both or neither, arm the input assert. position_assert int32 [1] is the device
    flag of the +1 assert (1 = on); None means off.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    expected_tokens: torch.Tensor | None = None
    expected_positions: torch.Tensor | None = None
    position_assert: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here, and why (not)."""

    ok: bool
    reason: str


class Backend(Protocol):
    """One implementation of the three ops. `check_tokens` turns the token check of verify on (never for SWEEP tags)."""

    name: str

    def available(self) -> Availability:
        """Whether it can run here; cheap, no compilation."""
        ...

    def prepare(self) -> None:
        """Compile or load what the ops need, so that the first launch is as fast as the others; may be called again."""
        ...

    def plan(self, inputs: PlanInputs, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Fill both plans for one forward; an overflow leaves the verify entries untouched and sets enable to 0."""
        ...

    def stamp(self, launch: Launch, plan: WritePlan, inputs: StampInputs) -> None:
        """Write canary records of this forward's tokens into launch.buffer.

        Within a request the last token of a slot wins. Requests are independent: which of two requests wins a slot that both stamp,
        and whether a request that starts from a slot which another one stamps sees it before or after, is open. Slot 0 is the
        exception on the CPU, because SWA evicts tokens of any request to it: there the order is the order of the requests.
        """
        ...

    def verify(self, launch: Launch, plan: VerifyPlan, *, check_tokens: bool = False) -> None:
        """Check the planned entries of launch.buffer; violations go to the ring, coverage to launch.coverage."""
        ...


def _positive(what: str, value: int) -> None:
    if value <= 0:
        raise ContractError(f"kv-canary: {what} must be positive, got {value}")
