"""A violation row as SGLang's log shows it, line for line; the conformance tests compare it with the engine's own formatter."""

from __future__ import annotations

from collections.abc import Sequence

from kvcanary import layout
from kvcanary.layout import FailReason, LaunchTag

_TOKEN_REASONS = FailReason.WRITE_TOKEN | FailReason.VERIFY_TOKEN


def violation_line(row: Sequence[int]) -> str:
    """The first line of a report: the one that log readers parse. row: the 8 values of layout.RING_FIELDS."""
    tag, slot, position, token, expected, stored, aux, bits = (int(value) for value in row)
    return (
        f"kv_canary violation: launch_tag={_tag_name(tag)} fail_reason={'+'.join(layout.reason_labels(bits)) or 'none'} "
        f"slot_idx={slot} position={position} stored_token={token} expected_token={expected} "
        f"stored_chain_hash={_hash(stored)} expected_aux={_hash(aux)}"
    )


def violation_text(row: Sequence[int], *, total: int, ring_overflow: bool, step: int) -> str:
    """A whole report. total: violations counted so far; ring_overflow: whether the ring dropped some; step: the step that pumped the ring.

    A write row carries an expected position where a verify row carries an expected chain hash.
    """
    tag, slot, position, token, expected, stored, aux, bits = (int(value) for value in row)
    name, reasons = _tag_name(tag), " ".join(layout.reason_labels(bits)) or "none"
    kind = name.lower() if name.startswith("SWEEP") else f"per_forward_{name.lower()}"
    # A kind without a name is printed as it is.
    kind = kind if tag in list(LaunchTag) else name
    actual = f"token_id={token}   position={position} prev_hash={_hash(stored)}"
    if bits & layout.WRITE_REASONS:
        body = (f"  actual:   {actual}", f"  expected: token_id={expected}   position={aux}")
    else:
        wanted = f"token_id={expected} " if bits & _TOKEN_REASONS else ""
        body = (f"  stored:   {actual}", f"  expected: {wanted}prev_hash={_hash(aux)}")
    return "\n".join(
        (
            violation_line(row),
            f"KV cache canary violation detected (kernel_kind={name}, slot_idx={slot}, position={position})",
            f"canary_kind:       {kind}",
            f"  fail_reasons: {reasons}",
            *body,
            f"  total_violations={total} ring_overflow={ring_overflow} step_when_pumped={step}",
        )
    )


def _tag_name(tag: int) -> str:
    return LaunchTag(tag).name if tag in list(LaunchTag) else f"unknown({tag})"


def _hash(value: int) -> str:
    return f"0x{layout.to_unsigned(value):016x}"
