"""Rules for positions: what the +1 assert and the stored position tell about the seed slot and about the model's positions."""

from __future__ import annotations

from collections.abc import Sequence

from kvcanary import layout
from kvcanary.analysis.causes import Cause
from kvcanary.analysis.incidents import POSITION, RECORD, TOKEN, WRITE_POSITION
from kvcanary.analysis.marks import Confidence, Marks, Suspicion
from kvcanary.analysis.violations import Violation

# A record of zeros is followed by this hash, and no other record is: mix3 is a bijection in each of its inputs, and it maps zeros to zero.
_HASH_AFTER_ZEROS = layout.mix3(0, 0, 0)


def empty_seed(marks: Marks) -> Suspicion | None:
    """A write that continues from a record of zeros. Verify would report such a record in a live prefix, and it passes over slot 0 alone."""
    written = [row for row in marks.rows if row.bits & WRITE_POSITION]
    if not written or marks.bits & RECORD:
        return None
    if any(row.stored_chain_hash != _HASH_AFTER_ZEROS or row.expected_position != 1 for row in written):
        return None
    row = written[0]
    evidence = [
        f"Slot {row.slot_idx} at position {row.position} continues from a record of zeros: the chain hash written is 0 and the seed's position is 0.",
    ]
    if any(row.launch_tag.endswith("_SWA") for row in written):
        evidence.append("A window group reports it: the slot of an evicted predecessor is 0, so no live slot has to be wrong.")
        return Suspicion(cause=Cause.STALE_RECORD, confidence=Confidence.MEDIUM, evidence=tuple(evidence), others=(Cause.WRONG_MAPPING,))
    evidence.append(
        "No verify reports a record of zeros, and slot 0 is the one slot that verify passes over: the request table points there."
    )
    both = {"HEAD", "TAIL"} <= {place for finding in marks.causes for place in finding.places}
    moved = marks.context.host_tier or marks.context.disaggregation not in (None, "null")
    return Suspicion(
        cause=Cause.WRONG_MAPPING,
        confidence=Confidence.HIGH if both and not moved and not marks.rows_missing else Confidence.MEDIUM,
        evidence=tuple(evidence),
        others=(Cause.STALE_RECORD,),
    )


def position(marks: Marks) -> Suspicion | None:
    """Positions that the model or the seed slot got wrong, by how far they are off."""
    bits = marks.bits
    written = [row for row in marks.rows if row.bits & WRITE_POSITION and row.expected_position is not None and row.position is not None]
    if written and not bits & RECORD & ~POSITION:
        deltas = sorted(
            {row.position - row.expected_position for row in written if row.position is not None and row.expected_position is not None}
        )
        if all(abs(delta) <= 16 for delta in deltas):
            return Suspicion(
                cause=Cause.POSITION_WRONG,
                confidence=Confidence.MEDIUM,
                evidence=(f"Written positions differ from the expected ones by {_signed(deltas)}.",),
                others=(Cause.STALE_RECORD,),
            )
        if (lone := _lone_position(marks)) is not None:
            return Suspicion(
                cause=Cause.POSITION_WRONG,
                confidence=Confidence.MEDIUM,
                evidence=(
                    f"Position {lone.position} stands where {lone.expected_position} belongs, and the next token has the right one again: "
                    "one token's position is wrong and not the seed slot.",
                ),
                others=(Cause.CANARY_OVERWRITTEN,),
            )
        return _far_position(marks, deltas, written)
    if bits & ~TOKEN == POSITION:
        return Suspicion(
            cause=Cause.POSITION_WRONG,
            confidence=Confidence.MEDIUM,
            evidence=("The chain agrees and the stored position alone is wrong.",),
            others=(Cause.CANARY_OVERWRITTEN,),
        )
    return None


def _lone_position(marks: Marks) -> Violation | None:
    """A written position after which the next token is back where it would be without it."""
    found = {
        (row.position, row.expected_position): row
        for finding in marks.incident.findings
        for row in (marks.violations[number] for number in finding.rows)
        if row.bits & WRITE_POSITION and row.position is not None and row.expected_position is not None
    }
    return next((row for (position, expected), row in found.items() if (expected + 1, position + 1) in found), None)


def _far_position(marks: Marks, deltas: Sequence[int], written: Sequence[Violation]) -> Suspicion:
    evidence = [f"Written positions differ from the expected ones by {_signed(deltas)}: no off-by-one."]
    page = marks.context.page_size
    sizes = [page] if page and page > 1 else [256, 128, 64, 32, 16]
    size = next((size for size in sizes if all(delta % size == 0 for delta in deltas)), None)
    if size:
        times = abs(deltas[0]) // size
        evidence.append(f"{abs(deltas[0])} is {times} times {size}: a shift by whole pages, which points to the seed slot.")
    evidence.append("The expected position comes from the seed slot's record, so a stale or wrong seed looks the same as a wrong position.")
    window = any(row.launch_tag.endswith("_SWA") for row in written)
    if window:
        evidence.append(
            "A window group reports it: the slot of an evicted predecessor is 0, and its record is whatever was written there last."
        )
    likely = marks.context.host_tier or window
    return Suspicion(
        cause=Cause.STALE_RECORD if likely else Cause.POSITION_WRONG,
        confidence=Confidence.MEDIUM if marks.context.host_tier else Confidence.LOW,
        evidence=tuple(evidence),
        others=(Cause.POSITION_WRONG if likely else Cause.STALE_RECORD, Cause.WRONG_MAPPING),
    )


def _signed(deltas: Sequence[int]) -> str:
    return ", ".join(f"{delta:+d}" for delta in deltas[:5])
