"""What only the numba backend has: threads, chunks, chains side by side, tiles of rows, and a process that forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from kvcanary import layout
from kvcanary.kernels.numba_cpu import NumbaBackend
from kvcanary.kernels.numba_ops import hashing, wide
from kvcanary.kernels.numba_ops import stamp as stamp_op
from kvcanary.kernels.numba_ops import verify as verify_op
from kvcanary.kernels.torch_any import TorchBackend
from kvcanary.kernels.types import Coverage, Launch, RealKvSource, RunCounters, StampInputs, VerifyPlan, ViolationRing, WritePlan
from kvcanary.layout import LaunchTag, RealKvHashMode
from tests.kernels.scenes import StampScene, VerifyScene, clone, tensors_of

ROOT = Path(__file__).resolve().parents[2]

LENGTHS = [0, 1, 200, 3, 77, 16, 17, 15, 0, 150, 31, 32, 33, 1, 1, 90, 64, 48, 5, 128]
"""Requests of a batch: more than there are chains side by side, of very different lengths, some of them empty."""


def scene(*, mode=RealKvHashMode.NONE, page_size=1, num_sources=1, stride=32, lengths=LENGTHS, around=0, seed=0):
    """A shuffled pool whose requests are stamped and then verified with a handful of damaged records; large enough for many chunks.

    around: tokens before the first request and after the last one, which belong to nobody.
    """
    rng = np.random.default_rng(seed)
    total = around + sum(lengths) + around
    num_slots = total + 50
    slots = 1 + rng.permutation(num_slots - 1)[:total]
    offsets = around + np.concatenate([[0], np.cumsum(lengths)])
    positions = np.concatenate([np.arange(length) for length in (around, *lengths, around)])
    sources = []
    for _ in range(num_sources):
        rows = -(-num_slots // page_size)
        kv = torch.from_numpy(rng.integers(0, 256, (rows, page_size * 48 + 32), dtype=np.uint8))
        sources.append(RealKvSource(tensor=kv, page_size=page_size, num_bytes_per_token=48, read_bytes=48))
    launch = Launch(
        buffer=torch.from_numpy(rng.integers(0, 256, (num_slots, stride), dtype=np.uint8)),
        tag=LaunchTag.TAIL_K_FULL,
        ring=ViolationRing.allocate(16),
        counters=RunCounters.allocate(),
        sources=tuple(sources),
        hash_mode=mode,
        coverage=Coverage.allocate(num_slots),
    )
    plan = WritePlan(
        offsets=torch.from_numpy(offsets),
        seed_slot_indices=torch.full((len(lengths),), layout.CHAIN_HEAD),
        num_valid_reqs=torch.tensor([len(lengths)], dtype=torch.int32),
    )
    inputs = StampInputs(
        tokens=torch.from_numpy(rng.integers(0, 150_000, total)), positions=torch.from_numpy(positions), slots=torch.from_numpy(slots)
    )
    return StampScene(launch, plan, inputs)


def damaged(stamped: StampScene) -> VerifyScene:
    """Verify of everything that was stamped, after records in several chunks were hit."""
    first, last = stamped.plan.offsets[[0, -1]].tolist()
    slots, tokens, positions = (column[first:last] for column in (stamped.inputs.slots, stamped.inputs.tokens, stamped.inputs.positions))
    records = stamped.launch.buffer.view(torch.int64)
    for index, field in ((3, 1), (204, 0), (205, 3), (640, 2), (700, 1)):
        records[slots[index], field] += 1
    plan = VerifyPlan(
        slot_indices=slots.clone(),
        expected_tokens=tokens.clone(),
        expected_positions=positions.clone(),
        prev_slot_indices=torch.where(positions > 0, slots.roll(1), layout.CHAIN_HEAD),
        num_valid=torch.tensor([len(slots)], dtype=torch.int32),
        enable=torch.ones(1, dtype=torch.int32),
    )
    return VerifyScene(stamped.launch, plan, check_tokens=True)


def assert_same(actual, expected):
    got = tensors_of(actual)
    for name, tensor in tensors_of(expected).items():
        assert torch.equal(got[name], tensor), name


SCENES = [
    {},
    {"stride": 48},
    {"mode": RealKvHashMode.PARTIAL},
    {"mode": RealKvHashMode.PARTIAL, "page_size": 16, "stride": 64},
    {"mode": RealKvHashMode.PARTIAL, "page_size": 3},
    {"mode": RealKvHashMode.PARTIAL, "num_sources": 3},
    {"mode": RealKvHashMode.ALL, "page_size": 4},
    {"mode": RealKvHashMode.ALL, "around": 60},
    {"mode": RealKvHashMode.ALL, "num_sources": 4},
    {"mode": RealKvHashMode.ALL, "num_sources": 0},
]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("options", SCENES, ids=str)
def test_large_launches_equal_the_torch_backend_for_any_number_of_threads(options, threads):
    expected, actual = scene(**options), scene(**options)
    backend = NumbaBackend(threads=threads, chunk_work=40)
    expected.run(TorchBackend())
    actual.run(backend)
    assert_same(actual, expected)
    expected_verify, actual_verify = damaged(expected), damaged(actual)
    expected_verify.run(TorchBackend())
    actual_verify.run(backend)
    assert_same(actual_verify, expected_verify)
    assert int(actual.launch.ring.write_index) > 4


def in_window_pool(stamped: StampScene) -> StampScene:
    """The same launch as a window pool sees it: evicted tokens go to slot 0, some are skipped, one request starts from slot 0."""
    slots, seeds = stamped.inputs.slots.clone(), stamped.plan.seed_slot_indices.clone()
    slots[::7], slots[::11] = 0, -1
    seeds[4] = 0
    return replace(stamped, inputs=replace(stamped.inputs, slots=slots), plan=replace(stamped.plan, seed_slot_indices=seeds))


@pytest.mark.parametrize("lengths", list(permutations((1, 3, 5, 9))), ids=str)
def test_chains_side_by_side_end_where_their_requests_end(lengths):
    expected, actual = (scene(lengths=lengths, around=16) for _ in range(2))
    expected.run(TorchBackend())
    actual.run(NumbaBackend(threads=1))
    assert_same(actual, expected)


@pytest.mark.parametrize("mode", list(RealKvHashMode))
def test_the_order_of_requests_holds_at_slot_0(mode):
    expected = in_window_pool(scene(mode=mode))
    actual = clone(expected)
    expected.run(TorchBackend())
    actual.run(NumbaBackend(threads=2, chunk_work=40))
    assert_same(actual, expected)


def test_a_request_that_reaches_slot_0_after_the_next_one_does_not_win_it():
    """Its last token and the first of the next request, which would be side by side in one of two chunks."""
    whole = scene(lengths=[40] * 4, around=90)
    slots = whole.inputs.slots.clone()
    slots[90 + 39 : 90 + 41] = 0
    expected = replace(whole, inputs=replace(whole.inputs, slots=slots))
    actual = clone(expected)
    expected.run(TorchBackend())
    actual.run(NumbaBackend(threads=2, chunk_work=80))
    assert_same(actual, expected)


def test_the_last_writer_wins_in_a_large_launch():
    """Thousands of tokens on three slots, one thread against vectorised torch: the reference's order, too slow to run here."""
    batch, length = 2000, 10
    rng = np.random.default_rng(3)
    launch = scene().launch
    plan = WritePlan(
        offsets=torch.arange(batch + 1) * length,
        seed_slot_indices=torch.full((batch,), layout.CHAIN_HEAD),
        num_valid_reqs=torch.tensor([batch], dtype=torch.int32),
    )
    tokens, slots = (torch.from_numpy(rng.integers(0, high, batch * length)) for high in (150_000, 3))
    expected = StampScene(launch, plan, StampInputs(tokens=tokens, positions=tokens, slots=slots))
    actual = clone(expected)
    expected.run(NumbaBackend(threads=1))
    actual.run(TorchBackend())
    assert_same(actual, expected)


def test_asserts_of_a_large_launch_report_in_order():
    whole = scene()
    positions = whole.inputs.positions.clone()
    positions[[5, 400, 820]] += 9
    inputs = replace(
        whole.inputs,
        expected_tokens=whole.inputs.tokens,
        expected_positions=whole.inputs.positions,
        positions=positions,
        position_assert=torch.ones(1, dtype=torch.int32),
    )
    seeds = whole.plan.seed_slot_indices.clone()
    seeds[2] = whole.launch.buffer.shape[0] - 1
    expected = replace(whole, inputs=inputs, plan=replace(whole.plan, seed_slot_indices=seeds))
    actual = clone(expected)
    expected.run(TorchBackend())
    actual.run(NumbaBackend(threads=2, chunk_work=40))
    assert_same(actual, expected)
    assert int(actual.launch.ring.write_index) == 6


def test_one_long_request_folds_its_real_kv_on_every_thread(monkeypatch):
    calls = []
    fold = stamp_op.fold_tokens
    monkeypatch.setattr(stamp_op, "fold_tokens", lambda *arguments: calls.append(arguments[3:5]) or fold(*arguments))
    whole = scene(mode=RealKvHashMode.ALL)
    total = len(whole.inputs.slots)
    plan = WritePlan(
        offsets=torch.tensor([0, total]), seed_slot_indices=torch.tensor([-1]), num_valid_reqs=torch.ones(1, dtype=torch.int32)
    )
    expected = replace(whole, plan=plan)
    actual = clone(expected)
    expected.run(TorchBackend())
    actual.run(NumbaBackend(threads=2, chunk_work=40))
    assert_same(actual, expected)
    assert len(calls) > 1
    assert sum(last - first for first, last in calls) == total


@pytest.mark.parametrize("wide_vectors", [True, False])
@pytest.mark.parametrize("count", [1, 7, 8, 9, wide.ROWS // 2 - 1, wide.ROWS // 2, wide.ROWS, wide.ROWS + 1, 3 * wide.ROWS - 5])
@pytest.mark.parametrize("page_size", [1, 4, 3])
def test_rows_of_any_length_fold_as_the_reference_says(wide_vectors, count, page_size):
    """One to three sources with rows of 16 bytes to a few cache lines, whole and not, in tiles and in lanes."""
    rng = np.random.default_rng(count)
    num_slots, first = 3 * wide.ROWS + 8, 5
    slots = rng.integers(0, num_slots, count + first)
    fold = folds(wide_vectors)
    for words in ((2,), (8,), (6, 18), (64, 4, 10)):
        sources, table = [], []
        for num_words in words:
            kv = rng.integers(0, 256, (-(-num_slots // page_size), page_size * 8 * num_words + 32), dtype=np.uint8)
            sources.append(kv)
            shift = page_size.bit_length() - 1 if page_size != 3 else -1
            table.append((kv.ctypes.data, kv.shape[1], page_size, shift, 8 * num_words, num_words))
        hashes = np.full(count + 4, 9, np.uint64)
        fold(np.array(table), slots, first, count, hashing.fold_scratch(), hashes, 2)
        for index, slot in enumerate(slots[first:].tolist()):
            row, at = divmod(slot, page_size)
            rows = [kv[row, at * 8 * num_words :][: 8 * num_words].tobytes() for kv, num_words in zip(sources, words, strict=True)]
            assert int(hashes[2 + index]) == layout.combine_sources(map(layout.fold_bytes, rows)), (words, index)
        assert hashes[:2].tolist() == hashes[2 + count :].tolist() == [9, 9]


@cache
def folds(wide_vectors):
    """real_kv_hashes as it is compiled for a CPU with wide vectors, or for one without; the first is right on any CPU, only slow there."""
    if wide_vectors == wide.AVAILABLE:
        return hashing.real_kv_hashes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "AVAILABLE", wide_vectors)
        compiled = numba.njit(hashing.real_kv_hashes.py_func)
        table, empty = np.zeros((0, len(hashing.SOURCE_FIELDS)), np.int64), np.zeros(0, np.int64)
        compiled(table, empty, 0, 0, hashing.fold_scratch(), np.zeros(0, np.uint64), 0)
    return compiled


TARGET = "from kvcanary.kernels.numba_ops import wide; print(wide.AVAILABLE)"


@pytest.mark.parametrize(("features", "available"), [("+avx2,+avx512f,+avx512dq", True), ("+avx2,-avx512f,-avx512dq", False)])
def test_written_out_vectors_are_for_the_cpu_that_numba_compiles_for(features, available):
    """Not for the one it runs on: numba keeps cached code by the target, so that two machines may share a folder of it."""
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features}
    done = subprocess.run([sys.executable, "-c", TARGET], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT, env=environment)
    assert done.stdout.split() == [str(available)]


def test_an_interrupted_launch_waits_for_its_threads():
    """They work on addresses: whoever catches the interrupt may free the memory behind them."""
    main, started, raising, finished = threading.current_thread(), threading.Event(), threading.Event(), threading.Event()

    def chunk(first, last):
        if threading.current_thread() is main:
            assert started.wait(20)
            raising.set()
            raise KeyboardInterrupt
        started.set()
        assert raising.wait(20)
        time.sleep(0.1)
        finished.set()

    with pytest.raises(KeyboardInterrupt):
        NumbaBackend(threads=2)._run(chunk, [(0, 1), (1, 2)])
    assert finished.is_set()


def test_a_small_launch_starts_no_thread(monkeypatch):
    monkeypatch.setattr("kvcanary.kernels.numba_cpu._pool", None)
    stamped = scene()
    stamped.run(NumbaBackend(threads=8))
    damaged(stamped).run(NumbaBackend(threads=8))


@pytest.mark.parametrize("count", [1, verify_op.BLOCK - 1, verify_op.BLOCK, verify_op.BLOCK + 1, 3 * verify_op.AHEAD + 5])
def test_damage_is_found_at_every_place_of_a_block(count):
    stamped = scene()
    stamped.run(NumbaBackend(threads=1))
    records = stamped.launch.buffer.view(torch.int64)
    for index in range(count):
        slot = int(stamped.inputs.slots[index])
        records[slot, 3] ^= 1
        plan = replace(damaged(clone(stamped)).plan, num_valid=torch.tensor([count], dtype=torch.int32))
        fresh = replace(stamped.launch, ring=ViolationRing.allocate(4))
        NumbaBackend(threads=1).verify(fresh, plan)
        assert [row[1] for row in fresh.ring.kept().tolist()] == [slot]
        records[slot, 3] ^= 1


@pytest.mark.parametrize("mode", list(RealKvHashMode))
def test_a_sound_launch_never_takes_the_exact_pass(monkeypatch, mode):
    """Slot 0 as an entry and as a predecessor included: that pass would find nothing either, one entry after the other."""
    monkeypatch.setattr(verify_op, "report_range", None)
    stamped = scene(mode=mode)
    stamped.run(NumbaBackend(threads=1))
    plan = damaged(clone(stamped)).plan
    plan.slot_indices[::150] = plan.prev_slot_indices[70::150] = layout.PADDING_SLOT
    NumbaBackend(threads=1).verify(stamped.launch, plan, check_tokens=True)
    counted = stamped.launch.coverage.to_dict()
    assert (counted["skipped_padding"], counted["unlinked"]) == (len(plan.slot_indices[::150]), len(plan.slot_indices[70::150]))


FORK = """
import os, sys
import torch
from kvcanary.kernels.numba_cpu import NumbaBackend
from tests.kernels.test_numba_cpu import damaged, scene
backend = NumbaBackend(threads=2, chunk_work=40)
stamped = scene(); stamped.run(backend)
child = os.fork()
verify = damaged(stamped); verify.run(backend)
found = int(verify.launch.ring.write_index)
if child == 0:
    os._exit(found)
print(found, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    parent, child = done.stdout.split()
    assert int(parent) > 4
    assert parent == child


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("spread", [8, 1 << 40])
def test_slots_that_meet_are_found_in_narrow_and_in_wide_pools(spread, ascending):
    """Against sets; a spread of 2^40 is wider than any bit map would be."""
    random = np.random.default_rng(7)
    met = 0
    for _ in range(400):
        lengths = random.integers(0, 4, size=random.integers(1, 5))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        slots = random.integers(-1, 3 * len(lengths) + 4, size=offsets[-1]) * (spread // 8)
        if ascending:
            slots.sort()
        seeds = random.integers(-1, 3 * len(lengths) + 4, size=len(lengths)) * (spread // 8)
        written = [int(slot) for slot in slots if slot >= 0]
        writing = {int(seed) for seed, length in zip(seeds, lengths, strict=True) if length and seed >= 0}
        expected = len(set(written)) < len(written) or bool(writing & set(written))
        assert stamp_op.slots_meet(slots, offsets, seeds) == expected, (slots, offsets, seeds)
        met += expected
    assert 50 < met < 350
