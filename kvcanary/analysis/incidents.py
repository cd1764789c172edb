"""From violation rows to incidents: which slots, which of them are causes and which are echoes, and what pattern they make.

A broken slot also fails its successor: verify expects the hash that follows from the record before it. Hashes are real, so the record
before can be recognised: mix3 of its fields is exactly the hash that the successor was expected to hold. The same holds for the +1
assert, which expects the seed's stored position plus one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from kvcanary import layout
from kvcanary.analysis.violations import Stream, Violation
from kvcanary.layout import FailReason, mix3

CHAIN, POSITION = FailReason.VERIFY_CHAIN_HASH.value, FailReason.VERIFY_POSITION.value
REAL, TOKEN = FailReason.VERIFY_REAL_KV_HASH.value, FailReason.VERIFY_TOKEN.value
WRITE_TOKEN, WRITE_POSITION = FailReason.WRITE_TOKEN.value, FailReason.WRITE_POSITION.value
RECORD = CHAIN | POSITION
_TAGS = frozenset(layout.LaunchTag.__members__)

# The first rows carry the causes; what follows repeats them. Counts always come from all rows.
MAX_ROWS = 20_000
# Reports come one step after the device saw it, the first one covers two forwards.
_STEP_GAP = 3
_TIME_GAP_S = 3.0


class Replica(NamedTuple):
    """Ranks that hold the same slots: one server and one DP rank; TP, PP and EP ranks inside it mirror each other's table."""

    server: str
    source: str
    dp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One slot of one pool group with everything reported about it, over ranks and steps.

    seen: (place, reason bits) of its rows, with their number. records: distinct stored (prev_hash, token, position). rows: numbers of the
    rows in the table. echo_of: the slot whose record explains all that is wrong here, None for a cause.
    """

    replica: Replica
    group: str
    slot: int
    rows: tuple[int, ...]
    seen: tuple[tuple[str, int, int], ...]
    records: tuple[tuple[int, int, int], ...]
    ranks: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    echo_of: int | None

    @property
    def bits(self) -> int:
        """All reason bits of the slot."""
        bits = 0
        for _, reason_bits, _ in self.seen:
            bits |= reason_bits
        return bits

    @property
    def places(self) -> frozenset[str]:
        """HEAD, TAIL, SWEEP: the launches that reported it."""
        return frozenset(place for place, _, _ in self.seen)

    def bits_at(self, place: str) -> int:
        """Reason bits reported by one kind of launch."""
        bits = 0
        for seen_place, reason_bits, _ in self.seen:
            bits |= reason_bits if seen_place == place else 0
        return bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Shape of a set of slots: the longest run of neighbours, and the step between slots when it is the same everywhere (3 or more)."""

    slots: tuple[int, ...]
    longest_run: tuple[int, int]
    stride: int | None

    @property
    def run_length(self) -> int:
        """Slots in the longest run."""
        return self.longest_run[1] - self.longest_run[0] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings that belong together: linked by echo, by slot, or by the same signature in the same moment of one replica."""

    number: int
    replica: Replica
    findings: tuple[Finding, ...]
    rows: int
    first_time: datetime | None
    last_time: datetime | None
    first_step: int | None
    last_step: int | None
    running_reqs: int | None
    pattern: Pattern

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Findings that no other finding explains."""
        return tuple(finding for finding in self.findings if finding.echo_of is None)

    @property
    def echoes(self) -> tuple[Finding, ...]:
        """Findings that follow from another one."""
        return tuple(finding for finding in self.findings if finding.echo_of is not None)

    @property
    def ranks(self) -> tuple[str, ...]:
        """Ranks that reported it."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.ranks}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLinks:
    """Reported records that follow each other in a chain, by (replica, pool, slot); the hashes prove it.

    before: the slot whose record gives the hash that is stored in this slot. expected: the slot whose record gives the hash that was
    expected of it, its predecessor in the request table. after: slots that were expected to follow this one.
    """

    before: Mapping[tuple[Replica, str, int], int]
    expected: Mapping[tuple[Replica, str, int], int]
    after: Mapping[tuple[Replica, str, int], tuple[int, ...]]


def chain_links(violations: Sequence[Violation]) -> ChainLinks:
    """Links between the slots of these rows; only what was reported can be linked."""
    slots: dict[tuple[Replica, str, int], int] = {}
    keys = [(replica_of(violation.stream), pool_of(violation)) for violation in violations]
    for key, violation in zip(keys, violations, strict=True):
        record = _record(violation)
        if record is not None and violation.slot_idx is not None:
            slots.setdefault((*key, mix3(*record)), violation.slot_idx)
    before: dict[tuple[Replica, str, int], int] = {}
    expected: dict[tuple[Replica, str, int], int] = {}
    after: dict[tuple[Replica, str, int], list[int]] = defaultdict(list)
    for key, violation in zip(keys, violations, strict=True):
        slot = violation.slot_idx
        if slot is None or violation.stored_chain_hash is None:
            continue
        stored_after = slots.get((*key, violation.stored_chain_hash))
        if stored_after is not None and stored_after != slot:
            before.setdefault((*key, slot), stored_after)
        write = violation.expected_aux is None or violation.expected_position is not None
        wanted = None if write else slots.get((*key, violation.expected_aux or 0))
        if wanted is not None and wanted != slot:
            expected.setdefault((*key, slot), wanted)
            if slot not in after[*key, wanted]:
                after[*key, wanted].append(slot)
    return ChainLinks(before=before, expected=expected, after={key: tuple(found) for key, found in after.items()})


def replica_of(stream: Stream) -> Replica:
    """The replica that a rank belongs to."""
    return Replica(stream.server, stream.source, " ".join(word for word in stream.rank.split() if word.startswith("DP")))


def find_incidents(violations: Sequence[Violation]) -> list[Incident]:
    """Incidents in order of their first row; rows without a slot are left out. Give it MAX_ROWS rows at most: it takes time."""
    rows = [row for row, violation in enumerate(violations) if violation.slot_idx is not None]
    findings = _findings(violations, rows)
    groups = _cluster(findings, violations)
    return [_incident(number, members, violations) for number, members in enumerate(groups, start=1)]


def pattern_of(slots: Iterable[int]) -> Pattern:
    """Runs and strides of a set of slots."""
    ordered = tuple(sorted(set(slots)))
    best = start = (ordered[0], ordered[0]) if ordered else (0, -1)
    for before, after in pairwise(ordered):
        start = (start[0], after) if after == before + 1 else (after, after)
        best = max(best, start, key=lambda run: run[1] - run[0])
    steps = {after - before for before, after in pairwise(ordered)}
    return Pattern(slots=ordered, longest_run=best, stride=steps.pop() if len(ordered) >= 3 and len(steps) == 1 else None)


def _findings(violations: Sequence[Violation], rows: Sequence[int]) -> list[Finding]:
    by_slot: dict[tuple[Replica, str, int], list[int]] = defaultdict(list)
    for row in rows:
        violation = violations[row]
        assert violation.slot_idx is not None
        by_slot[replica_of(violation.stream), pool_of(violation), violation.slot_idx].append(row)
    known = _Records(violations, by_slot)
    return [_finding(key, numbers, violations, known) for key, numbers in by_slot.items()]


class _Records:
    """Where a reported record's hash and position lead to, for each pool group of each replica."""

    def __init__(self, violations: Sequence[Violation], by_slot: dict[tuple[Replica, str, int], list[int]]) -> None:
        self._after: dict[tuple[Replica, str, int], int] = {}
        self._positions: dict[tuple[Replica, str, int], set[int]] = defaultdict(set)
        for (replica, group, slot), rows in by_slot.items():
            for row in rows:
                record = _record(violations[row])
                if record is not None:
                    self._after.setdefault((replica, group, mix3(*record)), slot)
                    self._positions[replica, group, record[2]].add(slot)

    def leads_to(self, replica: Replica, group: str, slot: int, violation: Violation) -> int | None:
        """The reported slot whose record explains this row, if there is one."""
        if violation.expected_aux is None:
            return None
        expected = violation.expected_position
        if expected is not None:
            before = self._positions.get((replica, group, expected - 1), set()) - {slot}
            return min(before) if violation.bits == WRITE_POSITION and before else None
        source = self._after.get((replica, group, violation.expected_aux))
        return source if violation.bits == CHAIN and source != slot else None


def _finding(key: tuple[Replica, str, int], rows: list[int], violations: Sequence[Violation], known: _Records) -> Finding:
    replica, group, slot = key
    members = [violations[row] for row in rows]
    sources = [known.leads_to(replica, group, slot, violation) for violation in members]
    steps = [violation.step for violation in members if violation.step is not None]
    seen = Counter((_place(violation), violation.bits) for violation in members)
    records = dict.fromkeys(record for violation in members if (record := _record(violation)) is not None)
    return Finding(
        replica=replica,
        group=group,
        slot=slot,
        rows=tuple(rows),
        seen=tuple((place, bits, count) for (place, bits), count in seen.items()),
        records=tuple(records),
        ranks=tuple(sorted({violation.stream.rank for violation in members})),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        echo_of=None if None in sources else sources[0],
    )


def _cluster(findings: list[Finding], violations: Sequence[Violation]) -> list[list[Finding]]:
    parent = list(range(len(findings)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(one: int, other: int) -> None:
        first, second = sorted((root(one), root(other)))
        parent[second] = first

    by_slot: dict[tuple[Replica, int], list[int]] = defaultdict(list)
    for index, finding in enumerate(findings):
        by_slot[finding.replica, finding.slot].append(index)
    latest: dict[tuple[Replica, str, str], int] = {}
    for index, finding in enumerate(findings):
        if finding.echo_of is not None:
            for other in by_slot[finding.replica, finding.echo_of]:
                if findings[other].group == finding.group:
                    join(index, other)
            continue
        signature = (finding.replica, finding.group, _kind(finding))
        before = latest.get(signature)
        if before is not None and _near(violations[findings[before].rows[0]], violations[finding.rows[0]]):
            join(before, index)
        latest[signature] = index
    clusters: dict[int, list[Finding]] = defaultdict(list)
    for index, finding in enumerate(findings):
        clusters[root(index)].append(finding)
    return sorted(clusters.values(), key=lambda members: min(finding.rows[0] for finding in members))


def _incident(number: int, members: list[Finding], violations: Sequence[Violation]) -> Incident:
    rows = sorted(row for finding in members for row in finding.rows)
    times = [violations[row].time for row in rows]
    known = [time for time in times if time is not None]
    steps = [step for finding in members for step in (finding.first_step, finding.last_step) if step is not None]
    roots = [finding.slot for finding in members if finding.echo_of is None]
    return Incident(
        number=number,
        replica=members[0].replica,
        findings=tuple(sorted(members, key=lambda finding: (finding.echo_of is not None, finding.slot))),
        rows=len(rows),
        first_time=min(known, default=None),
        last_time=max(known, default=None),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        running_reqs=violations[rows[0]].running_reqs,
        pattern=pattern_of(roots or [finding.slot for finding in members]),
    )


def _near(before: Violation, after: Violation) -> bool:
    if before.step is not None and after.step is not None:
        return abs(after.step - before.step) <= _STEP_GAP
    if before.time is not None and after.time is not None:
        return abs((after.time - before.time).total_seconds()) <= _TIME_GAP_S
    return True


def _kind(finding: Finding) -> str:
    bits = finding.bits
    if bits & (WRITE_TOKEN | WRITE_POSITION) and not bits & RECORD:
        return "write"
    if bits & RECORD:
        return "record"
    return "bytes" if bits & REAL else "token"


def _record(violation: Violation) -> tuple[int, int, int] | None:
    if violation.stored_chain_hash is None or violation.stored_token is None or violation.position is None:
        return None
    return violation.stored_chain_hash, violation.stored_token, violation.position


def _place(violation: Violation) -> str:
    return violation.launch_tag.split("_")[0] if violation.launch_tag in _TAGS else "?"


def pool_of(violation: Violation) -> str:
    """The pool whose slots a row numbers: FULL or SWA."""
    return "SWA" if violation.launch_tag.endswith("_SWA") else "FULL"
