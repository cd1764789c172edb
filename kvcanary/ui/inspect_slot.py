"""One slot of a log: stored against expected, its neighbours in the pool and in the chain, all its records, and the raw lines of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from kvcanary.analysis.incidents import MAX_ROWS, pool_of, replica_of
from kvcanary.analysis.inspection import hash_text, record_line
from kvcanary.analysis.log_stream import lines_around
from kvcanary.analysis.slot_card import diff_bits
from kvcanary.analysis.violations import Violation
from kvcanary.escape import html_text, visible
from kvcanary.layout import WRITE_REASONS
from kvcanary.ui import blocks, inspect_map, style
from kvcanary.ui import inspect_address as address
from kvcanary.ui.inspect_reading import Loaded
from kvcanary.units import format_count

RECORD_LIMIT = 1000
_TEXT_LIMIT = 60
_LINE_CHARS = 2000
_NEAR = 4
_NAMED = 4


def draw(found: Loaded) -> None:
    """The card of the chosen slot; the first reported slot until one is chosen."""
    inspected = found.inspected
    slots, kept = inspected.cross.slots, inspected.cross.mask(address.filters())
    if not (slots[kept] >= 0).any():
        return
    slot = address.chosen_slot()
    if slot is None:
        slot = _first_slot(found, kept)
    mine = np.flatnonzero(kept & (slots == slot))
    left, right = st.columns(2, gap="medium")
    with left:
        if len(mine):
            records = [inspected.log.violations[row] for row in mine[:RECORD_LIMIT].tolist()]
            chosen = _chosen_record(slot, len(records))
            _card(found, slot, int(mine[0]), len(mine), records[chosen])
        else:
            style.caption(f"No violation of slot {format_count(slot)} is listed under these filters.")
    with right:
        inspect_map.window(found, slot)
    if len(mine):
        left, right = st.columns(2, gap="medium")
        with left:
            _records(slot, records, len(mine))
        with right:
            _raw_lines(found, records[chosen])


def _first_slot(found: Loaded, kept: np.ndarray) -> int:
    """The first cause that the filters leave, else the first row that names a slot."""
    slots = found.inspected.cross.slots
    for incident in found.inspected.diagnosis.incidents:
        for finding in incident.causes:
            if any(kept[row] for row in finding.rows):
                return finding.slot
    return int(slots[np.flatnonzero(kept & (slots >= 0))[0]])


def _chosen_record(slot: int, count: int) -> int:
    state = st.session_state.get(f"inspect_records.{slot}")
    rows = state["selection"]["rows"] if state else []
    return rows[0] if rows and rows[0] < count else 0


def _card(found: Loaded, slot: int, row: int, count: int, record: Violation) -> None:
    st.html(
        f'<p class="kvc-finding" data-testid="inspect-card"><span class="kvc-badge">X reported</span>'
        f"<b>Slot {format_count(slot)}</b> · {format_count(count)} record{'' if count == 1 else 's'}</p>"
        f'<p class="kvc-why">{html_text(_role(found, row, slot))}</p>'
        f'<p class="kvc-why">{html_text(_title(record))}</p>'
    )
    blocks.table(("field", "stored", "expected", "bits that differ"), _fields(record))
    _chain(found, slot, record)
    slots = found.inspected.cross.slots
    near = sorted(set(slots[np.abs(slots - slot) <= _NEAR].tolist()) - {slot})
    style.caption(f"Neighbours in the pool that are reported too: {', '.join(format_count(other) for other in near) or 'none'}.")


def _chain(found: Loaded, slot: int, record: Violation) -> None:
    """Neighbours in the chain, as far as they are reported themselves: hashes tell who they are."""
    links, key = found.inspected.links, (replica_of(record.stream), pool_of(record), slot)
    before, expected, after = links.before.get(key), links.expected.get(key), links.after.get(key, ())
    words: list[tuple[str, tuple[int, ...], str]] = []
    if expected is not None:
        words.append(("should follow slot", (expected,), "The hash expected here follows from the record of that slot."))
    if before is not None and before != expected:
        words.append(
            ("stored hash follows slot", (before,), "The hash stored here follows from the record of that slot: it was written behind it.")
        )
    if after:
        words.append(("followed by slot", after[:3], "The hash expected there follows from the record of this slot."))
    if not words:
        style.caption("Neighbours in the chain: none of them is reported, and SGLang does not print who they are.")
        return
    with st.container(horizontal=True, gap="small"):
        for title, others, help_text in words:
            for other in others:
                st.button(
                    f"{title} {format_count(other)}", key=f"inspect_go.{title}.{other}", on_click=address.choose_slot, args=(other,),
                    help=help_text,
                )  # fmt: skip


def _role(found: Loaded, row: int, slot: int) -> str:
    for incident in found.inspected.diagnosis.incidents:
        for finding in incident.findings:
            if finding.slot == slot and row in finding.rows:
                if finding.echo_of is not None:
                    return f"An echo in incident {incident.number}: slot {format_count(finding.echo_of)} before it in the chain explains all of it."
                followers = sorted({other.slot for other in incident.echoes if other.echo_of == slot})
                echoed = f"; echoed by {_slots(followers)}" if followers else ""
                return f"A cause in incident {incident.number}: no other slot explains it{echoed}."
    return f"Not part of an incident: incidents are made of the first {format_count(MAX_ROWS)} records."


def _slots(numbers: Sequence[int]) -> str:
    shown, more = numbers[:_NAMED], len(numbers) - _NAMED
    words = ", ".join(map(format_count, shown)) + (f" and {format_count(more)} more" if more > 0 else "")
    return f"slot{'' if len(numbers) == 1 else 's'} {words}"


def _title(record: Violation) -> str:
    step = "unknown step" if record.step is None else f"step {record.step}"
    return f"{record.stream.label}, {record.launch_tag}, {step}: {' + '.join(record.reasons) or 'none'}"


def _fields(record: Violation) -> list[tuple[str, str, str, str]]:
    """SGLang prints an expected chain hash for verify rows, an expected position for write rows, and -1 for a token it does not check."""
    write = bool(record.bits & WRITE_REASONS)
    token = None if record.expected_token == -1 else record.expected_token
    chain = None if write else record.expected_aux
    differing = "" if chain is None or record.stored_chain_hash is None else _bits(record.stored_chain_hash ^ chain)
    return [
        ("token", _number(record.stored_token), _number(token), _bits_of(record.stored_token, token)),
        ("position", _number(record.position), _number(record.expected_position), _bits_of(record.position, record.expected_position)),
        ("prev_hash", hash_text(record.stored_chain_hash) or "cut", hash_text(chain) or "not printed", differing or "?"),
    ]


def _number(value: int | None) -> str:
    return "not printed" if value is None else str(value)


def _bits_of(stored: int | None, expected: int | None) -> str:
    return "?" if stored is None or expected is None else _bits((stored ^ expected) & (1 << 64) - 1)


def _bits(mask: int) -> str:
    return diff_bits(mask) if mask else "same"


def _records(slot: int, records: Sequence[Violation], count: int) -> None:
    st.markdown("**All records of this slot**", help="Select a row (Shift+Space) to see its fields and its raw lines.")
    table = pd.DataFrame(
        {
            "time": [str(record.time or "unknown") for record in records],
            "rank": [record.stream.label for record in records],
            "launch tag": [record.launch_tag for record in records],
            "reasons": [" + ".join(record.reasons) or "none" for record in records],
            "step": [record.step for record in records],
            "position": [record.position for record in records],
            "token": [record.stored_token for record in records],
            "line": [record.line for record in records],
        }
    )
    st.dataframe(
        table, key=f"inspect_records.{slot}", hide_index=True, on_select="rerun", selection_mode="single-row",
        height=min(300, 40 + 36 * len(table)), alt="Records of this slot; select a row (Shift+Space) to see its raw lines.",
    )  # fmt: skip
    if count > len(records):
        style.caption(f"The first {format_count(len(records))} of {format_count(count)} records; the CSV has all.")
    with st.expander("As text"):
        lines = [record_line(record) for record in records[:_TEXT_LIMIT]]
        st.code(visible("\n".join(lines)), language=None, wrap_lines=True)


def _raw_lines(found: Loaded, record: Violation) -> None:
    st.markdown(f"**Raw lines**, from line {record.line}")
    source = found.sources.get(record.file)
    lines: list[tuple[int, str]] = []
    if source is not None:
        try:
            with source() as stream:
                lines = lines_around(stream, line=record.line, marks=found.inspected.log.line_marks.get(record.file, ()))
        except OSError:
            lines = []  # Rotated away or no longer allowed: said below.
    text = "\n".join(f"{number:>7}{'>' if number == record.line else ' '} {visible(line[:_LINE_CHARS])}" for number, line in lines)
    st.code(text or "the line is no longer at hand", language=None, wrap_lines=True)
