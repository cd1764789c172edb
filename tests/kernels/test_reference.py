"""The reference against an oracle that was written from the rules alone."""

from __future__ import annotations

import torch
from hypothesis import given

from kvcanary.kernels.reference import ReferenceBackend
from tests.kernels import oracle
from tests.kernels.scenes import FUZZ, clone, plan_scenes, stamp_scenes, verify_scenes


def plain_sources(launch):
    plain = []
    for source in launch.sources:
        rows, row_stride = source.tensor.shape[0], source.tensor.stride(0)
        storage = source.tensor.as_strided(((rows - 1) * row_stride + source.tensor.shape[1],), (1,))
        plain.append((storage.numpy().tobytes(), row_stride, source.page_size, source.num_bytes_per_token, source.read_bytes))
    return plain


def plain(launch):
    return launch.buffer.numpy().tobytes(), launch.buffer.shape[1], plain_sources(launch), int(launch.hash_mode), int(launch.tag)


def assert_ring(scene, before, rows):
    """Rows land behind those already counted while there is room; the rest of the ring keeps its bytes."""
    ring, expected = scene.launch.ring, before.launch.ring.rows.clone()
    base = int(before.launch.ring.write_index)
    for index, row in enumerate(rows):
        if base + index < expected.shape[0]:
            expected[base + index] = torch.tensor(row)
    assert torch.equal(ring.rows, expected)
    assert int(ring.write_index) == base + len(rows)


@FUZZ
@given(scene=plan_scenes())
def test_plan(scene):
    before = clone(scene)
    scene.run(ReferenceBackend())
    inputs = scene.inputs
    entries, offsets, seeds = oracle.plan(
        inputs.req_pool_indices.tolist(),
        inputs.prefix_lens.tolist(),
        inputs.extend_seq_lens.tolist(),
        inputs.req_to_token.tolist(),
        inputs.swa_window,
        None if inputs.full_to_swa is None else inputs.full_to_swa.tolist(),
        None if inputs.expected_tokens is None else inputs.expected_tokens.tolist(),
        None if inputs.expected_valid_lens is None else inputs.expected_valid_lens.tolist(),
        inputs.token_offset,
    )
    got, poisoned = scene.verify_plan, before.verify_plan
    columns = ("slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices")
    capacity = got.slot_indices.shape[0]
    written = entries if len(entries) <= capacity else []
    for index, name in enumerate(columns):
        column = [entry[index] for entry in written] + getattr(poisoned, name)[len(written) :].tolist()
        assert getattr(got, name).tolist() == column, name
    assert (int(got.num_valid), int(got.enable)) == (min(len(entries), capacity), int(len(entries) <= capacity))
    batch = len(seeds)
    write = scene.write_plan
    assert write.offsets.tolist() == offsets + [0] * (write.offsets.shape[0] - batch - 1)
    assert write.seed_slot_indices.tolist() == seeds + before.write_plan.seed_slot_indices[batch:].tolist()
    assert int(write.num_valid_reqs) == batch


@FUZZ
@given(scene=stamp_scenes())
def test_stamp(scene):
    before = clone(scene)
    scene.run(ReferenceBackend())
    inputs, offsets = scene.inputs, scene.plan.offsets.tolist()
    nothing = [None] * len(inputs.slots)
    expected_tokens = nothing if inputs.expected_tokens is None else inputs.expected_tokens.tolist()
    expected_positions = nothing if inputs.expected_positions is None else inputs.expected_positions.tolist()
    items = list(
        zip(inputs.slots.tolist(), inputs.tokens.tolist(), inputs.positions.tolist(), expected_tokens, expected_positions, strict=True)
    )
    seeds = scene.plan.seed_slot_indices.tolist()
    active = max(0, min(int(scene.plan.num_valid_reqs), len(seeds)))
    requests = [(seeds[request], items[offsets[request] : offsets[request + 1]]) for request in range(active)]
    armed = inputs.position_assert is not None and bool(inputs.position_assert)
    image, rows, stamped = oracle.stamp(*plain(before.launch), requests, armed)
    assert scene.launch.buffer.numpy().tobytes() == image
    assert_ring(scene, before, rows)
    assert_counters(scene, before, stamped)
    skipped = sum(item[0] < 0 for _, tokens in requests for item in tokens)
    assert_coverage(scene, before, {"stamped": stamped, "skipped_negative": skipped}, rows)


@FUZZ
@given(scene=verify_scenes())
def test_verify(scene):
    before = clone(scene)
    scene.run(ReferenceBackend())
    plan = scene.plan
    listed = max(0, min(int(plan.num_valid), len(plan.slot_indices)))
    active = listed if int(plan.enable) else 0
    tokens = plan.expected_tokens.tolist() if scene.check_tokens else [None] * len(plan.slot_indices)
    entries = list(zip(plan.slot_indices.tolist(), tokens, plan.expected_positions.tolist(), plan.prev_slot_indices.tolist(), strict=True))[
        :active
    ]
    rows = oracle.verify_rows(*plain(before.launch), entries)
    assert_ring(scene, before, rows)
    assert_counters(scene, before, active)
    assert torch.equal(scene.launch.buffer, before.launch.buffer)
    checked = [entry for entry in entries if entry[0] != 0]
    counts = {
        "verified": len(checked),
        "skipped_padding": active - len(checked),
        "skipped_disabled": listed - active,
        "unlinked": sum(entry[3] == 0 for entry in checked),
    }
    assert_coverage(scene, before, counts, rows)


def assert_counters(scene, before, processed):
    tag, counters, old = scene.launch.tag, scene.launch.counters, before.launch.counters
    kernel_runs, slot_runs = old.kernel_runs.clone(), old.slot_runs.clone()
    kernel_runs[tag] += 1
    slot_runs[tag] += processed
    assert torch.equal(counters.kernel_runs, kernel_runs)
    assert torch.equal(counters.slot_runs, slot_runs)


def assert_coverage(scene, before, counts, rows):
    if scene.launch.coverage is None:
        return
    expected = before.launch.coverage.to_dict()
    for name, count in counts.items():
        expected[name] += count
    assert scene.launch.coverage.to_dict() == expected
    if scene.launch.coverage.slot_flags is not None:
        flags = [0] * scene.launch.buffer.shape[0]
        for row in rows:
            flags[row[1]] |= row[-1]
        assert scene.launch.coverage.slot_flags.tolist() == flags
