"""Scenarios after public reports, small enough to follow row by row. Names and numbers are ours, the mechanisms are theirs."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.preset import Preset, before
from kvcanary.faults.presets_bytes import BYTES_PRESETS
from kvcanary.faults.presets_inputs import INPUT_PRESETS
from kvcanary.faults.presets_moves import MOVE_PRESETS
from kvcanary.faults.presets_pool import POOL_PRESETS
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep


def _aborted_transfer() -> Preset:
    gone = Actor(1, (310, 311, 312, 313, 314), (7, 8, 9, 10, 11))
    heir = Actor(2, (720, 721, 722, 723, 724, 725), (9, 10, 11, 14, 15, 16))
    return Preset(
        "late_write_after_free",
        "with_records",
        "Aborted transfer writes late",
        "A transfer is aborted, its slots go to the next request, and then its last page lands after all.",
        Scenario(
            slots=24,
            actors=(gone, heir),
            steps=(ScriptStep(((heir, 0, 5),)), ScriptStep(((heir, 5, 1),), sweep=((9, 10, 11, 14, 15),))),
            ops=tuple(before(1, OpKind.FOREIGN_WRITE, slot=slot, **gone.record(position)) for position, slot in ((2, 9), (3, 10))),
        ),
    )


def _cell_at_slot_0() -> Preset:
    reader = Actor(1, (41, 52, 63, 74, 85, 96), (3, 9, 4, 12, 6, 7))
    return Preset(
        "slot_alias",
        "cell_to_slot_0",
        "A table cell points at slot 0",
        "One cell of a live prefix names the padding slot: attention reads rubbish, and the canary skips the cell and its successor.",
        Scenario(
            slots=16,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 5),)), ScriptStep(((reader, 5, 1),))),
            ops=(before(1, OpKind.SET_TABLE, rid=1, position=3, slot=0),),
        ),
    )


def _left_behind_by_the_host_tier() -> Preset:
    former = Actor(1, tuple(range(900, 911)), (1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22))
    back = Actor(2, (17, 18, 19, 16), (20, 21, 22, 23))
    return Preset(
        "tier_reload",
        "records_left_behind",
        "Canary left behind by the host tier",
        "A prefix comes back from host memory into slots of a finished request. The KV is right, the records are still the old owner's.",
        Scenario(
            slots=32,
            actors=(former, back),
            steps=(ScriptStep(((former, 0, 11),)), ScriptStep(((back, 3, 1),), sweep=((20, 21, 22),))),
            ops=tuple(
                before(1, OpKind.SET_BYTES_OF, slot=back.slots[position], token=back.tokens[position], position=position)
                for position in range(3)
            ),
        ),
    )


def _zeroed_page() -> Preset:
    owner = Actor(1, (211, 223, 227, 229, 233, 239, 241), (4, 5, 6, 7, 8, 9, 10))
    return Preset(
        "payload_bytes",
        "zeroed",
        "Zeroed page",
        "The KV bytes of a page of two slots turn into zeros while a request reads them.",
        Scenario(
            slots=16,
            actors=(owner,),
            steps=(ScriptStep(((owner, 0, 6),)), ScriptStep(((owner, 6, 1),), sweep=((4, 5, 6, 7, 8, 9),))),
            ops=tuple(before(1, OpKind.FILL_BYTES, slot=slot, count=64, seed=0) for slot in (6, 7)),
        ),
    )


def _draft_past_the_reservation() -> Preset:
    drafting = Actor(1, (61, 62, 63, 64, 65, 66), (2, 3, 4, 5, 6, 7))
    neighbour = Actor(2, (81, 82, 83, 84, 85), (11, 12, 13, 14, 15))
    return Preset(
        "spec_rollback",
        "past_the_reservation",
        "Draft token past the reservation",
        "The last of three draft tokens has no slot of its own and is written over a neighbour's.",
        Scenario(
            slots=20,
            actors=(drafting, neighbour),
            steps=(
                ScriptStep(((drafting, 0, 3), (neighbour, 0, 4))),
                ScriptStep(((drafting, 3, 3), (neighbour, 4, 1))),
                ScriptStep(((neighbour, 5, 0),)),
            ),
            ops=(FaultOp(hook=Hook.WRITE, kind=OpKind.REDIRECT_WRITE, step=1, until=2, rid=1, position=5, slot=13),),
        ),
    )


def _window_slot_reused() -> Preset:
    reader = Actor(1, (401, 402, 403, 404, 405, 406, 407), (1, 2, 3, 4, 5, 6, 7))
    heir = Actor(2, (501, 502), (5, 12))
    return Preset(
        "swa_eviction",
        "reused_inside_window",
        "Window slot given away too early",
        "A slot inside a window of three is freed and written by the next request.",
        Scenario(
            slots=16,
            window=3,
            actors=(reader, heir),
            steps=(ScriptStep(((reader, 0, 6),)), ScriptStep(((heir, 0, 2),)), ScriptStep(((reader, 6, 1),))),
        ),
    )


def _position_of_a_draft() -> Preset:
    drafting = Actor(1, (71, 72, 73, 74, 75), (8, 6, 4, 2, 1))
    return Preset(
        "position_shift",
        "one_token",
        "Draft decode one position too far",
        "Positions are advanced before the draft forward instead of after it, so one token is stored one place too far.",
        Scenario(
            slots=10,
            actors=(drafting,),
            steps=(ScriptStep(((drafting, 0, 3),)), ScriptStep(((drafting, 3, 1),)), ScriptStep(((drafting, 4, 1),))),
            ops=(FaultOp(hook=Hook.WRITE, kind=OpKind.SHIFT_POSITION, step=1, until=2, rid=1, position=3, by=1),),
        ),
    )


PRESETS: Mapping[str, Preset] = {
    "aborted-transfer-writes-late": _aborted_transfer(),
    "cell-points-at-slot-0": _cell_at_slot_0(),
    "canary-left-behind-by-host-tier": _left_behind_by_the_host_tier(),
    "zeroed-page": _zeroed_page(),
    "draft-past-the-reservation": _draft_past_the_reservation(),
    "window-slot-reused": _window_slot_reused(),
    "draft-position-too-far": _position_of_a_draft(),
    **POOL_PRESETS,
    **MOVE_PRESETS,
    **INPUT_PRESETS,
    **BYTES_PRESETS,
}
