"""One slot of a log: stored against expected, the slots beside it, its echo, its records and the raw lines around one."""

from __future__ import annotations

import io

import pandas as pd
import streamlit as st

from kvcanary.analysis.incidents import MAX_ROWS
from kvcanary.analysis.inspection import hash_text
from kvcanary.analysis.log_stream import lines_around
from kvcanary.analysis.slot_card import diff_bits
from kvcanary.analysis.violations import Violation
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.layout import WRITE_REASONS
from kvcanary.ui import blocks, style
from kvcanary.ui.inspect_input import SLOT, Inspection
from kvcanary.units import format_count, parse_integer

RECORD_LIMIT = 200
_TYPED, _PROBLEM = "inspect_typed", "inspect_slot_problem"


def draw(found: Inspection, rows: pd.DataFrame) -> None:
    """The number box, and the card of the chosen slot; the first reported slot until one is chosen."""
    if rows.empty or not rows["slot_idx"].notna().any():
        return
    slot = st.session_state.get(SLOT)
    if slot is None:
        slot = next((f.slot for incident in found.diagnosis.incidents for f in incident.causes), int(rows["slot_idx"].dropna().iloc[0]))
    st.text_input("Go to slot", key=_TYPED, placeholder="slot number", on_change=_take_typed, width=260)
    style.line(st.session_state.get(_PROBLEM, ""), "error")
    mine = rows[rows["slot_idx"].eq(slot).fillna(False)]
    if mine.empty:
        style.caption(f"No violation of slot {format_count(slot)} is listed under these filters.")
        return
    _card(found, rows, mine, slot)


def _take_typed() -> None:
    text = st.session_state[_TYPED] or ""
    st.session_state[_PROBLEM] = ""
    try:
        if text.strip():
            st.session_state[SLOT] = parse_integer(text)
    except ConfigError as error:
        st.session_state[_PROBLEM] = f"slot {error}"


def _card(found: Inspection, rows: pd.DataFrame, mine: pd.DataFrame, slot: int) -> None:
    numbers = mine.index[:RECORD_LIMIT].tolist()
    records = [found.log.violations[number] for number in numbers]
    near = {int(other) for other in rows["slot_idx"][rows["slot_idx"].between(slot - 4, slot + 4).fillna(False)]}
    around = "  ".join(f"{other}:{'X' if other in near else '·'}" for other in range(max(0, slot - 4), slot + 5))
    left, right = st.columns(2, gap="medium")
    with left:
        st.html(
            f'<p class="kvc-finding" data-testid="inspect-card"><span class="kvc-badge">X reported</span>'
            f"<b>Slot {format_count(slot)}</b> · {format_count(len(mine))} records</p>"
            f'<p class="kvc-why">{html_text(_role(found, numbers[0], slot))}</p>'
        )
        chosen = st.selectbox("Record", range(len(records)), format_func=lambda at: _title(records[at]), key=f"inspect_record.{slot}")
        record = records[chosen or 0]
        blocks.table(("field", "stored", "expected", "bits that differ"), _fields(record))
        style.caption(f"Neighbours in the pool: {around} (X: reported here too)")
        if len(mine) > len(records):
            style.caption(f"The first {format_count(len(records))} of {format_count(len(mine))} records; the CSV has all.")
    with right:
        st.markdown(f"**Raw lines**, from line {record.line}")
        source = found.sources.get(record.file)
        lines = lines_around(io.BytesIO(source), line=record.line) if source is not None else []
        text = "\n".join(f"{number:>7}{'>' if number == record.line else ' '} {line[:2000]}" for number, line in lines)
        st.code(text or "the line is no longer at hand", language=None, wrap_lines=True)


def _role(found: Inspection, row: int, slot: int) -> str:
    for incident in found.diagnosis.incidents:
        for finding in incident.findings:
            if finding.slot == slot and row in finding.rows:
                if finding.echo_of is not None:
                    return f"An echo in incident {incident.number}: slot {finding.echo_of} before it in the chain explains all of it."
                followers = sorted({other.slot for other in incident.echoes if other.echo_of == slot})
                echoed = f"; echoed by slot {', '.join(map(str, followers[:4]))}" if followers else ""
                return f"A cause in incident {incident.number}: no other slot explains it{echoed}."
    return f"Not part of an incident: incidents are made of the first {format_count(MAX_ROWS)} records."


def _title(record: Violation) -> str:
    step = "unknown step" if record.step is None else f"step {record.step}"
    return f"{record.stream.label}, {record.launch_tag}, {step}, {' + '.join(record.reasons) or 'none'}"


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
