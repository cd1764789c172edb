"""Operations: what each changes, what it leaves alone, and that it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.faults.memory import BUFFERS, STRIPS, Forward, Group, GroupMemory, Strip
from kvcanary.faults.ops import FaultOp, Hook, OpKind, apply
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.kv_bytes import kv_rows

READER = Actor(1, (31, 32, 33, 34), (2, 3, 4, 5))
SCENARIO = Scenario(slots=8, actors=(READER,), steps=(ScriptStep(((READER, 2, 2),)),))


def op(kind: OpKind, **fields: Any) -> FaultOp:
    return FaultOp(hook=Hook.BEFORE_PLAN, kind=kind, step=0, until=1, **fields)


@pytest.fixture
def forward() -> Forward:
    return Forward.of(SCENARIO.compile()[0][0])


@pytest.fixture
def memory() -> GroupMemory:
    """Slots 2 and 3 hold the reader's first two tokens; everything else is a loud pattern."""
    memory = GroupMemory(8, 32, RealKvHashMode.ALL)
    for rows in (*memory.kv.values(), *memory.stamps.values()):
        rows[:] = 0xC3
    memory.write_tokens(np.array([2, 3]), np.array([31, 32]), np.array([0, 1]))
    return memory


@pytest.mark.parametrize(
    ("change", "units", "slot", "strips", "buffers"),
    [
        (op(OpKind.FLIP_BYTES, slot=2, byte=30, count=5, mask=1), 2, 2, {Strip.K0}, set()),
        (op(OpKind.FLIP_BYTES, slot=2, strip=Strip.V0, count=4), 4, 2, {Strip.V0}, set()),
        (op(OpKind.WRITE_BYTES, slot=6, seed=5), 96, 6, set(STRIPS), set()),
        (op(OpKind.FILL_BYTES, slot=2, count=32, seed=0x7FC0), 32, 2, {Strip.K0}, set()),
        (op(OpKind.PERMUTE_BYTES, slot=2, byte=0, count=32), 32, 2, {Strip.K0}, set()),
        (op(OpKind.SET_BYTES_OF, slot=6, token=31, position=0), 96, 6, set(STRIPS), set()),
        (op(OpKind.PUT_RECORD, slot=6, token=9, position=4, prev_hash=77, buffers=("k_head",)), 32, 6, set(), {"k_head"}),
        (op(OpKind.FOREIGN_WRITE, slot=6, token=9, position=4, prev_hash=77), 224, 6, set(STRIPS), set(BUFFERS)),
        (op(OpKind.CLEAR_RECORD, slot=2, buffers=("k_tail", "v_tail")), 64, 2, set(), {"k_tail", "v_tail"}),
        (op(OpKind.FLIP_RECORD, slot=2, byte=16, count=3, buffers=("k_tail",)), 3, 2, set(), {"k_tail"}),
    ],
)
def test_memory_operations_touch_one_slot_and_count_it(
    change: FaultOp, units: int, slot: int, strips: set[Strip], buffers: set[str], forward: Forward, memory: GroupMemory
) -> None:
    before = {name: rows.copy() for name, rows in (*memory.kv.items(), *memory.stamps.items())}
    # A byte of a hash may happen to equal the pattern, so the count is the difference itself.
    changed = apply(change, forward, {Group.FULL: memory})
    different = {name: np.argwhere(before[name] != rows) for name, rows in (*memory.kv.items(), *memory.stamps.items())}
    assert changed == sum(len(places) for places in different.values())
    assert 0.9 * units <= changed <= units
    assert {name for name, places in different.items() if len(places)} == strips | buffers
    assert {int(place[0]) for places in different.values() for place in places} == {slot}


def test_repeating_what_is_there_changes_nothing(forward: Forward, memory: GroupMemory) -> None:
    memories = {Group.FULL: memory}
    assert apply(op(OpKind.SET_BYTES_OF, slot=2, token=31, position=0), forward, memories) == 0
    assert apply(op(OpKind.FLIP_BYTES, slot=2, mask=0), forward, memories) == 0
    assert apply(op(OpKind.SET_TABLE, rid=1, position=0, slot=2), forward, memories) == 0
    assert apply(op(OpKind.SET_TABLE, rid=9, position=0, slot=5), forward, memories) == 0
    assert apply(op(OpKind.REDIRECT_WRITE, rid=1, position=0, slot=7), forward, memories) == 0
    assert apply(op(OpKind.SHIFT_POSITION, rid=1, position=2, by=0), forward, memories) == 0


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        (op(OpKind.REDIRECT_WRITE, rid=1, position=3, slot=7), "out_slots", [4, 7]),
        (op(OpKind.REDIRECT_WRITE, rid=1, position=3, slot=7), "byte_slots", [4, 7]),
        (op(OpKind.REDIRECT_BYTES, rid=1, position=2, slot=7), "out_slots", [4, 5]),
        (op(OpKind.REDIRECT_BYTES, rid=1, position=2, slot=7), "byte_slots", [7, 5]),
        (op(OpKind.SKIP_BYTES, rid=1, position=2), "byte_slots", [-1, 5]),
        (op(OpKind.SWAP_TOKEN, rid=1, position=3, token=8), "tokens", [33, 8]),
        (op(OpKind.SHIFT_POSITION, rid=1, position=2, by=-2), "positions", [0, 3]),
    ],
)
def test_input_operations_change_the_forward_alone(change: FaultOp, field: str, expected: list[int], forward: Forward) -> None:
    original = getattr(forward.step, "out_slots" if field == "byte_slots" else field).copy()
    assert apply(change, forward, {}) == 1
    assert getattr(forward, field).tolist() == expected
    np.testing.assert_array_equal(getattr(forward.step, "out_slots" if field == "byte_slots" else field), original)


def test_table_operations_leave_the_engines_tables_alone(forward: Forward) -> None:
    assert apply(op(OpKind.SET_TABLE, rid=1, position=1, slot=6), forward, {}) == 1
    assert apply(replace(op(OpKind.SWAP_TOKEN, rid=1, position=2, token=8), known=True), forward, {}) == 1
    assert (forward.req_to_token[1, 1], forward.expected_tokens[1, 2]) == (6, 8)
    assert (forward.step.req_to_token[1, 1], forward.step.expected_tokens[1, 2]) == (3, 33)


def test_a_record_is_what_its_owner_would_have_written(memory: GroupMemory) -> None:
    memory.write_record(3, 32, 1, layout.chain_hashes([31, 32], [0, 1])[1], BUFFERS)
    record = {name: memory.stamps[name][3].view("<i8").tolist() for name in BUFFERS}
    real_hash = {
        name: layout.to_signed(layout.combine_sources([layout.fold_bytes(memory.kv[strip][3].tobytes())]))
        for name, strip in (("k_tail", Strip.K0), ("v_tail", Strip.V0))
    }
    previous = layout.to_signed(layout.mix3(layout.CHAIN_START, 31, 0))
    assert record == {name: [32, 1, previous, real_hash.get(name, 0)] for name in BUFFERS}


def test_kv_rows_differ_by_token_position_and_strip_and_have_no_zero_word() -> None:
    tokens, positions = np.array([5, 6, 5]), np.array([0, 0, 1])
    rows = np.concatenate([kv_rows(tokens, positions, strip, 64) for strip in (0, 1)])
    assert len({row[:16].tobytes() for row in rows}) == 6
    assert rows.view(np.uint64).all()


def test_operations_go_through_json() -> None:
    change = op(OpKind.PUT_RECORD, slot=6, token=9, position=4, prev_hash=2**63, buffers=("k_head",), group=Group.SWA)
    assert FaultOp.from_dict(change.to_dict()) == change
    with pytest.raises(ConfigError, match="a fault operation cannot be read"):
        FaultOp.from_dict({**change.to_dict(), "kind": "explode"})
