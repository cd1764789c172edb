"""One run of a campaign as a film: a step slider with play and keys, the timeline, the pool, the slot card and the reports."""

from __future__ import annotations

import time

import streamlit as st

from kvcanary.analysis.replay_card import owner_name
from kvcanary.charts import replay as charts
from kvcanary.escape import html_text
from kvcanary.faults.catalogue import CATALOGUE
from kvcanary.faults.injectors import FaultRecord
from kvcanary.faults.memory import Group
from kvcanary.lab.campaign import CellSummary
from kvcanary.lab.replay import PoolView, Replay, ReplayFrame
from kvcanary.layout import LaunchTag, SlotStatus, reason_labels
from kvcanary.ui import fault_lab_address, fault_lab_data, fault_lab_slot, selection, state, style
from kvcanary.ui.fault_lab_data import Campaign
from kvcanary.units import format_count

_CONFIG = {"displayModeBar": False}
_TICK_S = 1.0
_PLAYING, _MOVED = "replay_playing", "replay_moved_s"
_GROUP_NAMES = {Group.FULL: "full pool", Group.SWA: "window pool", Group.DRAFT: "draft model's pool"}


def draw(campaign: Campaign, cell: CellSummary) -> None:
    """A run of a cell; says why when there is none."""
    wanted = (cell.kind, cell.variant, cell.config)
    seeds = campaign.seeds(wanted)
    if not seeds:
        why = cell.reason or "no run of this cell found a victim"
        style.verdict(f"There is nothing to replay: {why}.", "note")
        return
    asked = fault_lab_address.number("seed")
    seed = asked if asked in seeds else seeds[0]
    played = fault_lab_data.played(campaign.plan, campaign.run_id, (*wanted, seed))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        back_button()
        key = f"seed.{campaign.run_id}.{'.'.join(wanted)}"
        st.markdown(":small[Seed]", help="A run of this cell; equal seeds give equal runs.", width="content")
        st.selectbox(
            "Run with seed", seeds, index=seeds.index(seed), key=key, width=110, on_change=_take_seed, args=(key,),
            label_visibility="collapsed", format_func=str,
        )  # fmt: skip
        group, by = _view_choice(played)
    reason = f" Out of reach of this configuration: {cell.reason}." if cell.reason else ""
    style.caption(f"{cell.kind}.{cell.variant} under “{cell.config}”. {_story(played)}{reason}")
    # How often a fragment runs by itself is settled when the page is drawn, so play and pause draw the page anew.
    st.fragment(_film, run_every=_TICK_S if st.session_state.get(_PLAYING) else None)(played, group, by)


def title(kind: str, variant: str) -> str:
    """The head of the page for a fault; for one that does not exist that of the lab."""
    fault = next((fault for fault in CATALOGUE if fault.kind == kind), None)
    found = next((one for one in fault.variants if one.name == variant), None) if fault else None
    return f"{fault.title}: {found.what}" if fault and found else "Fault lab"


def back_button() -> None:
    """Back to the matrix, also by key."""
    st.button("Matrix", key="back", icon=":material/arrow_back:", on_click=_leave, shortcut="M")


def _leave() -> None:
    st.session_state[_PLAYING] = False
    fault_lab_address.close()


def _take_seed(key: str) -> None:
    if fault_lab_address.cell() is not None:
        fault_lab_address.open_seed(st.session_state[key])


def _story(played: Replay) -> str:
    """What was done and when it was told, in a sentence."""
    record = played.record
    if record is None:
        return "The fault found no victim in this run."
    done = f"Injected in step {record.step}{_where(played, record)}."
    if played.first_report is None:
        return f"{done} It was never reported."
    frame = next(frame for frame in played.frames if frame.index == played.first_report)
    after = played.first_report - record.step
    soon = "in the same step" if not after else f"{after} step{'s' if after > 1 else ''} later"
    return f"{done} First reported {soon}, by {_first_tags(frame)}."


def _where(played: Replay, record: FaultRecord) -> str:
    """The damaged slots and who uses them; of a wrong input, which is no slot, whose token it is."""
    if not record.slots:
        cells = list(dict.fromkeys((op.rid, op.position) for op in record.ops if op.rid >= 0))
        tokens = [f"position {position} of request {rid}" for rid, position in cells]
        more = " and others" if len(tokens) > 3 else ""
        return f" at {' and '.join(tokens[:3])}{more} in the {_GROUP_NAMES[played.group]}" if tokens else ""
    slots = ", ".join(format_count(slot) for slot in record.slots[:4]) + (" and more" if len(record.slots) > 4 else "")
    readers = ", ".join(map(str, record.rids[:3])) + (" and others" if len(record.rids) > 3 else "")
    who = f", which request{'s' if len(record.rids) > 1 else ''} {readers} use{'' if len(record.rids) > 1 else 's'}" if record.rids else ""
    return f" at slot {slots} of the {_GROUP_NAMES[played.group]}{who}"


def _first_tags(frame: ReplayFrame) -> str:
    rows = [*frame.rows.tolist(), *frame.draft_rows.tolist()]
    if not rows:
        return "a strict check alone"
    tags = list(dict.fromkeys(LaunchTag(row[0]).name for row in rows))
    reasons = list(dict.fromkeys(label for row in rows for label in reason_labels(row[7])))
    whose = "" if len(frame.rows) else " of the draft model's canary"
    return f"{', '.join(tags[:4])}{whose} as {', '.join(reasons)}"


def _film(played: Replay, group: Group, by: str) -> None:
    """Everything that changes from step to step."""
    frames = {frame.index: frame for frame in played.frames}
    key = f"step.{'.'.join(map(str, played.key))}"
    _advance(played, key)
    frame = frames[st.session_state[key]]
    pool = frame.pools[group]
    slot = _chosen_slot(played, group, pool)
    _controls(played, key, slot)
    text = charts.timeline_summary(played.frames)
    chosen_step = f"timeline.{key}"
    st.plotly_chart(
        charts.timeline(played.frames, frame.index, state.theme()), key=chosen_step, config=_CONFIG, alt=text, selection_mode="points",
        on_select=lambda: _take_step(chosen_step, key),
    )  # fmt: skip
    left, right = st.columns([11, 9], gap="medium")
    with left, st.container(key="kvl_pool"):
        _map(played, frame, pool, slot, by)
    with right:
        fault_lab_slot.card(played, frame, group, slot)
    fault_lab_slot.kv_bytes(played, frame, group, slot)
    _reports(frame)
    _tables(played, frame, pool, key, text)


def _advance(played: Replay, key: str) -> None:
    """The step to show: where a link says, else where the fault is; the next one when it is time and the film plays."""
    steps = [frame.index for frame in played.frames]
    record = played.record
    if st.session_state.get(key) not in steps:
        asked = fault_lab_address.number("step")
        start = asked if asked in steps else record.step if record else steps[0]
        st.session_state[key] = start
    if not st.session_state.get(_PLAYING):
        return
    place = steps.index(st.session_state[key])
    if place + 1 >= len(steps):
        st.session_state[_PLAYING] = False
        st.rerun()
    # A click while the film plays runs this too, and must not move it.
    if time.monotonic() - st.session_state.get(_MOVED, 0.0) >= 0.7 * _TICK_S:
        st.session_state[key] = steps[place + 1]
        st.session_state[_MOVED] = time.monotonic()


def _controls(played: Replay, key: str, slot: int) -> None:
    steps = [frame.index for frame in played.frames]
    at = steps.index(st.session_state[key])
    playing = bool(st.session_state.get(_PLAYING))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="kvc_player"):
        _step_button("Back", key, steps[max(0, at - 1)], "J", "skip_previous", disabled=at == 0)
        label, icon = ("Pause", "pause") if playing else ("Play", "play_arrow")
        if st.button(label, key="play", icon=f":material/{icon}:", shortcut="K", type="primary", on_click=_toggle, args=(key, steps)):
            st.rerun()
        _step_button("Next", key, steps[min(len(steps) - 1, at + 1)], "L", "skip_next", disabled=at + 1 == len(steps))
        if played.record is not None:
            _step_button("Fault", key, played.record.step, "F", "bolt", disabled=False)
        if played.first_report is not None:
            _step_button("First report", key, played.first_report, "G", "flag", disabled=False)
        st.button(
            "Link", key="pin", icon=":material/link:", on_click=fault_lab_address.pin, args=(steps[at], slot),
            help="Puts this step and this slot into the address, to copy or to bookmark.",
        )  # fmt: skip
        st.select_slider(
            "Step", steps, key=key, help="Drag it, or focus it and use the arrow keys. J, K and L step and play from anywhere else."
        )


def _step_button(label: str, key: str, step: int, shortcut: str, icon: str, *, disabled: bool) -> None:
    st.button(
        label, key=f"go.{label}", icon=f":material/{icon}:", shortcut=shortcut, disabled=disabled, on_click=_go, args=(key, step)
    )  # fmt: skip


def _go(key: str, step: int) -> None:
    st.session_state[key] = step
    st.session_state[_PLAYING] = False


def _toggle(key: str, steps: list[int]) -> None:
    playing = not st.session_state.get(_PLAYING)
    st.session_state[_PLAYING], st.session_state[_MOVED] = playing, time.monotonic()
    if playing and st.session_state.get(key) == steps[-1]:
        st.session_state[key] = steps[0]


def _take_step(chart: str, key: str) -> None:
    if found := selection.marked(chart):
        _go(key, int(found[0][0]))


def _view_choice(played: Replay) -> tuple[Group, str]:
    groups = list(played.frames[0].pools)
    by = st.segmented_control(
        "Colour", [charts.STATUS, charts.OWNER], default=charts.STATUS, required=True, key="replay_by", persist_state="session",
        label_visibility="collapsed", format_func=lambda name: f"Colour by {name}",
    )  # fmt: skip
    group = played.group
    if len(groups) > 1:
        group = st.segmented_control(
            "Pool", groups, default=played.group, required=True, key=f"replay_group.{'.'.join(map(str, played.key))}",
            label_visibility="collapsed", format_func=_GROUP_NAMES.__getitem__,
        )  # fmt: skip
    return group, by


def _chosen_slot(played: Replay, group: Group, pool: PoolView) -> int:
    """The slot that the address names, else the damaged one, which a wrong input names by its token alone."""
    asked = fault_lab_address.number("slot")
    if asked is not None and asked < len(pool.status):
        return asked
    hit = played.record.slots if played.record else ()
    if played.record and not hit:
        hit = tuple(slot for frame in played.frames if frame.index == played.record.step for slot in frame.pools[group].injected.tolist())
    return next((slot for slot in hit if 0 <= slot < len(pool.status)), int(next(iter(pool.entries.slots.tolist()), 0)))


def _map(played: Replay, frame: ReplayFrame, pool: PoolView, slot: int, by: str) -> None:
    key = f"pool.{'.'.join(map(str, played.key))}"
    text = charts.map_summary(pool)
    st.plotly_chart(
        charts.pool_map(pool, slot, state.theme(), by=by), key=key, config=_CONFIG, alt=text, selection_mode="points",
        on_select=lambda: _take_slot(key),
    )  # fmt: skip
    style.caption(f"Step {frame.index}, {frame.mode}: {frame.requests} requests, {frame.tokens} tokens written. {text}")


def _take_slot(key: str) -> None:
    if found := selection.marked(key):
        fault_lab_address.open_slot(int(found[0][0]))


def _reports(frame: ReplayFrame) -> None:
    count = frame.report_count
    st.html(
        f'<div class="kvl-head" id="reports">Reports of step {frame.index}'
        f"<span>{html_text(format_count(count) + (' report' if count == 1 else ' reports') if count else 'none')}</span></div>"
    )
    if not count:
        style.caption("Nothing was reported in this step.")
        return
    parts = (
        ("", frame.report_texts),
        ("From the draft model's canary:", frame.draft_texts),
        ("From kvcanary's strict checks, which SGLang has not:", frame.strict_reports),
        ("What the strict check “details” keeps of each row:", frame.details),
    )
    for head, texts in parts:
        if texts:
            if head:
                style.caption(head)
            st.code(
                "\n".join(texts), language=None, wrap_lines=True, height=min(420, 60 + 24 * sum(text.count("\n") + 1 for text in texts))
            )
    style.caption("As SGLang prints them when it looks at the ring after this step; the first line of each is what log readers parse.")


def _tables(played: Replay, frame: ReplayFrame, pool: PoolView, key: str, text: str) -> None:
    """The table twins of map and timeline, which a keyboard reaches."""
    with st.expander("Marked slots of this step as a table: select a row (Shift+Space) to open its card", key="marked_slots"):
        slots = sorted({*pool.reported.tolist(), *pool.injected.tolist()}, key=lambda slot: (slot not in pool.reported, slot))
        if not slots:
            style.caption("No slot is marked in this step.")
        else:
            table = {
                "slot": slots,
                "status": [SlotStatus(int(pool.status[slot])).name.lower() for slot in slots],
                "owner": [owner_name(int(pool.owners[slot])) for slot in slots],
                "position": [int(pool.truth.positions[slot]) for slot in slots],
                "damaged on purpose": [bool((pool.injected == slot).any()) for slot in slots],
                "reported": [bool((pool.reported == slot).any()) for slot in slots],
            }
            st.dataframe(
                table, key=f"marked.{key}", hide_index=True, height=min(300, 40 + 36 * len(slots)), selection_mode="single-row",
                on_select=lambda: _take_slot_row(f"marked.{key}", slots),
                alt="Slots that are damaged or reported in this step; select a row (Shift+Space) to open its card.",
            )  # fmt: skip
    with st.expander("Every step as a table: select a row (Shift+Space) to go there", key="all_steps"):
        style.caption(text)
        steps = [one.index for one in played.frames]
        columns = {
            "step": steps,
            "mode": [one.mode for one in played.frames],
            "requests": [one.requests for one in played.frames],
            "tokens written": [one.tokens for one in played.frames],
            "slots freed": [one.freed for one in played.frames],
            "entries verified": [one.verified for one in played.frames],
            "units damaged": [one.changed for one in played.frames],
            "reports": [one.report_count for one in played.frames],
            "events": [", ".join(f"{count} {kind}" for kind, count in one.events.items()) for one in played.frames],
        }
        st.dataframe(
            columns, key=f"steps.{key}", hide_index=True, height=300, selection_mode="single-row",
            alt="Every step of the replay; select a row (Shift+Space) to go there.", on_select=lambda: _take_step_row(f"steps.{key}", key, steps),
        )  # fmt: skip


def _take_slot_row(table: str, slots: list[int]) -> None:
    if (row := selection.first_row(table)) is not None:
        fault_lab_address.open_slot(slots[row])


def _take_step_row(table: str, key: str, steps: list[int]) -> None:
    if (row := selection.first_row(table)) is not None:
        _go(key, steps[row])
