"""Which cause the marks of one incident fit, how surely, and why: one rule for each pattern, tried in order.

Confidence is high only where no other visible fault leaves the same marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcanary import layout
from kvcanary.analysis.causes import Cause
from kvcanary.analysis.incidents import CHAIN, POSITION, REAL, RECORD, TOKEN, WRITE_TOKEN
from kvcanary.analysis.marks import Confidence, Marks, Suspicion
from kvcanary.analysis.position_rules import empty_seed, position
from kvcanary.units import format_count

_NOISE_SLOTS = 50
# Two unrelated 64-bit hashes differ in fewer bits once in 25 000 times.
_AVALANCHE_BITS = 17


def suspect(marks: Marks) -> Suspicion:
    """The first rule that fits; UNKNOWN with low confidence when none does."""
    for rule in _RULES:
        if (suspicion := rule(marks)) is not None:
            return suspicion
    return Suspicion(
        cause=Cause.UNKNOWN, confidence=Confidence.LOW, evidence=("The reasons of these rows make none of the known patterns.",)
    )


def _bit_flip(marks: Marks) -> Suspicion | None:
    if len({"HEAD" if place == "HEAD" else "TAIL" for finding in marks.causes for place in finding.places}) > 1:
        return None  # The two buffers lie apart: no single flip reaches both.
    flips = []
    for row in marks.rows:
        if row.bits & CHAIN and row.slot_idx is not None and row.stored_chain_hash is not None and row.expected_aux is not None:
            difference = row.stored_chain_hash ^ row.expected_aux
            if difference.bit_count() == 1:
                flips.append((row.slot_idx, difference.bit_length() - 1))
    if not flips or len({slot for slot, _ in flips}) < len(marks.causes):
        return _flip_before(marks)
    slot, bit = flips[0]
    return Suspicion(
        cause=Cause.RECORD_BIT_FLIP,
        confidence=Confidence.HIGH,
        evidence=(
            f"Stored and expected hash of {_slots([slot])} differ in bit {bit} alone; a changed history would change about 32 bits.",
        ),
        others=(Cause.CANARY_OVERWRITTEN,),
    )


def _flip_before(marks: Marks) -> Suspicion | None:
    """The record before was changed in token or position: undo the last mixing steps and compare."""
    if marks.bits != CHAIN or len(marks.causes) != 1:
        return None
    row = marks.rows[0]
    if row.stored_chain_hash is None or row.expected_aux is None or row.position is None:
        return None
    stored, found = _unmix(row.stored_chain_hash), _unmix(row.expected_aux)
    position = stored ^ found
    before = row.position - 1
    token = _unmix(stored ^ layout.to_unsigned(before)) ^ _unmix(found ^ layout.to_unsigned(before))
    for name, difference in (("position", position), ("token", token)):
        if difference.bit_count() == 1 and difference.bit_length() <= 40:
            return Suspicion(
                cause=Cause.RECORD_BIT_FLIP,
                confidence=Confidence.HIGH,
                evidence=(
                    f"The two hashes of {_slots([marks.causes[0].slot])} follow from records that differ in bit {difference.bit_length() - 1} of the "
                    f"{name} alone: that bit flipped in the record at position {before}, which is not reported itself.",
                ),
                others=(Cause.CANARY_OVERWRITTEN,),
            )
    return None


def _wrong_token(marks: Marks) -> Suspicion | None:
    bits = marks.bits
    if bits & WRITE_TOKEN and not bits & RECORD:
        pairs = {(row.stored_token, row.expected_token) for row in marks.rows if row.bits & WRITE_TOKEN}
        if any((expected, stored) in pairs for stored, expected in pairs if stored != expected):
            stored, expected = min(pairs, key=str)
            return Suspicion(
                cause=Cause.TOKEN_WRONG,
                confidence=Confidence.HIGH,
                evidence=(f"Tokens mirror each other: {stored} stands where {expected} was expected and the other way round.",),
            )
        return Suspicion(cause=Cause.TOKEN_WRONG, confidence=Confidence.MEDIUM, evidence=("The written token is not the expected one.",))
    if bits == TOKEN:
        positions = sorted({row.position for row in marks.rows if row.position is not None})
        if len(positions) >= 3 and positions == list(range(positions[0], positions[-1] + 1)):
            return Suspicion(
                cause=Cause.WRONG_MAPPING,
                confidence=Confidence.MEDIUM,
                evidence=(
                    f"Every token of positions {positions[0]} to {positions[-1]} differs while chain and positions agree: "
                    "the row reads another request's prefix as a whole.",
                ),
                others=(Cause.TOKEN_WRONG,),
            )
        return Suspicion(
            cause=Cause.TOKEN_WRONG,
            confidence=Confidence.MEDIUM,
            evidence=("Chain and position agree and the token id alone differs.",),
            others=(Cause.WRONG_MAPPING,),
        )
    return None


def _sweep_noise(marks: Marks) -> Suspicion | None:
    rows = marks.rows
    only = all(row.launch_tag.startswith("SWEEP") and row.launch_tag.endswith("_SWA") for row in rows)
    if only and marks.bits & CHAIN and len(marks.causes) >= _NOISE_SLOTS:
        return Suspicion(
            cause=Cause.SWA_SWEEP_NOISE,
            confidence=Confidence.MEDIUM,
            evidence=(f"{len(marks.causes)} slots fail the chain check in SWEEP of the window group and nowhere else.",),
            others=(Cause.WRONG_MAPPING,),
        )
    return None


def _missing_record(marks: Marks) -> Suspicion | None:
    zeros = marks.zero_slots
    if not zeros or not marks.bits & RECORD or 2 * len(zeros) <= len(marks.causes):
        return None
    head, tail = marks.at("HEAD"), marks.at("TAIL")
    evidence = [f"{_records(zeros, 'holds', 'hold')} only zeros: never written there, or cleared."]
    if tail & RECORD and not head & RECORD:
        evidence.append("HEAD agrees and TAIL does not: HEAD records travel first, so a transfer that was cut looks like this.")
        return Suspicion(
            cause=Cause.TRANSFER_INCOMPLETE,
            confidence=Confidence.MEDIUM,
            evidence=tuple(evidence),
            others=(Cause.CANARY_OVERWRITTEN,),
        )
    if head & RECORD and not tail & RECORD:
        return None
    if marks.context.disaggregation == "prefill" or (marks.context.host_tier and marks.context.disaggregation != "decode"):
        evidence.append("The server has a host tier, and canaries do not move with it.")
        return Suspicion(
            cause=Cause.STALE_RECORD, confidence=Confidence.MEDIUM, evidence=tuple(evidence), others=(Cause.TRANSFER_INCOMPLETE,)
        )
    decode = marks.context.disaggregation == "decode"
    if decode:
        evidence.append("The server is the decode side of a disaggregated pair.")
    return Suspicion(
        cause=Cause.TRANSFER_INCOMPLETE,
        confidence=Confidence.MEDIUM if decode else Confidence.LOW,
        evidence=tuple(evidence),
        others=(Cause.STALE_RECORD, Cause.CANARY_OVERWRITTEN),
    )


def _one_buffer(marks: Marks) -> Suspicion | None:
    head, tail = marks.at("HEAD"), marks.at("TAIL")
    if not marks.bits & RECORD or bool(head & RECORD) == bool(tail & RECORD):
        return None
    bad, good = ("HEAD", "TAIL") if head & RECORD else ("TAIL", "HEAD")
    # A text that ends after the HEAD rows says nothing about TAIL.
    cut = any(row.truncated for row in marks.rows) or marks.rows_missing
    evidence = [f"{bad} fails the record check at {_slots([finding.slot for finding in marks.causes])} and {good} does not."]
    if cut:
        evidence.append(f"The log lists fewer rows than were counted, so {good} may have failed too.")
        return Suspicion(cause=Cause.WRONG_MAPPING, confidence=Confidence.LOW, evidence=tuple(evidence), others=(Cause.CANARY_OVERWRITTEN,))
    return Suspicion(
        cause=Cause.CANARY_OVERWRITTEN, confidence=Confidence.MEDIUM, evidence=tuple(evidence), others=(Cause.TRANSFER_INCOMPLETE,)
    )


def _foreign_record(marks: Marks) -> Suspicion | None:
    if not marks.bits & RECORD:
        return None
    first = marks.causes[0]
    both = bool(marks.at("HEAD") & RECORD and marks.at("TAIL") & RECORD)
    with_bytes = any(place == "TAIL" and bits & REAL and bits & RECORD for finding in marks.causes for place, bits, _ in finding.seen)
    positions = [finding for finding in marks.causes if finding.bits & ~TOKEN & ~REAL == POSITION]
    held = [finding.slot for finding in marks.causes]
    evidence = [f"{_slots(held)} {'hold' if len(set(held)) > 1 else 'holds'} a whole record of other content"]
    evidence[0] += (
        f" (slot {format_count(first.slot)}: token {first.records[0][1]} at position {first.records[0][2]})." if first.records else "."
    )
    if (bits := _differing_bits(marks)) is not None:
        evidence.append(f"Stored and expected hash differ in {bits} of 64 bits, as unrelated hashes do: other history, no flipped bit.")
    if both:
        evidence.append("HEAD and TAIL report it alike, so the record is wrong for this request and not one buffer.")
    if marks.incident.echoes:
        slots = [finding.slot for finding in marks.incident.echoes]
        evidence.append(
            f"{_slots(slots)} {'fail' if len(set(slots)) > 1 else 'fails'} only as successor: the expected hash follows from the record before."
        )
    if marks.zero_slots:
        evidence.append(f"{_records(marks.zero_slots, 'holds', 'hold')} only zeros: what belongs there was written to the other slot.")
    if with_bytes and both:
        evidence.append("In the same rows the KV bytes do not fit the record either: the KV came by a way that left the records behind.")
        return Suspicion(
            cause=Cause.STALE_RECORD,
            confidence=Confidence.MEDIUM,
            evidence=tuple(evidence),
            others=(Cause.WRONG_MAPPING, Cause.TRANSFER_INCOMPLETE),
        )
    if positions and len(marks.causes) >= 2 and (marks.in_run or marks.chained):
        evidence.append(
            "The run continues its own chain at shifted positions: a previous owner's prefix, reached through a stale cache entry."
        )
        hashed = marks.context.real_data in ("partial", "all") and bool(marks.at("TAIL"))
        if hashed:
            evidence.append("The KV bytes fit these records, so records and bytes are of one owner.")
        if marks.context.host_tier and not hashed:
            return Suspicion(
                cause=Cause.STALE_RECORD, confidence=Confidence.MEDIUM, evidence=tuple(evidence), others=(Cause.WRONG_MAPPING,)
            )
        return Suspicion(
            cause=Cause.WRONG_MAPPING,
            confidence=Confidence.MEDIUM,
            evidence=tuple(evidence),
            others=(Cause.STALE_RECORD, Cause.TRANSFER_INCOMPLETE),
        )
    # Several whole records may also be a prefix that came back without them; a lone intruder with its echo may not.
    lone = both and bool(marks.incident.echoes) and len(marks.causes) == 1
    sure = lone and not marks.context.host_tier and marks.context.disaggregation in (None, "null")
    return Suspicion(
        cause=Cause.WRONG_MAPPING,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        evidence=tuple(evidence),
        others=(Cause.STALE_RECORD,) if marks.context.host_tier else (),
    )


def _differing_bits(marks: Marks) -> int | None:
    """Bits by which the first chain mismatch differs, where they are as many as two unrelated hashes have."""
    for row in marks.rows:
        if row.bits & CHAIN and row.stored_chain_hash is not None and row.expected_aux is not None:
            bits = (row.stored_chain_hash ^ row.expected_aux).bit_count()
            return bits if bits >= _AVALANCHE_BITS else None
    return None


def _bytes(marks: Marks) -> Suspicion | None:
    if marks.bits != REAL:
        return None
    places = {place for finding in marks.causes for place in finding.places}
    slots = [finding.slot for finding in marks.causes]
    evidence = [f"{_records(slots, 'is', 'are')} right and the hashed KV bytes are not."]
    if places == {"SWEEP"}:
        repeated = any(finding.last_step != finding.first_step for finding in marks.causes)
        evidence.append("Only the sweep reports it: no running request used the slot.")
        if repeated:
            evidence.append("It comes again with each sweep and never from TAIL.")
        # Bytes that changed while the last request was leaving are first seen here too.
        return Suspicion(
            cause=Cause.CACHED_BYTES_CHANGED,
            confidence=Confidence.MEDIUM,
            evidence=tuple(evidence),
            others=(Cause.KV_BYTES_CHANGED,),
        )
    evidence.append("TAIL reports it and HEAD cannot, since HEAD holds no hash of bytes.")
    early = marks.incident.first_step is not None and marks.incident.first_step <= 4
    decode, tier = marks.context.disaggregation == "decode", bool(marks.context.host_tier)
    stretch = _stretch(marks)
    if stretch and (decode or tier or early):
        evidence.append(stretch)
        if decode:
            evidence.append("The server is the decode side.")
        elif tier:
            evidence.append("The server has a host tier: a stretch of one sequence is what one load fills.")
        else:
            evidence.append(f"It comes in the first steps (reported at step {marks.incident.first_step}).")
        return Suspicion(
            cause=Cause.TRANSFER_INCOMPLETE,
            confidence=Confidence.MEDIUM,
            evidence=tuple(evidence),
            others=(Cause.KV_BYTES_CHANGED,),
        )
    others = (Cause.TRANSFER_INCOMPLETE, Cause.WRONG_MAPPING) if stretch or decode else (Cause.WRONG_MAPPING,)
    if stretch:
        evidence.append(stretch)
    return Suspicion(cause=Cause.KV_BYTES_CHANGED, confidence=Confidence.MEDIUM, evidence=tuple(evidence), others=others)


_RULES: tuple[Callable[[Marks], Suspicion | None], ...] = (
    _bit_flip,
    _wrong_token,
    empty_seed,
    position,
    _sweep_noise,
    _missing_record,
    _one_buffer,
    _foreign_record,
    _bytes,
)


def _stretch(marks: Marks) -> str:
    """Several slots that belong together, by their numbers or by their chain; '' for others."""
    run = marks.incident.pattern
    if marks.in_run:
        return f"The slots are one run of {run.run_length}, {run.longest_run[0]} to {run.longest_run[1]}{_page_words(marks)}."
    if marks.chained:
        positions = sorted({row.position for row in marks.rows if row.position is not None})
        return f"The {len(run.slots)} slots follow each other in one chain, at positions {positions[0]} to {positions[-1]}."
    return ""


def _page_words(marks: Marks) -> str:
    run, page = marks.incident.pattern, marks.context.page_size
    start, length = run.longest_run[0], run.run_length
    if page and page > 1 and start % page == 0 and length % page == 0:
        return f", whole pages of {page}"
    if length & (length - 1) == 0 and length >= 4 and start % length == 0:
        return f", aligned to {length} as a page would be"
    return ""


def _slots(slots: Sequence[int]) -> str:
    distinct = sorted(set(slots))
    if len(distinct) == 1:
        return f"slot {format_count(distinct[0])}"
    shown = ", ".join(map(format_count, distinct[:5]))
    return f"slots {shown}" + (f" and {format_count(len(distinct) - 5)} more" if len(distinct) > 5 else "")


def _records(slots: Sequence[int], one: str, several: str) -> str:
    """'The record of slot 4 holds', 'The records of slots 4, 5 hold'."""
    single = len(set(slots)) == 1
    return f"The record{'' if single else 's'} of {_slots(slots)} {one if single else several}"


def _unshift(value: int, shift: int) -> int:
    """x from x ^ (x >> shift)."""
    result = value
    for _ in range(64 // shift):
        result = value ^ (result >> shift)
    return result


_INVERSE_1 = pow(layout.MIX_MULTIPLIER_1, -1, 1 << 64)
_INVERSE_2 = pow(layout.MIX_MULTIPLIER_2, -1, 1 << 64)


def _unmix(value: int) -> int:
    """The argument of splitmix64, which is a bijection."""
    x = _unshift(value, layout.MIX_SHIFTS[2])
    x = _unshift((x * _INVERSE_2) & layout.MASK64, layout.MIX_SHIFTS[1])
    return _unshift((x * _INVERSE_1) & layout.MASK64, layout.MIX_SHIFTS[0])
