"""Pool map and timeline of a replay: every slot has a cell, damage and reports have marks of their own, sentences agree with them."""

from __future__ import annotations

from functools import cache

import pytest

from kvcanary.charts.replay import OWNER, STATUS, map_summary, pool_map, timeline, timeline_summary
from kvcanary.charts.theme import ThemeName
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.memory import Group
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CampaignPlan
from kvcanary.lab.replay import Replay, ReplayFrame, replay


@cache
def played() -> Replay:
    plan = CampaignPlan(faults=(("slot_alias", "wrong_cell"),), configs={"chain": CanaryConfig()}, seeds=(0,))
    return replay(plan, ("slot_alias", "wrong_cell", "chain", 0), choose_backend("auto", "cpu")[0])


def frame_at_fault() -> ReplayFrame:
    record = played().record
    assert record is not None
    return next(frame for frame in played().frames if frame.index == record.step)


@pytest.mark.parametrize("by", [STATUS, OWNER])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_damage_and_reports_have_marks_of_their_own_in_both_colourings(by: str, theme: ThemeName) -> None:
    pool = frame_at_fault().pools[Group.FULL]
    figure = pool_map(pool, 5, theme, by=by)
    marks = {trace.marker.symbol: trace for trace in figure.data[1:] if str(trace.marker.symbol).endswith("-open")}
    assert set(marks) == {"diamond-open", "square-open"}
    columns = 32
    for symbol, slots in (("diamond-open", pool.injected), ("square-open", pool.reported)):
        assert [x + y for x, y in zip(marks[symbol].x, marks[symbol].y, strict=True)] == slots.tolist()
        assert max(marks[symbol].x) < columns
    assert marks["diamond-open"].marker.color != marks["square-open"].marker.color


def test_every_slot_can_be_chosen_and_says_what_it_is() -> None:
    pool = frame_at_fault().pools[Group.FULL]
    cells = pool_map(pool, 5, "light").data[1]
    assert [data[0] for data in cells.customdata] == list(range(513))
    assert cells.hovertext[0] == "<b>slot 0</b><br>padding<br>reserved"


def test_by_owner_each_request_has_its_number_and_a_colour() -> None:
    pool = frame_at_fault().pools[Group.FULL]
    figure = pool_map(pool, 5, "light", by=OWNER)
    letters = dict(zip([x + y for x, y in zip(figure.data[2].x, figure.data[2].y, strict=True)], figure.data[2].text, strict=True))
    held = {slot: owner for slot, owner in enumerate(pool.owners.tolist()) if owner > 0}
    assert held
    assert all(letters[slot] == str(owner) for slot, owner in held.items())
    colors = {owner: figure.data[0].z.ravel()[slot] for slot, owner in held.items()}
    assert len(set(colors.values())) > 1


def test_the_map_in_a_sentence() -> None:
    pool = frame_at_fault().pools[Group.FULL]
    text = map_summary(pool)
    assert " of 512 slots verified" in text, "slot 0 is the padding slot"
    assert text.startswith(f"Slots {pool.reported[0]}, {pool.reported[1]} reported, slots {pool.injected[0]}, {pool.injected[1]} damaged")
    before = map_summary(played().frames[0].pools[Group.FULL])
    assert before.startswith("No slot reported, no slot damaged on purpose; ")


def test_the_timeline_shows_writes_frees_damage_and_reports_of_every_step() -> None:
    frames = played().frames
    written, freed, damage, reports = timeline(frames, 3, "light").data
    assert list(written.y) == [frame.tokens for frame in frames]
    assert list(freed.y) == [-frame.freed for frame in frames]
    assert list(damage.x) == [frame.index for frame in frames if frame.changed]
    assert list(reports.x) == [frame.index for frame in frames if frame.report_count]
    assert damage.marker.symbol != reports.marker.symbol
    assert [data[0] for data in written.customdata] == [frame.index for frame in frames]


def test_the_timeline_in_a_sentence() -> None:
    frames = played().frames
    text = timeline_summary(frames)
    assert text.startswith(f"{len(frames)} steps, ")
    assert f"damage in {sum(bool(frame.changed) for frame in frames)} steps from 12" in text
    assert timeline_summary(frames[:5]).endswith("no damage; no report.")
