"""The slot card of a replay: what happened here, the chain as a strip, the record field by field, and the KV bytes."""

from __future__ import annotations

import streamlit as st

from kvcanary.analysis.replay_card import ByteRow, ChainCell, FieldView, Neighbour, ReplayCard, buffers_of, replay_card
from kvcanary.analysis.slot_card import diff_bits
from kvcanary.charts.theme import STATUS_LOOKS
from kvcanary.escape import html_text
from kvcanary.faults.memory import Group
from kvcanary.lab.replay import Replay, ReplayFrame
from kvcanary.layout import CHAIN_START, MASK64, SlotStatus
from kvcanary.ui import fault_lab_address, style
from kvcanary.units import format_count

_STATUS_CLASS = {status: f"kvl-{status.name.lower()}" for status in SlotStatus}
_BYTES_PER_LINE = 32


def card(played: Replay, frame: ReplayFrame, group: Group, slot: int) -> None:
    """Head, sentences, strip and fields of a slot."""
    buffers = buffers_of(played.config)
    default = replay_card(played, frame, group, slot)
    chosen = st.session_state.get("replay_buffer")
    found = replay_card(played, frame, group, slot, chosen) if chosen in buffers else default
    st.html(_head(found) + "".join(f'<p class="kvc-why">{html_text(sentence)}</p>' for sentence in found.sentences))
    if found.chain:
        st.html(_strip(found))
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        _moves(found)
        st.segmented_control(
            "Record", buffers, default=None, key="replay_buffer", format_func=lambda name: name.replace("_", " ").upper(),
            help="HEAD and TAIL keep a record each, and so does the V half. Without a choice the reported one is shown, else that of TAIL.",
        )  # fmt: skip
    st.html(_fields(found))


def _head(found: ReplayCard) -> str:
    look = STATUS_LOOKS[found.status]
    place = f" · position {found.position}" if found.position is not None else ""
    reader = f", read by request {found.rid}" if found.rid is not None and found.owner != f"request {found.rid}" else ""
    return (
        f'<p class="kvc-finding" data-testid="replay-card"><span class="kvc-badge {_STATUS_CLASS[found.status]}">{look.letter} '
        f"{html_text(look.label)}</span><b>Slot {format_count(found.slot)}</b> · {html_text(found.owner + reader + place)}</p>"
    )


def _strip(found: ReplayCard) -> str:
    """The whole chain as small squares, then predecessor, this and successor with the hash that leads from one to the next."""
    squares = "".join(_square(cell, here=found.here is not None and cell == found.here.cell) for cell in found.chain)
    boxes = [_box(found.before, "predecessor"), _link(found.before, found.here), _box(found.here, "this slot")]
    boxes += [_link(found.here, found.after), _box(found.after, "successor")]
    label = f"Chain of {len(found.chain)} positions" + (f" of request {found.rid}" if found.rid is not None else "")
    return (
        f'<div class="kvl-chain-name">{html_text(label)}, {html_text(found.buffer.replace("_", " ").upper())} records</div>'
        f'<div class="kvl-chain" role="img" aria-label="{html_text(label)}">{squares}</div>'
        f'<div class="kvl-strip" data-testid="chain-strip">{"".join(boxes)}</div>'
    )


def _square(cell: ChainCell, *, here: bool) -> str:
    classes = f"{_STATUS_CLASS[cell.status]}{' kvl-here' if here else ''}{' kvl-hit' if cell.injected else ''}"
    look = STATUS_LOOKS[cell.status]
    title = f"position {cell.position}, slot {cell.slot}: {'written in this step' if cell.written else look.label}"
    return f'<i class="{classes}" title="{html_text(title)}"></i>'


def _box(neighbour: Neighbour | None, name: str) -> str:
    if neighbour is None:
        ends = "chain starts here" if name == "predecessor" else "no successor"
        return f'<div class="kvl-box kvl-none"><em>{name}</em><span>{ends}</span></div>'
    cell = neighbour.cell
    mark = f'<u class="{_STATUS_CLASS[cell.status]}">{STATUS_LOOKS[cell.status].letter}</u>'
    odd = ' class="kvl-odd"' if neighbour.position != cell.position else ""
    return (
        f'<div class="kvl-box{" kvl-this" if name == "this slot" else ""}"><em>{name} {mark}</em>'
        f"<b>slot {format_count(cell.slot)}</b><span>position {cell.position}</span>"
        f"<span>token <code>{neighbour.token}</code></span><span>stored pos. <code{odd}>{neighbour.position}</code></span>"
        f"<span>prev <code>{_short(neighbour.prev_hash)}</code></span></div>"
    )


def _link(before: Neighbour | None, after: Neighbour | None) -> str:
    """What the record before leads to, and whether the record after stores it."""
    if after is None:
        return '<div class="kvl-link"></div>'
    leads_to = CHAIN_START if before is None and after.cell.position == 0 else before.leads_to if before is not None else None
    if leads_to is None or (before is not None and before.cell.slot == 0) or after.cell.slot == 0:
        return '<div class="kvl-link"><small>not checked</small></div>'
    agrees = leads_to == after.prev_hash
    return (
        f'<div class="kvl-link {"kvl-agrees" if agrees else "kvl-breaks"}" title="0x{leads_to:016x}">'
        f"<small>leads to</small><code>{_short(leads_to)}</code><b>{'=' if agrees else '≠'}</b></div>"
    )


def _short(value: int) -> str:
    text = f"{value:016x}"
    return f"{text[:4]}…{text[-4:]}"


def _moves(found: ReplayCard) -> None:
    for label, neighbour, icon in (("Predecessor", found.before, "west"), ("Successor", found.after, "east")):
        slot = neighbour.cell.slot if neighbour is not None else -1
        st.button(
            label, key=f"chain.{label}", icon=f":material/{icon}:", disabled=slot < 0, on_click=fault_lab_address.open_slot,
            args=(slot,), help="Open the card of the slot beside this one in the chain.",
        )  # fmt: skip


def _fields(found: ReplayCard) -> str:
    rows = "".join(
        f"<tr><td>{view.name}</td><td>{_value(view.stored)}</td><td>{_value(view.expected)}</td><td>{_value(view.belongs)}</td>"
        f"<td>{_judged(view)}</td></tr>"
        for view in found.fields
    )
    return (
        '<div class="kvc-wide"><table class="kvc-table kvl-fields"><thead><tr><th>field</th><th>stored</th><th>verify expects</th>'
        f"<th>belongs here</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _judged(view: FieldView) -> str:
    count = diff_bits(view.differing)
    bits = f"<small>{count if count.endswith('bits') else f'bit {count}'}</small>"
    if view.flagged:
        right = "bytes changed" if view.name == "real_kv_hash" else "accused"
        return f"<mark>{'differs' if view.wrong else right}</mark>{bits}"
    if view.wrong:
        return f'<strong class="kvl-unseen">wrong, not seen</strong>{bits}'
    return "same" if view.expected is not None or view.belongs is not None else ""


def _value(value: int | None) -> str:
    if value is None:
        return '<small class="kvl-quiet">not checked</small>'
    if -1 <= value < 10**7:
        return f"<code>{value}</code>"
    return f'<code title="0x{value & MASK64:016x}">{_short(value & MASK64)}</code>'


def kv_bytes(played: Replay, frame: ReplayFrame, group: Group, slot: int) -> None:
    """The KV bytes of a slot; what a hash covers is underlined, what is not as the model wrote it stands out."""
    rows = replay_card(played, frame, group, slot).byte_rows
    if not rows:
        return
    wrong = sum(len(row.differing) for row in rows)
    told = f"{wrong} {'byte is' if wrong == 1 else 'bytes are'} not what the model wrote" if wrong else "every byte is what the model wrote"
    hashed = "no byte is hashed" if not any(row.hashed for row in rows) else "underlined bytes are hashed"
    st.html(f'<div class="kvl-head">KV bytes of slot {format_count(slot)}<span>{told}; {hashed}</span></div>')
    st.html(
        f'<div class="kvc-wide"><table class="kvl-bytes" data-testid="kv-bytes">{"".join(_byte_row(row) for row in rows)}</table></div>'
    )
    if any(row.differing and not row.hashed.intersection(row.differing) for row in rows):
        style.caption("Bytes that no hash covers can change without a report.")


def _byte_row(row: ByteRow) -> str:
    lines = []
    for start in range(0, len(row.stored), _BYTES_PER_LINE):
        cells = []
        for place in range(start, min(start + _BYTES_PER_LINE, len(row.stored))):
            classes = ("h" if place in row.hashed else "") + (" x" if row.stored[place] != row.belongs[place] else "")
            title = f"byte {place}: {row.stored[place]:02x}, belongs {row.belongs[place]:02x}"
            cells.append(f'<span class="{classes.strip()}" title="{title}">{row.stored[place]:02x}</span>')
        lines.append("".join(cells))
    return f"<tr><th>{html_text(row.name)}</th><td>{'<br>'.join(lines)}</td></tr>"
