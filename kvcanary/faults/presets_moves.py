"""Stories of KV that moves: transfers, host and storage tiers, and the prefix tree that points at it."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults.ops import Hook, OpKind
from kvcanary.faults.preset import Preset, at, before
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep


def _pages_missing() -> Preset:
    arriving = Actor(1, (510, 511, 512, 513, 514, 515), (8, 9, 10, 11, 12, 13))
    gone: tuple[tuple[OpKind, dict[str, int]], ...] = ((OpKind.CLEAR_RECORD, {}), (OpKind.WRITE_BYTES, {"seed": 6}))
    return Preset(
        "pd_transfer",
        "page_missing",
        "Decode starts before its pages arrived",
        "The prefill side reports done, two slots of the prompt were never sent.",
        Scenario(
            slots=16,
            actors=(arriving,),
            steps=(ScriptStep(((arriving, 0, 5),)), ScriptStep(((arriving, 5, 1),))),
            ops=tuple(before(1, kind, slot=slot, **fields) for slot in (10, 11) for kind, fields in gone),
        ),
    )


def _cut_transfer() -> Preset:
    arriving = Actor(1, (520, 521, 522, 523, 524), (3, 5, 7, 9, 11))
    return Preset(
        "pd_transfer",
        "cut_after_k_layers",
        "A transfer list that ends too early",
        "HEAD's records and the bytes arrived, TAIL's records stood at the end of the list.",
        Scenario(
            slots=14,
            actors=(arriving,),
            steps=(ScriptStep(((arriving, 0, 4),)), ScriptStep(((arriving, 4, 1),))),
            ops=(before(1, OpKind.CLEAR_RECORD, slot=7, buffers=("k_tail", "v_tail")),),
        ),
    )


def _first_token_swapped() -> Preset:
    arriving = Actor(1, (530, 531, 532, 533, 534), (2, 3, 4, 5, 6))
    return Preset(
        "pd_transfer",
        "first_token_swapped",
        "The first token of another request",
        "The prefill side hands over its first sampled token in the wrong row.",
        Scenario(
            slots=10,
            actors=(arriving,),
            steps=(ScriptStep(((arriving, 0, 3),)), ScriptStep(((arriving, 3, 1),)), ScriptStep(((arriving, 4, 1),))),
            ops=(at(Hook.WRITE, 1, OpKind.SWAP_TOKEN, rid=1, position=3, token=977),),
        ),
    )


def _host_copy_of_another() -> Preset:
    back = Actor(1, (540, 541, 542, 543, 544), (6, 7, 8, 9, 10))
    return Preset(
        "tier_reload",
        "wrong_bytes",
        "Host copy of somebody else",
        "Records came back from the host, the bytes of one slot are those of another prefix.",
        Scenario(
            slots=14,
            actors=(back,),
            steps=(ScriptStep(((back, 0, 4),)), ScriptStep(((back, 4, 1),), sweep=((6, 7, 8, 9),))),
            ops=(before(1, OpKind.SET_BYTES_OF, slot=8, token=17, position=2),),
        ),
    )


def _half_loaded() -> Preset:
    loading = Actor(1, (550, 551, 552, 553, 554), (4, 5, 6, 7, 8))
    sharing = Actor(2, (550, 551, 552, 553, 559), (4, 5, 6, 7, 9))
    return Preset(
        "storage_visible_garbage",
        "half_loaded",
        "A storage hit that was loaded half",
        "Two requests share a prefix from storage, of which the last two slots are an uninitialised buffer.",
        Scenario(
            slots=12,
            actors=(loading, sharing),
            steps=(ScriptStep(((loading, 0, 4),)), ScriptStep(((loading, 4, 1), (sharing, 4, 1)))),
            ops=tuple(before(1, OpKind.WRITE_BYTES, slot=slot, seed=slot) for slot in (6, 7)),
        ),
    )


def _node_kept() -> Preset:
    former = Actor(1, (560, 561, 562, 563), (10, 11, 12, 13))
    heir = Actor(2, (660, 661), (12, 13))
    hitting = Actor(3, (560, 561, 562, 563, 564), (10, 11, 12, 13, 16))
    return Preset(
        "stale_prefix_hit",
        "node_kept_after_free",
        "A node outlives its slots",
        "Two slots of a cached prefix were freed and written again; the tree still offers them to the next request.",
        Scenario(
            slots=18,
            actors=(former, heir, hitting),
            steps=(ScriptStep(((former, 0, 4),)), ScriptStep(((heir, 0, 2),)), ScriptStep(((hitting, 4, 1),))),
        ),
    )


def _packed_differently() -> Preset:
    reader = Actor(1, (570, 571, 572, 573, 574), (2, 4, 6, 8, 10))
    return Preset(
        "layout_mismatch",
        "tail_of_row",
        "Rows packed differently",
        "Producer and consumer disagree about the layout behind the first 16 bytes of a row.",
        Scenario(
            slots=12,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 4),)), ScriptStep(((reader, 4, 1),))),
            ops=(before(1, OpKind.PERMUTE_BYTES, slot=6, byte=16, count=32),),
        ),
    )


MOVE_PRESETS: Mapping[str, Preset] = {
    "decode-starts-before-its-pages": _pages_missing(),
    "transfer-list-ends-too-early": _cut_transfer(),
    "first-token-of-another-request": _first_token_swapped(),
    "host-copy-of-somebody-else": _host_copy_of_another(),
    "storage-hit-loaded-half": _half_loaded(),
    "node-outlives-its-slots": _node_kept(),
    "rows-packed-differently": _packed_differently(),
}
