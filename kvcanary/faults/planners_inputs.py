"""Planners of faults in what a forward is told: cells of the request table, where it writes, at which position, which token."""

from __future__ import annotations

from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.planning import FOREVER, Planner, op
from kvcanary.faults.scene import Scene


def redirect(kind: OpKind, *, lasting_cell: bool = False) -> Planner:
    """This forward's token goes to a slot that another request of the batch reads."""

    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written()
        slot = scene.foreign_slot(token.rid) if token else None
        if token is None or slot is None:
            return []
        ops = [op(scene, Hook.WRITE, kind, rid=token.rid, position=token.position, slot=slot)]
        if lasting_cell:
            ops.append(op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=token.rid, position=token.position, slot=slot))
        return ops

    return plan


def set_cell(scene: Scene) -> list[FaultOp]:
    """A cell of a prefix names another request's slot."""
    cell = scene.prefix_cell()
    slot = scene.foreign_slot(cell.rid) if cell else None
    if cell is None or slot is None:
        return []
    return [op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=slot)]


def zero_cell(scene: Scene) -> list[FaultOp]:
    """A cell of a prefix names slot 0."""
    cell = scene.prefix_cell()
    if cell is None:
        return []
    return [op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=0)]


def zero_seed(scene: Scene) -> list[FaultOp]:
    """The cell before the first token of this forward names slot 0, so that its chain goes on from padding."""
    cell = scene.seed_cell()
    return (
        [] if cell is None else [op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, lasting=True, rid=cell.rid, position=cell.position, slot=0)]
    )


def stale_row(*, whole: bool) -> Planner:
    """Leading cells of one row are another's. The victim's prefix is the shorter one, so that the other can fill it."""

    def plan(scene: Scene) -> list[FaultOp]:
        places = sorted(scene.prefixes(6), key=lambda place: int(scene.step.prefix_lens[place]))
        if len(places) < 2:
            return []
        victim, other = places[0], places[-1]
        length = int(scene.step.prefix_lens[victim]) if whole else int(scene.step.prefix_lens[victim]) // 2
        mine, theirs = scene.cells(victim)[:length], scene.cells(other)[:length]
        if (mine == theirs).any():
            return []
        return [
            op(scene, Hook.BEFORE_PLAN, OpKind.SET_TABLE, rid=scene.rid(victim), position=position, slot=int(slot))
            for position, slot in enumerate(theirs)
        ]

    return plan


def shift(*, first: bool) -> Planner:
    """A token is written at a position 1, 2 or 64 too high."""

    def plan(scene: Scene) -> list[FaultOp]:
        token = scene.written(first_of_request=first)
        if token is None:
            return []
        by = int(scene.rng.choice([1, 2, 64]))
        return [op(scene, Hook.WRITE, OpKind.SHIFT_POSITION, rid=token.rid, position=token.position, by=by)]

    return plan


def draft_position(scene: Scene) -> list[FaultOp]:
    """The draft runner writes a token at a position 1 too high."""
    token = scene.written()
    if token is None:
        return []
    return [op(scene, Hook.WRITE, OpKind.SHIFT_POSITION, group=Group.DRAFT, rid=token.rid, position=token.position, by=1)]


def draft_chunk_end(*, in_output: bool) -> Planner:
    """The draft runner takes a wrong token at the end of a prompt chunk, or of what a request had said before it was sent back."""

    def plan(scene: Scene) -> list[FaultOp]:
        end = scene.chunk_end(in_output=in_output)
        if end is None:
            return []
        vocab = scene.engine.options.vocab_size
        wrong = (scene.token_of(end.rid, end.position + 1) + 1 + int(scene.rng.integers(vocab - 1))) % vocab
        return [op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, group=Group.DRAFT, rid=end.rid, position=end.position, token=wrong)]

    return plan


def wrong_token(scene: Scene) -> list[FaultOp]:
    """A token is written that is not the one which the request was given."""
    token = scene.written()
    if token is None:
        return []
    vocab = scene.engine.options.vocab_size
    wrong = (scene.token_of(token.rid, token.position) + 1 + int(scene.rng.integers(vocab - 1))) % vocab
    return [op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=token.rid, position=token.position, token=wrong)]


def swap_tokens(scene: Scene) -> list[FaultOp]:
    """Two decoding requests get each other's token, in the input and in the engine's own list."""
    tokens = [
        (rid, p)
        for rid, p, e in zip(scene.step.rids, scene.step.prefix_lens, scene.step.extend_seq_lens, strict=True)
        if e == 1 and rid > 0
    ]
    if len(tokens) < 2:
        return []
    chosen = scene.rng.choice(len(tokens), size=2, replace=False)
    (a, at), (b, bt) = (tuple(map(int, tokens[i])) for i in chosen)
    mine, theirs = scene.token_of(a, at), scene.token_of(b, bt)
    if mine == theirs:
        return []
    pairs = ((a, at, theirs), (b, bt, mine))
    return [
        op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=pairs[0][0], position=pairs[0][1], token=pairs[0][2], known=True),
        op(scene, Hook.WRITE, OpKind.SWAP_TOKEN, rid=pairs[1][0], position=pairs[1][1], token=pairs[1][2], known=True),
        *(
            FaultOp(
                hook=Hook.BEFORE_PLAN,
                kind=OpKind.SWAP_TOKEN,
                step=scene.step.index + 1,
                until=FOREVER,
                rid=rid,
                position=position,
                token=token,
                known=True,
            )
            for rid, position, token in pairs
        ),
    ]


def window_cleared(scene: Scene) -> list[FaultOp]:
    """The entry of a prefix slot in the window's mapping becomes 0."""
    cell = scene.prefix_cell() if scene.step.window else None
    return [] if cell is None else [op(scene, Hook.BEFORE_PLAN, OpKind.SET_MAPPING, slot=cell.slot, by=0)]
