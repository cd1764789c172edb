"""Every single bit of a stamped pool, flipped one after the other: what must be seen, where, and what is out of reach.

The pool holds one chain over the slots 1 to 4; slot 0 is padding, slot 5 is free, and each row of the buffer and of the KV strip is wider
than what is hashed. This is the detection table of the format, bit by bit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvcanary.kernels.backends import BACKEND_NAMES, get_backend
from kvcanary.kernels.sweep import sweep_plan
from kvcanary.kernels.types import Coverage, Launch, RealKvSource, RunCounters, StampInputs, ViolationRing, WritePlan
from kvcanary.layout import FailReason, LaunchTag, RealKvHashMode

NUM_SLOTS, STRIDE, CHAIN_SLOTS = 6, 40, (3, 1, 4, 2)
KV_ROW_BYTES, READ_BYTES = 48, 32
CHAIN, POSITION, REAL = FailReason.VERIFY_CHAIN_HASH, FailReason.VERIFY_POSITION, FailReason.VERIFY_REAL_KV_HASH
FIELD_OF_BYTE = ("token",) * 8 + ("position",) * 8 + ("prev_hash",) * 8 + ("real_kv_hash",) * 8 + ("outside the record",) * 8


def stamped_pool(backend, mode):
    kv = (torch.arange(NUM_SLOTS * KV_ROW_BYTES) * 37 % 251).to(torch.uint8).reshape(NUM_SLOTS, KV_ROW_BYTES)
    source = RealKvSource(tensor=kv, page_size=1, num_bytes_per_token=KV_ROW_BYTES, read_bytes=READ_BYTES)
    launch = Launch(
        buffer=torch.full((NUM_SLOTS, STRIDE), 0x5A, dtype=torch.uint8),
        tag=LaunchTag.SWEEP_K_FULL,
        ring=ViolationRing.allocate(16),
        counters=RunCounters.allocate(),
        sources=(source,),
        hash_mode=mode,
        coverage=Coverage.allocate(NUM_SLOTS),
    )
    length = len(CHAIN_SLOTS)
    plan = WritePlan(
        offsets=torch.tensor([0, length]), seed_slot_indices=torch.tensor([-1]), num_valid_reqs=torch.ones(1, dtype=torch.int32)
    )
    inputs = StampInputs(tokens=torch.arange(50, 50 + length), positions=torch.arange(length), slots=torch.tensor(CHAIN_SLOTS))
    backend.stamp(launch, plan, inputs)
    return launch


def sweep(backend, launch):
    """Violations of one sweep over the chain and the padding slot, as {slot: reasons}."""
    fresh = replace(launch, ring=ViolationRing.allocate(16), coverage=Coverage.allocate(NUM_SLOTS))
    slots = torch.tensor([0, *CHAIN_SLOTS])
    backend.verify(fresh, sweep_plan(slots, torch.tensor([0, 0, 1, 2, 3]), torch.tensor([-1, -1, *CHAIN_SLOTS[:-1]])))
    reported = {row[1]: FailReason(row[-1]) for row in fresh.ring.kept().tolist()}
    assert {slot: FailReason(flags) for slot, flags in enumerate(fresh.coverage.slot_flags.tolist()) if flags} == reported
    return reported


def expected_of_record(slot, field):
    if slot not in CHAIN_SLOTS or field == "outside the record":
        return {}
    place = CHAIN_SLOTS.index(slot)
    successor = {CHAIN_SLOTS[place + 1]: CHAIN} if place + 1 < len(CHAIN_SLOTS) else {}
    own = {"token": {}, "position": {slot: POSITION}, "prev_hash": {slot: CHAIN}, "real_kv_hash": {slot: REAL}}[field]
    return own | (successor if field != "real_kv_hash" else {})


def expected_of_kv(slot, byte, mode):
    hashed = {RealKvHashMode.NONE: 0, RealKvHashMode.PARTIAL: 16, RealKvHashMode.ALL: READ_BYTES}[mode]
    return {slot: REAL} if slot in CHAIN_SLOTS and byte < hashed else {}


def flip(tensor, slot, byte, bit):
    tensor[slot, byte] ^= 1 << bit


@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
def test_every_bit_of_the_canary_buffer(backend_name):
    backend = get_backend(backend_name)
    launch = stamped_pool(backend, RealKvHashMode.ALL)
    sound = launch.buffer.clone()
    assert sweep(backend, launch) == {}
    for slot in range(NUM_SLOTS):
        for byte in range(STRIDE):
            for bit in range(8):
                flip(launch.buffer, slot, byte, bit)
                damaged = launch.buffer.clone()
                assert sweep(backend, launch) == expected_of_record(slot, FIELD_OF_BYTE[byte]), (slot, byte, bit)
                assert torch.equal(launch.buffer, damaged), "verify wrote to the buffer"
                launch.buffer.copy_(sound)


@pytest.mark.parametrize("mode", list(RealKvHashMode))
@pytest.mark.parametrize("backend_name", BACKEND_NAMES)
def test_every_bit_of_the_real_kv(backend_name, mode):
    backend = get_backend(backend_name)
    launch = stamped_pool(backend, mode)
    kv = launch.sources[0].tensor
    for slot in range(NUM_SLOTS):
        for byte in range(KV_ROW_BYTES):
            bit = (slot + byte) % 8
            flip(kv, slot, byte, bit)
            assert sweep(backend, launch) == expected_of_kv(slot, byte, mode), (slot, byte, bit)
            flip(kv, slot, byte, bit)
