"""Stories of tables, slots and bytes: who writes where, and what a reader finds."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults.ops import Hook, OpKind
from kvcanary.faults.preset import Preset, at, before
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep


def _two_owners() -> Preset:
    first = Actor(1, (15, 25, 35, 45, 55), (3, 4, 5, 6, 7))
    second = Actor(2, (16, 26, 36), (9, 5, 11))
    return Preset(
        "slot_alias",
        "two_requests",
        "One slot, two owners",
        "The allocator hands slot 5 to a second request while the first one still reads it.",
        Scenario(
            slots=14,
            actors=(first, second),
            steps=(ScriptStep(((first, 0, 4),)), ScriptStep(((first, 4, 1), (second, 0, 3))), ScriptStep(((first, 5, 0),))),
        ),
    )


def _seed_at_slot_0() -> Preset:
    reader = Actor(1, (301, 302, 303, 304, 305, 306), (4, 6, 8, 10, 12, 14))
    return Preset(
        "slot_alias",
        "seed_at_slot_0",
        "A request goes on from slot 0",
        "The last cell of a prefix names the padding slot, so the next token is chained to whatever lies there.",
        Scenario(
            slots=18,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 5),)), ScriptStep(((reader, 5, 1),))),
            ops=(before(1, OpKind.SET_TABLE, rid=1, position=4, slot=0),),
        ),
    )


def _row_rewritten() -> Preset:
    reader = Actor(1, (91, 92, 93, 94, 95, 96), (3, 4, 5, 6, 7, 8))
    other = Actor(2, (71, 72, 73, 74), (12, 13, 14, 15))
    return Preset(
        "stale_row",
        "partly_overwritten",
        "Row rewritten under a forward",
        "The first three cells of a row already belong to the next request when the forward reads them.",
        Scenario(
            slots=18,
            actors=(reader, other),
            steps=(ScriptStep(((reader, 0, 5), (other, 0, 4))), ScriptStep(((reader, 5, 1),))),
            ops=tuple(before(1, OpKind.SET_TABLE, rid=1, position=position, slot=other.slots[position]) for position in range(3)),
        ),
    )


def _output_slots_overwritten() -> Preset:
    writer = Actor(1, (21, 22, 23, 24, 25), (2, 3, 4, 5, 6))
    victim = Actor(2, (31, 32, 33, 34, 35), (9, 10, 11, 12, 13))
    return Preset(
        "page_table_race",
        "records_and_bytes",
        "Output slots overwritten while a forward runs",
        "The next batch's slot numbers arrive in the tensor that the running forward still writes by.",
        Scenario(
            slots=16,
            actors=(writer, victim),
            steps=(
                ScriptStep(((writer, 0, 4), (victim, 0, 4))),
                ScriptStep(((writer, 4, 1), (victim, 4, 1))),
                ScriptStep(((victim, 5, 0),)),
            ),
            ops=(at(Hook.WRITE, 1, OpKind.REDIRECT_WRITE, rid=1, position=4, slot=11),),
        ),
    )


def _store_wraps() -> Preset:
    writer = Actor(1, (23, 24, 25, 26, 27), (2, 3, 4, 5, 6))
    victim = Actor(2, (33, 34, 35, 36, 37), (9, 10, 11, 12, 13))
    return Preset(
        "address_overflow",
        "store_wraps",
        "A store address wraps",
        "Slot times row size leaves 32 bits in one kernel: the bytes land on another request's slot, the record does not.",
        Scenario(
            slots=16,
            actors=(writer, victim),
            steps=(ScriptStep(((writer, 0, 4), (victim, 0, 4))), ScriptStep(((writer, 4, 1), (victim, 4, 1)))),
            ops=(at(Hook.WRITE, 1, OpKind.REDIRECT_BYTES, rid=1, position=4, slot=10),),
        ),
    )


def _padding_row() -> Preset:
    reader = Actor(1, (61, 63, 65, 67, 69, 60), (5, 7, 9, 11, 13, 15))
    return Preset(
        "padding_slot",
        "live_slot",
        "A padding row hits a live slot",
        "A captured batch has rows nobody uses; one of them still carries an old slot number and writes there.",
        Scenario(
            slots=18,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 5),)), ScriptStep(((reader, 5, 1),))),
            ops=(at(Hook.MODEL_FORWARD, 1, OpKind.WRITE_BYTES, slot=9, seed=4),),
        ),
    )


def _rejected_token_kept() -> Preset:
    drafting = Actor(1, (41, 43, 45, 47, 49), (2, 4, 6, 8, 10))
    return Preset(
        "spec_rollback",
        "rejected_token_kept",
        "A rejected draft token is kept",
        "Verification replaces the draft token in the output, the slot keeps it.",
        Scenario(
            slots=12,
            actors=(drafting,),
            steps=(ScriptStep(((drafting, 0, 3),)), ScriptStep(((drafting, 3, 1),)), ScriptStep(((drafting, 4, 1),))),
            ops=(at(Hook.WRITE, 1, OpKind.SWAP_TOKEN, rid=1, position=3, token=99),),
        ),
    )


def _stray_write_into_a_record() -> Preset:
    reader = Actor(1, (81, 82, 83, 84, 85, 86), (2, 3, 4, 5, 6, 7))
    return Preset(
        "canary_memory",
        "head_record",
        "A stray write into a canary record",
        "One byte of a HEAD record changes. The KV is right, and only HEAD complains.",
        Scenario(
            slots=10,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 5),)), ScriptStep(((reader, 5, 1),))),
            ops=(before(1, OpKind.FLIP_RECORD, slot=4, byte=16, buffers=("k_head",)),),
        ),
    )


POOL_PRESETS: Mapping[str, Preset] = {
    "one-slot-two-owners": _two_owners(),
    "seed-at-slot-0": _seed_at_slot_0(),
    "row-rewritten-under-a-forward": _row_rewritten(),
    "output-slots-overwritten": _output_slots_overwritten(),
    "store-address-wraps": _store_wraps(),
    "padding-row-hits-a-live-slot": _padding_row(),
    "rejected-draft-token-kept": _rejected_token_kept(),
    "stray-write-into-a-record": _stray_write_into_a_record(),
}
