"""Stories of a forward's inputs: cells it reads by, tokens and positions it is fed, for the target model and for the draft model."""

from __future__ import annotations

from collections.abc import Mapping

from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.preset import Preset, at, before
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep


def _cell_of_another() -> Preset:
    reader, other = Actor(1, (121, 122, 123, 124, 125), (2, 3, 4, 5, 6)), Actor(2, (221, 222, 223, 224), (9, 10, 11, 12))
    return Preset(
        "slot_alias",
        "wrong_cell",
        "A cell names another request's slot",
        "One cell of a live row is wrong: attention reads somebody else's token, no byte and no record changes.",
        Scenario(
            slots=14,
            actors=(reader, other),
            steps=(ScriptStep(((reader, 0, 4), (other, 0, 4))), ScriptStep(((reader, 4, 1),))),
            ops=(before(1, OpKind.SET_TABLE, rid=1, position=1, slot=11),),
        ),
    )


def _row_replaced() -> Preset:
    reader, other = Actor(1, (131, 132, 133, 134, 135), (3, 4, 5, 6, 7)), Actor(2, (231, 232, 233), (10, 11, 12))
    return Preset(
        "stale_row",
        "fully_overwritten",
        "A whole row replaced for one forward",
        "Every cell of the prefix is another request's, which agrees with itself; the new token is chained to it.",
        Scenario(
            slots=14,
            actors=(reader, other),
            steps=(ScriptStep(((reader, 0, 3), (other, 0, 3))), ScriptStep(((reader, 3, 1),)), ScriptStep(((reader, 4, 1),))),
            ops=tuple(before(1, OpKind.SET_TABLE, rid=1, position=position, slot=slot) for position, slot in enumerate(other.slots)),
        ),
    )


def _translation_cleared() -> Preset:
    reader = Actor(1, (141, 142, 143, 144, 145, 146), (1, 2, 3, 4, 5, 6))
    return Preset(
        "swa_eviction",
        "mapping_cleared",
        "A window translation cleared too early",
        "The window slot of a token inside the window of three is taken back, so its translation reads as padding.",
        Scenario(
            slots=10,
            window=3,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 5),)), ScriptStep(((reader, 5, 1),))),
            ops=(before(1, OpKind.SET_MAPPING, slot=4, by=0),),
        ),
    )


def _first_position() -> Preset:
    reader = Actor(1, (151, 152, 153), (5, 3, 1))
    return Preset(
        "position_shift",
        "first_token",
        "The first token at a position of its own",
        "The first token of a request is stored for position 64. No seed stands behind it, so nothing contradicts it yet.",
        Scenario(
            slots=8,
            actors=(reader,),
            steps=(ScriptStep(((reader, 0, 1),)), ScriptStep(((reader, 1, 1),))),
            ops=(at(Hook.WRITE, 0, OpKind.SHIFT_POSITION, rid=1, position=0, by=64),),
        ),
    )


def _tokens_swapped() -> Preset:
    one, two = Actor(1, (161, 162, 163, 164), (2, 3, 4, 5)), Actor(2, (261, 262, 263, 264), (8, 9, 10, 11))
    given = ((1, two.tokens[2]), (2, one.tokens[2]))
    return Preset(
        "token_swap",
        "sampler_exit",
        "Two requests get each other's token",
        "The sampler hands its results out in the wrong rows. The engine goes on with them, so its own list agrees with every record.",
        Scenario(
            slots=14,
            actors=(one, two),
            steps=tuple(ScriptStep(((one, prefix, count), (two, prefix, count))) for prefix, count in ((0, 2), (2, 1), (3, 1))),
            ops=tuple(
                FaultOp(hook=Hook.BEFORE_PLAN, kind=OpKind.SWAP_TOKEN, step=1, until=3, rid=rid, position=2, token=token, known=True)
                for rid, token in given
            ),
        ),
    )


def _draft_positions() -> Preset:
    drafting = Actor(1, (171, 172, 173, 174, 175, 176), (7, 6, 5, 4, 3, 2))
    return Preset(
        "draft_pool",
        "position_ahead",
        "The draft model one position ahead",
        "Positions are advanced before the draft forward instead of after it. The target model is right, the draft model's KV is not.",
        Scenario(
            slots=9,
            draft=True,
            actors=(drafting,),
            steps=(ScriptStep(((drafting, 0, 3),)), ScriptStep(((drafting, 3, 1),)), ScriptStep(((drafting, 4, 1),))),
            ops=(at(Hook.WRITE, 1, OpKind.SHIFT_POSITION, group=Group.DRAFT, rid=1, position=3, by=1),),
        ),
    )


def _chunk_end() -> Preset:
    prompt = Actor(1, (181, 182, 183, 184, 185, 186, 187), (2, 3, 4, 5, 6, 7, 8))
    return Preset(
        "draft_pool",
        "chunk_end_token",
        "A prompt chunk that ends with a guess",
        "The draft model stores the next token. At the end of a chunk it takes the target's prediction, though the prompt goes on.",
        Scenario(
            slots=10,
            draft=True,
            actors=(prompt,),
            steps=(ScriptStep(((prompt, 0, 4),)), ScriptStep(((prompt, 4, 2),))),
            ops=(at(Hook.WRITE, 0, OpKind.SWAP_TOKEN, group=Group.DRAFT, rid=1, position=3, token=990),),
        ),
    )


def _chunk_end_in_a_reply() -> Preset:
    tokens = (191, 192, 193, 194, 195, 196, 197, 198)
    first, again = Actor(1, tokens, (2, 3, 4, 5, 6, 7, 8, 9)), Actor(2, tokens, (12, 13, 14, 15, 16, 17, 18, 19))
    return Preset(
        "draft_pool",
        "chunk_end_after_retraction",
        "A chunk that ends inside a reply",
        "Three tokens of prompt, three of reply, then the pool is full and the request sent back. It computes all six again in chunks, and a "
        "chunk that ends in the reply finds no next token in the prompt.",
        Scenario(
            slots=22,
            draft=True,
            actors=(first, again),
            steps=(
                ScriptStep(((first, 0, 3),)),
                ScriptStep(((first, 3, 3),)),
                ScriptStep(((again, 0, 5),)),
                ScriptStep(((again, 5, 2),)),
            ),
            ops=(at(Hook.WRITE, 2, OpKind.SWAP_TOKEN, group=Group.DRAFT, rid=2, position=4, token=991),),
        ),
    )


INPUT_PRESETS: Mapping[str, Preset] = {
    "cell-of-another-request": _cell_of_another(),
    "row-replaced-for-one-forward": _row_replaced(),
    "window-translation-cleared": _translation_cleared(),
    "first-token-at-position-64": _first_position(),
    "sampled-tokens-change-places": _tokens_swapped(),
    "draft-model-one-position-ahead": _draft_positions(),
    "prompt-chunk-ends-with-a-guess": _chunk_end(),
    "chunk-ends-inside-a-reply": _chunk_end_in_a_reply(),
}
