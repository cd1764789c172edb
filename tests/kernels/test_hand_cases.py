"""Worked cases for every backend: numbers a reader can follow by hand, and hash values published with the format."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvcanary import layout
from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
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
from kvcanary.layout import FailReason, LaunchTag, RealKvHashMode
from tests.kernels.scenes import POISON, poison

CHAIN, POSITION, REAL, TOKEN = (
    int(reason)
    for reason in (FailReason.VERIFY_CHAIN_HASH, FailReason.VERIFY_POSITION, FailReason.VERIFY_REAL_KV_HASH, FailReason.VERIFY_TOKEN)
)
WRITE_TOKEN, WRITE_POSITION = int(FailReason.WRITE_TOKEN), int(FailReason.WRITE_POSITION)

# Two requests share the slots 9 and 4, a third has its own; row 0 is the padding row.
TABLE = [[0] * 6, [9, 4, 12, 3, 0, 0], [9, 4, 7, 0, 0, 0], [15, 2, 11, 6, 14, 1]]
TOKENS = [[0] * 6, [70, 71, 72, 73, 0, 0], [70, 71, 82, 0, 0, 0], [90, 91, 92, 93, 94, 95]]
NUM_SLOTS = 16


@pytest.fixture(params=BACKEND_NAMES)
def backend(request):
    return get_backend(request.param)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(rows=(2, 0, 1, 3), prefixes=(3, 5, 4, 5), extends=(1, 4, 2, 1), **options):
    return PlanInputs(
        req_pool_indices=torch.tensor(rows),
        prefix_lens=torch.tensor(prefixes),
        extend_seq_lens=torch.tensor(extends),
        req_to_token=int32(TABLE),
        **options,
    )


def planned(backend, inputs, capacity=40):
    verify_plan, write_plan = poison(VerifyPlan.allocate(capacity)), poison(WritePlan.allocate(6))
    backend.plan(inputs, verify_plan, write_plan)
    return verify_plan, write_plan


def entries(plan):
    count = int(plan.num_valid)
    columns = (plan.slot_indices, plan.expected_positions, plan.prev_slot_indices, plan.expected_tokens)
    return list(zip(*(column[:count].tolist() for column in columns), strict=True))


class TestPlan:
    def test_full_group_lists_every_prefix_position_in_batch_order(self, backend):
        verify_plan, write_plan = planned(backend, batch())
        slots = [(9, 0, -1), (4, 1, 9), (7, 2, 4)]
        slots += [(9, 0, -1), (4, 1, 9), (12, 2, 4), (3, 3, 12)]
        slots += [(15, 0, -1), (2, 1, 15), (11, 2, 2), (6, 3, 11), (14, 4, 6)]
        assert entries(verify_plan) == [(*entry, -1) for entry in slots]
        assert (int(verify_plan.num_valid), int(verify_plan.enable)) == (12, 1)
        assert write_plan.offsets.tolist() == [0, 1, 1, 3, 4, 0, 0]
        assert write_plan.seed_slot_indices.tolist() == [7, -1, 3, 14, POISON, POISON]
        assert int(write_plan.num_valid_reqs) == 4

    @pytest.mark.parametrize(("offset", "expected"), [(0, [70, 71, 82, 70, 71, -1, -1]), (1, [71, 82, -1, 71, -1, -1, -1])])
    def test_expected_tokens_stop_at_the_valid_length(self, backend, offset, expected):
        inputs = batch(
            rows=(2, 1), prefixes=(3, 4), extends=(1, 1), expected_tokens=int32(TOKENS), expected_valid_lens=torch.tensor([3, 2]),
            token_offset=offset,
        )  # fmt: skip
        assert [entry[3] for entry in entries(planned(backend, inputs)[0])] == expected

    def test_window_keeps_the_real_predecessor_and_translates_both(self, backend):
        lut = torch.zeros(NUM_SLOTS, dtype=torch.int64)
        lut[torch.tensor([4, 7, 12, 3, 6, 14])] = torch.tensor([1, 2, 3, 4, 5, 6])
        verify_plan, write_plan = planned(backend, batch(swa_window=2, full_to_swa=lut))
        # Slot 11 was evicted from the window pool: the table gives 0, and the entry keeps it as its predecessor.
        assert [entry[:3] for entry in entries(verify_plan)] == [(1, 1, 0), (2, 2, 1), (3, 2, 1), (4, 3, 3), (5, 3, 0), (6, 4, 5)]
        assert write_plan.seed_slot_indices[:4].tolist() == [2, -1, 4, 6]

    @pytest.mark.parametrize(("capacity", "enable"), [(13, 1), (12, 1), (11, 0)])
    def test_overflow_turns_the_launch_off_and_leaves_the_entries(self, backend, capacity, enable):
        verify_plan, write_plan = planned(backend, batch(), capacity)
        assert (int(verify_plan.num_valid), int(verify_plan.enable)) == (min(12, capacity), enable)
        if not enable:
            columns = (verify_plan.slot_indices, verify_plan.expected_tokens, verify_plan.expected_positions, verify_plan.prev_slot_indices)
            assert all(bool((column == POISON).all()) for column in columns)
        assert write_plan.offsets.tolist() == [0, 1, 1, 3, 4, 0, 0]

    def test_a_batch_of_padding_plans_nothing(self, backend):
        verify_plan, write_plan = planned(backend, batch(rows=(0, 0), prefixes=(3, 3), extends=(2, 2)))
        assert (int(verify_plan.num_valid), int(verify_plan.enable)) == (0, 1)
        assert write_plan.offsets.tolist() == [0] * 7
        assert write_plan.seed_slot_indices[:2].tolist() == [-1, -1]
        assert int(write_plan.num_valid_reqs) == 2


def launch(num_slots=NUM_SLOTS, **options):
    options = {"tag": LaunchTag.TAIL_K_FULL, "ring": ViolationRing.allocate(64), "counters": RunCounters.allocate()} | options
    buffer = torch.zeros(num_slots, layout.SLOT_BYTES, dtype=torch.uint8)
    return Launch(buffer=buffer, coverage=Coverage.allocate(num_slots), **options)


def write_plan(offsets, seeds):
    return WritePlan(offsets=torch.tensor(offsets), seed_slot_indices=torch.tensor(seeds), num_valid_reqs=int32([len(seeds)]))


def stamp_inputs(tokens, positions, slots, **options):
    return StampInputs(tokens=torch.tensor(tokens), positions=torch.tensor(positions), slots=torch.tensor(slots), **options)


def image(target, slot):
    return target.buffer[slot].numpy().tobytes().hex()


def rows(target):
    return target.ring.kept().tolist()


def found(target):
    return [(row[1], row[-1]) for row in rows(target)]


class TestStamp:
    def test_records_of_a_chain_and_of_its_continuation(self, backend):
        target = launch()
        backend.stamp(target, write_plan([0, 5], [-1]), stamp_inputs([101, 2054, 2003, 1996, 102], range(5), [5, 1, 8, 3, 9]))
        assert [image(target, slot) for slot in (5, 1, 8, 3, 9)] == [
            "6500000000000000" "0000000000000000" "16b7a1a923ae7fde" "0000000000000000",
            "0608000000000000" "0100000000000000" "aba6751206e52f54" "0000000000000000",
            "d307000000000000" "0200000000000000" "d1c7ddf8ad183f8c" "0000000000000000",
            "cc07000000000000" "0300000000000000" "ba2239eee4c0342d" "0000000000000000",
            "6600000000000000" "0400000000000000" "087881e855a4c0b3" "0000000000000000",
        ]  # fmt: skip
        backend.stamp(target, write_plan([0, 2], [9]), stamp_inputs([7592, 2088], [5, 6], [11, 2]))
        stored = target.buffer.view(torch.int64)[[11, 2], 2].tolist()
        assert [value % 2**64 for value in stored] == [0x53A174869CEFF5CF, 0x4F0357C14C6F9D05]
        assert target.counters.kernel_runs[LaunchTag.TAIL_K_FULL] == 2
        assert target.counters.slot_runs[LaunchTag.TAIL_K_FULL] == 7
        assert target.ring.write_index == 0

    def test_a_negative_slot_is_left_out_of_the_chain(self, backend):
        with_gap, without = launch(), launch()
        backend.stamp(with_gap, write_plan([0, 3], [-1]), stamp_inputs([5, 6, 7], [0, 1, 2], [4, -1, 8]))
        backend.stamp(without, write_plan([0, 2], [-1]), stamp_inputs([5, 7], [0, 2], [4, 8]))
        assert torch.equal(with_gap.buffer, without.buffer)
        assert with_gap.coverage.to_dict() | {"stamped": 2, "skipped_negative": 1} == with_gap.coverage.to_dict()

    def test_slot_0_is_stamped_and_starts_a_chain_like_any_other(self, backend):
        target = launch()
        backend.stamp(target, write_plan([0, 1], [-1]), stamp_inputs([33], [8], [0]))
        assert image(target, 0)[:32] == "2100000000000000" "0800000000000000"  # fmt: skip
        armed = int32([1])
        backend.stamp(target, write_plan([0, 1], [0]), stamp_inputs([34], [2], [5], position_assert=armed))
        assert rows(target)[0][1:3] == [5, 2]
        assert (rows(target)[0][6], found(target)) == (9, [(5, WRITE_POSITION)])

    def test_the_last_writer_of_a_slot_wins_within_a_request(self, backend):
        target = launch()
        backend.stamp(target, write_plan([0, 3], [-1]), stamp_inputs([5, 6, 7], [0, 1, 2], [4, 9, 4]))
        assert target.buffer.view(torch.int64)[4, :2].tolist() == [7, 2]

    def test_input_assert_reports_and_stamps_the_actual_values(self, backend):
        target = launch()
        inputs = stamp_inputs(
            [5, 6, 7, 8],
            range(4),
            [1, 2, 3, 4],
            expected_tokens=torch.tensor([5, 60, 7, 80]),
            expected_positions=torch.tensor([0, 1, 9, 9]),
        )
        backend.stamp(target, write_plan([0, 4], [-1]), inputs)
        assert found(target) == [(2, WRITE_TOKEN), (3, WRITE_POSITION), (4, WRITE_TOKEN | WRITE_POSITION)]
        assert [row[3:5] for row in rows(target)] == [[6, 60], [7, 7], [8, 80]]
        assert [row[6] for row in rows(target)] == [1, 9, 9]
        assert target.buffer.view(torch.int64)[1:5, 0].tolist() == [5, 6, 7, 8]
        assert target.coverage.slot_flags.tolist()[1:5] == [0, WRITE_TOKEN, WRITE_POSITION, WRITE_TOKEN | WRITE_POSITION]

    @pytest.mark.parametrize(("flag", "seed", "reported"), [(1, 6, [3, 5]), (0, 6, []), (1, -1, [])])
    def test_positions_must_follow_the_seed_only_when_armed_and_seeded(self, backend, flag, seed, reported):
        target = launch()
        backend.stamp(target, write_plan([0, 1], [-1]), stamp_inputs([1], [10], [6]))
        inputs = stamp_inputs([5, 6, 7, 8], [11, 13, 14, 14], [2, 3, 4, 5], position_assert=int32([flag]))
        backend.stamp(target, write_plan([0, 4], [seed]), inputs)
        assert found(target) == [(slot, WRITE_POSITION) for slot in reported]
        assert [row[6] for row in rows(target)] == [12, 15][: len(reported)]

    def test_both_asserts_of_one_token_are_two_rows(self, backend):
        target = launch()
        inputs = stamp_inputs(
            [5], [3], [2], expected_tokens=torch.tensor([4]), expected_positions=torch.tensor([1]), position_assert=int32([1])
        )
        backend.stamp(target, write_plan([0, 1], [6]), inputs)
        assert found(target) == [(2, WRITE_TOKEN | WRITE_POSITION), (2, WRITE_POSITION)]
        assert [row[4] for row in rows(target)] == [4, 5]


def ramp_source(first, count, **options):
    data = torch.arange(first, first + count, dtype=torch.uint8).repeat(NUM_SLOTS, 1)
    return RealKvSource(**({"tensor": data, "page_size": 1, "num_bytes_per_token": count, "read_bytes": count} | options))


def flipped(source, byte):
    tensor = source.tensor.clone()
    tensor[:, byte] ^= 0xFF
    return replace(source, tensor=tensor)


RAMP = ramp_source(0, 64)
LOW, HIGH = ramp_source(0, 16), ramp_source(16, 16)
ZERO = replace(LOW, tensor=torch.zeros_like(LOW.tensor))
PARTIAL, ALL = RealKvHashMode.PARTIAL, RealKvHashMode.ALL


@pytest.mark.parametrize(
    ("sources", "mode", "real_hash"),
    [
        ([RAMP], PARTIAL, 0xD6D75024DFD6C30C),
        ([RAMP], ALL, 0x40551C6BCC25300B),
        ([RAMP], RealKvHashMode.NONE, 0),
        ([], ALL, 0),
        ([flipped(RAMP, 0)], PARTIAL, 0xF821D6F4CE407890),
        ([flipped(RAMP, 0)], ALL, 0x357C7B9355A2D51E),
        ([flipped(RAMP, 40)], PARTIAL, 0xD6D75024DFD6C30C),
        ([flipped(RAMP, 40)], ALL, 0x86EA24D7AABB6CF8),
        ([ZERO], ALL, 0),
        ([LOW, HIGH], PARTIAL, 0xB6209A488C3F52B0),
        ([HIGH, LOW], PARTIAL, 0xFFFEBA82FF979870),
        ([LOW, ZERO, HIGH], PARTIAL, 0x6483E2FADC13A991),
        ([ramp_source(0, 32), ramp_source(32, 32)], ALL, 0x05E6A60C1C7D86F0),
        ([replace(RAMP, read_bytes=16)], ALL, 0xD6D75024DFD6C30C),
    ],
)
def test_real_kv_hash(backend, sources, mode, real_hash):
    target = launch(sources=tuple(sources), hash_mode=mode)
    backend.stamp(target, write_plan([0, 1], [-1]), stamp_inputs([101], [0], [7]))
    assert int(target.buffer.view(torch.int64)[7, 3]) % 2**64 == real_hash


@pytest.mark.parametrize(
    ("slot", "real_hash"),
    [(0, 0x4F1E7C77160B80FD), (3, 0x686B9676AC2A1DE1), (4, 0xE71A5EE5994C5DD4), (6, 0xACEC1A51D6BA2F5E), (11, 0xD93FFD4F3528E784)],
)
def test_real_kv_of_packed_pages_with_a_wide_row(backend, slot, real_hash):
    storage = (torch.arange(240) * 7 + 3).to(torch.uint8)
    source = RealKvSource(tensor=storage.as_strided((3, 64), (80, 1)), page_size=4, num_bytes_per_token=16, read_bytes=16)
    target = launch(num_slots=12, sources=(source,), hash_mode=PARTIAL)
    backend.stamp(target, write_plan([0, 1], [-1]), stamp_inputs([1], [0], [slot]))
    assert int(target.buffer.view(torch.int64)[slot, 3]) % 2**64 == real_hash


class TestVerify:
    """One batch that is stamped, damaged in one place, and verified; the slots of TABLE."""

    def stamped(self, backend, **options):
        target = launch(**options)
        for row, length in ((1, 4), (3, 5)):
            backend.stamp(target, write_plan([0, length], [-1]), stamp_inputs(TOKENS[row][:length], range(length), TABLE[row][:length]))
        backend.stamp(target, write_plan([0, 1], [4]), stamp_inputs([82], [2], [7]))
        return target

    def verified(self, backend, target, table=TABLE, check_tokens=False, **options):
        inputs = replace(
            batch(rows=(1, 2, 3), prefixes=(4, 3, 5), extends=(1, 1, 1), **options),
            req_to_token=int32(table),
            expected_tokens=int32(TOKENS),
            expected_valid_lens=torch.tensor([4, 3, 5]),
        )
        plan = planned(backend, inputs)[0]
        backend.verify(target, plan, check_tokens=check_tokens)
        return found(target)

    def test_sound_pool_has_no_rows(self, backend):
        target = self.stamped(backend)
        before = target.buffer.clone()
        assert self.verified(backend, target, check_tokens=True) == []
        assert torch.equal(target.buffer, before)
        assert target.coverage.to_dict()["verified"] == 12
        assert target.counters.slot_runs[LaunchTag.TAIL_K_FULL] == 10 + 12

    @pytest.mark.parametrize(
        ("cell", "check_tokens", "expected"),
        [
            (11, False, [(11, CHAIN), (3, CHAIN)]),
            (14, False, [(14, CHAIN | POSITION), (3, CHAIN)]),
            (14, True, [(14, CHAIN | POSITION | TOKEN), (3, CHAIN)]),
            (0, True, []),
        ],
        ids=["same position elsewhere", "other position", "other position and token check", "slot 0 hides it"],
    )
    def test_a_wrong_table_cell(self, backend, cell, check_tokens, expected):
        table = [list(row) for row in TABLE]
        table[1][2] = cell
        assert self.verified(backend, self.stamped(backend), table, check_tokens) == expected

    def test_the_token_check_sees_what_the_chain_cannot(self, backend):
        target = self.stamped(backend)
        target.buffer.view(torch.int64)[14, 0] += 1
        assert self.verified(backend, target) == []
        assert self.verified(backend, target, check_tokens=True) == [(14, TOKEN)]

    @pytest.mark.parametrize(
        ("slot", "field", "change", "expected"),
        [
            (12, 0, 1 << 40, [(3, CHAIN)]),
            (12, 1, 1, [(12, POSITION), (3, CHAIN)]),
            (12, 2, 1 << 63, [(12, CHAIN), (3, CHAIN)]),
            (12, 3, 1, [(12, REAL)]),
            (3, 0, 1, []),
            (4, 0, 1, [(12, CHAIN), (7, CHAIN)]),
            (14, 1, 2, [(14, POSITION)]),
        ],
        ids=["token", "position", "prev_hash", "real_kv_hash", "token of the last slot", "token of a shared slot", "position at the end"],
    )
    def test_a_damaged_record(self, backend, slot, field, change, expected):
        target = self.stamped(backend)
        target.buffer.view(torch.int64)[slot, field] ^= layout.to_signed(change)
        assert self.verified(backend, target) == expected
        flagged = {slot: flags for slot, flags in enumerate(target.coverage.slot_flags.tolist()) if flags}
        assert flagged == dict(expected)

    def test_row_fields(self, backend):
        target = self.stamped(backend, tag=LaunchTag.HEAD_V_SWA)
        record = target.buffer.view(torch.int64)[12]
        stored_hash = int(record[2])
        record[0], record[1], record[2] = 72_000, 77, 5
        self.verified(backend, target, check_tokens=True)
        assert rows(target)[0] == [7, 12, 77, 72_000, 72, 5, stored_hash, CHAIN | POSITION | TOKEN]

    def test_real_kv_damage_is_seen_where_it_is_hashed(self, backend):
        kv = torch.arange(NUM_SLOTS * 48, dtype=torch.int64).to(torch.uint8).reshape(NUM_SLOTS, 48)
        source = RealKvSource(tensor=kv, page_size=1, num_bytes_per_token=48, read_bytes=32)
        target = self.stamped(backend, sources=(source,), hash_mode=ALL)
        kv[12, 31] ^= 4
        kv[6, 32] ^= 4
        assert self.verified(backend, target) == [(12, REAL)]

    def test_an_unreachable_predecessor_is_not_compared(self, backend):
        target = self.stamped(backend)
        target.buffer.view(torch.int64)[12, 2] += 1
        plan = VerifyPlan(
            slot_indices=torch.tensor([12, 0]),
            expected_tokens=torch.tensor([-1, -1]),
            expected_positions=torch.tensor([2, 0]),
            prev_slot_indices=torch.tensor([0, 4]),
            num_valid=int32([2]),
            enable=int32([1]),
        )
        backend.verify(target, plan)
        assert found(target) == []
        counts = target.coverage.to_dict()
        assert (counts["verified"], counts["unlinked"], counts["skipped_padding"]) == (1, 1, 1)

    def test_a_disabled_plan_counts_the_launch_and_nothing_else(self, backend):
        target = self.stamped(backend)
        plan = planned(backend, batch(), capacity=11)[0]
        target.buffer.zero_()
        slot_runs = target.counters.slot_runs.clone()
        kernel_runs = int(target.counters.kernel_runs[LaunchTag.TAIL_K_FULL])
        backend.verify(target, plan)
        assert found(target) == []
        assert torch.equal(target.counters.slot_runs, slot_runs)
        assert target.counters.kernel_runs[LaunchTag.TAIL_K_FULL] == kernel_runs + 1
        assert target.coverage.to_dict()["skipped_disabled"] == 11

    def test_the_ring_fills_once_and_counts_on(self, backend):
        target = self.stamped(backend, ring=ViolationRing.allocate(3))
        target.buffer.zero_()
        self.verified(backend, target)
        first = rows(target)
        self.verified(backend, target)
        assert rows(target) == first
        assert [row[1] for row in first] == [9, 4, 12]
        assert int(target.ring.write_index) == 24
        assert target.ring.dropped() == 21
