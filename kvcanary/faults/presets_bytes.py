"""Stories of KV bytes under a right record: what a hash covers, when it looks, and what it takes as truth."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults.memory import Strip
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.preset import Preset, at, before
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep


def _read_twice(kind: str, variant: str, title: str, story: str, first: int, *ops: FaultOp, last: int = 2) -> Preset:
    """One request of five tokens from slot `first` on: a prompt of three, then a token per step."""
    reader = Actor(1, tuple(range(10 * first + 1, 10 * first + 6)), tuple(range(first, first + 5)))
    steps = (ScriptStep(((reader, 0, 3),)), ScriptStep(((reader, 3, 1),)), ScriptStep(((reader, 4, 1),)))
    return Preset(kind, variant, title, story, Scenario(slots=first + 6, actors=(reader,), steps=steps[: last + 1], ops=ops))


def _cached() -> Preset:
    former, running = Actor(1, (611, 612, 613, 614), (3, 4, 5, 6)), Actor(2, (711, 712, 713), (8, 9, 10))
    return Preset(
        "payload_bytes",
        "cached_only",
        "A bit flips in a prefix that nobody reads",
        "The request is gone and its prefix is kept for the next one; until somebody asks for it only a sweep looks.",
        Scenario(
            slots=12,
            actors=(former, running),
            steps=(ScriptStep(((former, 0, 4),)), ScriptStep(((running, 0, 3),), sweep=((3, 4, 5, 6),))),
            ops=(before(1, OpKind.FLIP_BYTES, slot=5),),
        ),
    )


def _model_alone_astray() -> Preset:
    writer, victim = Actor(1, (27, 28, 29, 30), (2, 3, 4, 5)), Actor(2, (37, 38, 39, 40), (8, 9, 10, 11))
    return Preset(
        "page_table_race",
        "bytes_only",
        "Only the model follows the overwritten tensor",
        "The canary copied the output slots before they changed: the record goes where it should, the bytes to another request.",
        Scenario(
            slots=14,
            actors=(writer, victim),
            steps=(ScriptStep(((writer, 0, 3), (victim, 0, 3))), ScriptStep(((writer, 3, 1), (victim, 3, 1)))),
            ops=(at(Hook.WRITE, 1, OpKind.REDIRECT_BYTES, rid=1, position=3, slot=9),),
        ),
    )


BYTES_PRESETS: Mapping[str, Preset] = {
    "late-copy-knows-no-records": _read_twice(
        "late_write_after_free", "bytes_only", "A late copy that knows no records",
        "A network card or a copy engine ends its write after the slot has a new owner.",
        4, before(1, OpKind.WRITE_BYTES, slot=5, seed=2), last=1,
    ),
    "bit-flips-in-a-slot-in-use": _read_twice(
        "payload_bytes", "bit_flip", "A bit flips in a slot in use",
        "One bit of the first 16 bytes changes between two forwards.",
        3, before(1, OpKind.FLIP_BYTES, slot=4, byte=3, mask=0x10), last=1,
    ),
    "burst-behind-the-first-16-bytes": _read_twice(
        "payload_bytes", "later_bytes", "A burst behind the first 16 bytes",
        "Sixteen bytes of a row change, none of them among those that real data partial hashes.",
        5, before(1, OpKind.FLIP_BYTES, slot=6, byte=20, count=16), last=1,
    ),
    "v-row-changes": _read_twice(
        "payload_bytes", "v_row", "V changes, K does not",
        "A bit of the V row flips; V is hashed only with the V half on.",
        6, before(1, OpKind.FLIP_BYTES, slot=7, strip=Strip.V0), last=1,
    ),
    "changed-behind-tail": _read_twice(
        "payload_bytes", "just_written", "Changed behind TAIL's back",
        "TAIL has hashed the new token, then its bytes change; the next forward reads them.",
        7, at(Hook.AFTER_TAIL, 1, OpKind.FLIP_BYTES, slot=10),
    ),
    "bit-flips-in-a-cached-prefix": _cached(),
    "model-stores-wrong-bytes": _read_twice(
        "payload_bytes", "bad_before_hash", "The model itself stores wrong bytes",
        "What TAIL finds after the forward is what it takes as truth, from then on and for every reader.",
        8, at(Hook.MODEL_FORWARD, 1, OpKind.FLIP_BYTES, slot=11),
    ),
    "padding-row-hits-slot-0": _read_twice(
        "padding_slot", "slot_0", "Padding rows write to slot 0",
        "That is what slot 0 is for, and nobody verifies it.",
        9, at(Hook.MODEL_FORWARD, 1, OpKind.WRITE_BYTES, slot=0, seed=5),
    ),
    "bytes-arrive-after-their-records": _read_twice(
        "pd_transfer", "bytes_late", "Bytes arrive after their records",
        "The records of a page crossed from prefill to decode, two rows of bytes are still on their way.",
        10, *(before(1, OpKind.WRITE_BYTES, slot=slot, seed=slot) for slot in (10, 11)), last=1,
    ),
    "head-of-row-packed-differently": _read_twice(
        "layout_mismatch", "head_of_row", "The head of a row packed differently",
        "Producer and consumer disagree about the first 32 bytes of a row.",
        11, before(1, OpKind.PERMUTE_BYTES, slot=12, byte=0, count=32), last=1,
    ),
    "model-alone-follows-the-wrong-slots": _model_alone_astray(),
}  # fmt: skip
