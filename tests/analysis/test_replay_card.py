"""The slot card of a replay: who is accused and who is wrong, echoes, what no check sees, and the bytes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kvcanary import layout
from kvcanary.analysis.replay_card import ReplayCard, buffers_of, replay_card, slot_rows
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.memory import Group
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CampaignPlan
from kvcanary.lab.replay import Replay, ReplayFrame, replay
from kvcanary.layout import FailReason, RealKvHashMode, SlotStatus
from kvcanary.serving.engine import OWNER_FREE

CONFIGS = {
    "partial": CanaryConfig(real_data=RealKvHashMode.PARTIAL),
    "swept": CanaryConfig(real_data=RealKvHashMode.ALL, sweep_interval=1),
    "everything": CanaryConfig(real_data=RealKvHashMode.ALL, verify_v_half=True, verify_token_assert=True, sweep_interval=4),
}


@cache
def played(kind: str, variant: str, config: str) -> Replay:
    plan = CampaignPlan(faults=((kind, variant),), configs=CONFIGS, seeds=(0,))
    return replay(plan, (kind, variant, config, 0), choose_backend("auto", "cpu")[0])


def at_fault(found: Replay) -> ReplayFrame:
    assert found.record is not None
    return next(frame for frame in found.frames if frame.index == found.record.step)


def card_of(found: Replay, slot: int, buffer: str | None = None) -> ReplayCard:
    return replay_card(found, at_fault(found), Group.FULL, slot, buffer)


def field(card: ReplayCard, name: str) -> tuple[bool, bool]:
    """Whether verify accuses a field, and whether it is wrong."""
    view = next(view for view in card.fields if view.name == name)
    return view.flagged, view.wrong


@pytest.mark.parametrize(
    ("kind", "variant", "config"),
    [
        ("late_write_after_free", "with_records", "everything"),
        ("slot_alias", "wrong_cell", "everything"),
        ("payload_bytes", "bit_flip", "partial"),
        ("canary_memory", "tail_record", "partial"),
        ("tier_reload", "records_left_behind", "swept"),
    ],
)
def test_what_the_card_flags_is_what_the_launch_reported(kind: str, variant: str, config: str) -> None:
    """The card works out for itself what verify expects; the ring is the other witness."""
    found = played(kind, variant, config)
    pool = at_fault(found).pools[Group.FULL]
    assert pool.reported.size
    names = {
        FailReason.VERIFY_TOKEN: "token",
        FailReason.VERIFY_POSITION: "position",
        FailReason.VERIFY_CHAIN_HASH: "prev_hash",
        FailReason.VERIFY_REAL_KV_HASH: "real_kv_hash",
    }
    for slot in pool.reported.tolist():
        for buffer in buffers_of(found.config):
            phase, half = buffer.split("_")[1].upper(), buffer[0].upper()
            tags = [layout.LaunchTag[f"{phase}_{half}_FULL"]]
            bits = 0
            for row in slot_rows(pool, slot):
                bits |= row[7] if row[0] in tags else 0
            flagged = {view.name for view in card_of(found, slot, buffer).fields if view.flagged}
            assert flagged == {name for reason, name in names.items() if bits & reason}, (slot, buffer)


def echo_of(slot: int, why: str) -> str:
    return f"An echo: the record here is as it was written. The chain hash that verify computes from slot {slot} does not lead here, {why}."


def test_an_overwritten_slot_is_wrong_and_its_successor_only_accused() -> None:
    found = played("late_write_after_free", "with_records", "partial")
    hit, echo = at_fault(found).pools[Group.FULL].reported.tolist()
    card, other = card_of(found, hit), card_of(found, echo)
    assert field(card, "prev_hash") == field(card, "position") == (True, True)
    assert field(other, "prev_hash") == (True, False)
    assert not any(view.wrong for view in other.fields)
    assert echo_of(hit, "because that record changed") in other.sentences
    assert any("were written over slot" in sentence for sentence in card.sentences)
    assert not any(sentence.startswith("An echo") for sentence in card.sentences)


def test_the_strip_shows_where_the_chain_breaks() -> None:
    found = played("late_write_after_free", "with_records", "partial")
    hit, echo = at_fault(found).pools[Group.FULL].reported.tolist()
    card = card_of(found, hit)
    assert card.before is not None
    assert card.here is not None
    assert card.after is not None
    assert (card.here.cell.slot, card.after.cell.slot) == (hit, echo)
    assert card.before.leads_to != card.here.prev_hash
    assert card.here.leads_to != card.after.prev_hash
    before = card_of(found, card.before.cell.slot)
    assert before.before is not None
    assert before.here is not None
    assert before.before.leads_to == before.here.prev_hash
    assert [cell.position for cell in card.chain] == list(range(len(card.chain)))
    assert [cell.written for cell in card.chain] == [False] * (len(card.chain) - 1) + [True]


def test_behind_a_wrong_cell_the_echo_blames_the_cell() -> None:
    found = played("slot_alias", "wrong_cell", "everything")
    (hit,) = found.record.slots if found.record else ()
    (echo,) = set(at_fault(found).pools[Group.FULL].reported.tolist()) - {hit}
    assert echo_of(hit, "because the cell before it names another slot than its own") in card_of(found, echo).sentences


@pytest.mark.parametrize(
    ("kind", "variant", "flagged"), [("slot_alias", "seed_at_slot_0", False), ("stale_row", "fully_overwritten", True)]
)
def test_what_was_chained_to_a_wrong_record_is_no_echo(kind: str, variant: str, flagged: bool) -> None:
    """The token was written when its predecessor was wrong, so its own record is wrong too, whether verify has looked yet or not."""
    found = played(kind, variant, "everything")
    for frame in found.frames[found.frames.index(at_fault(found)) :]:
        pool = frame.pools[Group.FULL]
        blamed = [slot for slot in pool.reported.tolist() if slot not in pool.injected]
        cards = [replay_card(found, frame, Group.FULL, slot) for slot in blamed]
        written = [card for card in cards if field(card, "prev_hash") == (flagged, True)]
        if written:
            break
    assert [card.sentences[-1] for card in written] == [
        "Written behind a wrong record, or through a wrong cell: its prev_hash goes on from there, and stays wrong."
    ]


def test_through_a_wrong_cell_a_right_record_is_accused() -> None:
    found = played("slot_alias", "wrong_cell", "everything")
    op = found.record.ops[0] if found.record else None
    assert op is not None
    card = card_of(found, op.slot)
    assert (card.rid, card.position) == (op.rid, op.position)
    assert field(card, "position") == field(card, "prev_hash") == field(card, "token") == (True, False)
    assert "The record is right for its owner; whoever reads it here expects another one." in card.sentences
    assert any(f"position {op.position}, names slot {op.slot}" in sentence for sentence in card.sentences)


def test_bytes_outside_the_hashed_range_are_wrong_and_not_seen() -> None:
    found = played("payload_bytes", "later_bytes", "partial")
    slot = found.record.slots[0] if found.record else 0
    card = card_of(found, slot)
    k_row = card.byte_rows[0]
    assert k_row.hashed == frozenset(range(16))
    assert k_row.differing == tuple(range(24, 40))
    assert field(card, "real_kv_hash") == (False, False)
    assert card.status == SlotStatus.INJECTED
    assert "Nothing in this step reports it." in card.sentences
    assert card_of(played("payload_bytes", "later_bytes", "everything"), slot).byte_rows[0].hashed == frozenset(range(64))


def test_the_v_rows_are_hashed_only_with_the_v_half() -> None:
    plain, whole = (played("payload_bytes", "v_row", config) for config in ("partial", "everything"))
    slot = plain.record.slots[0] if plain.record else 0
    assert [bool(row.hashed) for row in card_of(plain, slot).byte_rows] == [True, False, False]
    assert [bool(row.hashed) for row in card_of(whole, slot).byte_rows] == [True, True, False]
    assert (card_of(plain, slot).byte_rows[1].differing, buffers_of(plain.config)) == ((0,), ("k_head", "k_tail"))


def test_a_free_slot_has_no_chain_and_slot_0_is_padding() -> None:
    found = played("payload_bytes", "bit_flip", "partial")
    pool = at_fault(found).pools[Group.FULL]
    free = int(np.flatnonzero(pool.owners == OWNER_FREE)[0])
    card = card_of(found, free)
    assert (card.chain, card.here, card.byte_rows, card.position) == ((), None, (), None)
    assert card.sentences == ("Free: no request and no prefix uses it.",)
    assert card_of(found, 0).sentences == ("Slot 0 is padding: verify skips it, and the chain check of whatever follows it.",)


def test_what_only_the_sweep_reads_has_the_chain_of_the_tree() -> None:
    found = played("payload_bytes", "cached_only", "swept")
    slot = found.record.slots[0] if found.record else 0
    card = card_of(found, slot)
    assert (card.owner, card.rid) == ("prefix tree only", None)
    assert [cell.position for cell in card.chain] == list(range(len(card.chain)))
    assert field(card, "real_kv_hash") == (True, False)
    assert "The record is as it was written; the KV bytes it vouches for are not." in card.sentences
    assert any("SWEEP_K_FULL reports verify_real_kv_hash" in sentence for sentence in card.sentences)


def test_a_token_just_written_is_not_verified_yet() -> None:
    found = played("payload_bytes", "bit_flip", "partial")
    pool = at_fault(found).pools[Group.FULL]
    fresh = next(slot for slot in pool.written.slots.tolist() if slot not in pool.injected)
    card = card_of(found, fresh)
    assert card.status == SlotStatus.SKIPPED
    assert card.sentences == ("Written in this step; the next one verifies it.",)
    assert all(view.expected is None for view in card.fields)
    assert not any(view.wrong for view in card.fields)
