"""From a log to a verdict with its coverage, causes in order of likelihood, and what the log cannot tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvcanary.analysis.canary_log import CanaryLog, StreamReport
from kvcanary.analysis.causes import CAUSE_TEXTS, Cause, CauseText
from kvcanary.analysis.coverage import Coverage, coverage_of
from kvcanary.analysis.evidence import burst_evidence, nearby_notes, shape_evidence
from kvcanary.analysis.incidents import MAX_ROWS, Incident, find_incidents, replica_of
from kvcanary.analysis.marks import Confidence, Context, Marks, Suspicion
from kvcanary.analysis.suspicion import suspect
from kvcanary.analysis.violations import NO_RANK
from kvcanary.units import format_count

# So many slots are named in the sentence; more are counted.
_NAMED_SLOTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedCause:
    """One cause over all incidents that point to it, with the evidence of the clearest."""

    cause: Cause
    confidence: Confidence
    evidence: tuple[str, ...]
    others: tuple[Cause, ...]
    incidents: tuple[int, ...]
    slots: int

    @property
    def text(self) -> CauseText:
        """Title, meaning, confirmation, flags and references."""
        return CAUSE_TEXTS[self.cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """verdict: pass, fail, partial or 'not run', and the sentence that says it. causes: likeliest first. suspicions: by incident number."""

    verdict: str
    sentence: str
    coverage: Coverage
    causes: tuple[DiagnosedCause, ...]
    incidents: tuple[Incident, ...]
    suspicions: Mapping[int, Suspicion]
    notes: tuple[str, ...]
    cannot_tell: tuple[str, ...]


def diagnose(log: CanaryLog) -> Diagnosis:
    """Everything that the log supports, and nothing more; the same log gives the same answer."""
    coverage = coverage_of(log)
    violations = log.violations.first(MAX_ROWS)
    incidents = find_incidents(violations)
    contexts = _contexts(log)
    suspicions = {
        incident.number: suspect(Marks(incident, violations, contexts.get(incident.replica[:2], Context()))) for incident in incidents
    }
    causes = _causes(log, incidents, suspicions, contexts)
    return Diagnosis(
        verdict=coverage.verdict,
        sentence=_sentence(log, coverage, incidents, causes),
        coverage=coverage,
        causes=causes,
        incidents=tuple(incidents),
        suspicions=suspicions,
        notes=_notes(log, incidents),
        cannot_tell=coverage.cannot_tell,
    )


def _contexts(log: CanaryLog) -> dict[tuple[str, str], Context]:
    """What install lines, printed server arguments and cache lines tell about each server."""
    known: dict[tuple[str, str], dict[str, object]] = {}
    ranks: dict[tuple[str, str], set[str]] = {}
    for report in log.streams:
        name = (report.stream.server, report.stream.source)
        ranks.setdefault(name, set())
        if report.canary_lines and report.stream.rank != NO_RANK:
            ranks[name].add(report.stream.rank)
        facts = known.setdefault(name, {})
        for field, key in (
            ("disaggregation", "disaggregation_mode"),
            ("real_data", "real_kv_hash_mode"),
            ("sweep_interval", "sweep_interval"),
        ):
            if key in report.install:
                facts[field] = report.install[key]
    for event in log.events_of("server_args", "tree"):
        facts = known.setdefault((event.stream.server, event.stream.source), {})
        for field, key in (("page_size", "page_size"), ("host_tier", "enable_hierarchical_cache"), ("host_tier", "hicache_attached")):
            value = event.values.get(key)
            if value is not None:
                facts[field] = bool(facts.get(field)) or value if isinstance(value, bool) else value
        facts.setdefault("disaggregation", event.values.get("disaggregation_mode"))
    return {name: _context(facts, tuple(sorted(ranks.get(name, ())))) for name, facts in known.items()}


def _context(facts: Mapping[str, object], ranks: tuple[str, ...]) -> Context:
    def text(name: str) -> str | None:
        value = facts.get(name)
        return value if isinstance(value, str) else None

    def number(name: str) -> int | None:
        value = facts.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    tier = facts.get("host_tier")
    return Context(
        disaggregation=text("disaggregation"),
        host_tier=tier if isinstance(tier, bool) else None,
        page_size=number("page_size"),
        real_data=text("real_data"),
        sweep_interval=number("sweep_interval"),
        ranks=ranks,
    )


def _causes(
    log: CanaryLog, incidents: list[Incident], suspicions: Mapping[int, Suspicion], contexts: Mapping[tuple[str, str], Context]
) -> tuple[DiagnosedCause, ...]:
    by_cause: dict[Cause, list[Incident]] = {}
    for incident in incidents:
        by_cause.setdefault(suspicions[incident.number].cause, []).append(incident)
    causes = [_merged(cause, members, suspicions, contexts, log) for cause, members in by_cause.items()]
    if health := [report for report in log.streams if report.health_error]:
        causes.append(_health(health))
    # Sure before likely before possible; then the one that explains more slots; then the earlier.
    return tuple(sorted(causes, key=lambda cause: (-cause.confidence, -cause.slots, cause.incidents)))


def _merged(
    cause: Cause, members: list[Incident], suspicions: Mapping[int, Suspicion], contexts: Mapping[tuple[str, str], Context], log: CanaryLog
) -> DiagnosedCause:
    clearest = max(members, key=lambda incident: (suspicions[incident.number].confidence, -incident.number))
    suspicion = suspicions[clearest.number]
    page_size = contexts.get(clearest.replica[:2], Context()).page_size
    evidence = [*suspicion.evidence, *_rank_evidence(clearest, log), *shape_evidence(clearest, page_size), *burst_evidence(members)]
    return DiagnosedCause(
        cause=cause,
        confidence=suspicion.confidence,
        evidence=tuple(evidence),
        others=suspicion.others,
        incidents=tuple(incident.number for incident in members),
        slots=len({(finding.replica, finding.group, finding.slot) for incident in members for finding in incident.causes}),
    )


def _rank_evidence(incident: Incident, log: CanaryLog) -> list[str]:
    peers = sorted(
        report.stream.rank
        for report in log.streams
        if report.canary_lines and report.stream.rank != NO_RANK and replica_of(report.stream) == incident.replica
    )
    seen = [rank for rank in incident.ranks if rank in peers]
    if len(peers) < 2 or not seen:
        return []
    if all(set(finding.ranks) >= set(peers) for finding in incident.causes):
        return [f"All {len(peers)} ranks report the same slots: what they share is the host's bookkeeping and the input."]
    if len(seen) == 1:
        return [f"{seen[0]} alone of {len(peers)} ranks reports it: what is alike on all ranks is unlikely to be the cause."]
    if all(len(finding.ranks) == 1 for finding in incident.causes):
        return [f"{len(seen)} of {len(peers)} ranks report slots of their own, and none is shared."]
    return [f"{len(seen)} of {len(peers)} ranks report it: {', '.join(seen)}."]


def _health(reports: list[StreamReport]) -> DiagnosedCause:
    event = reports[0].health_error
    assert event is not None
    interval = reports[0].sweep_interval
    evidence = [f"Step {event.values['step']}: no launch of {', '.join(event.tags)} since the check before, on {reports[0].stream.label}."]
    sweep = bool(event.tags) and all(tag.startswith("SWEEP") for tag in event.tags)
    if sweep and interval is not None and interval > 100:
        evidence.append(f"Sweeps ran every {interval} steps and the check looks every 100, so one of its windows holds no sweep.")
    elif sweep:
        evidence.append("Only sweeps are missing: the cache may not have been attached when the first was due.")
    return DiagnosedCause(
        cause=Cause.CANARY_SETTING,
        confidence=Confidence.HIGH if sweep and interval is not None and interval > 100 else Confidence.MEDIUM,
        evidence=tuple(evidence),
        others=(),
        incidents=(),
        slots=0,
    )


def _sentence(log: CanaryLog, coverage: Coverage, incidents: list[Incident], causes: tuple[DiagnosedCause, ...]) -> str:
    listed = len(log.violations)
    if coverage.verdict == "not run":
        return f"{'The canary did not run' if log.lines else 'Nothing to read'}: {coverage.reasons[0]}."
    if coverage.verdict == "fail":
        slots = {(finding.replica, finding.slot) for incident in incidents for finding in incident.causes}
        echoes = {(finding.replica, finding.slot) for incident in incidents for finding in incident.echoes} - slots
        ranks = sorted({rank for incident in incidents for rank in incident.ranks} - {NO_RANK})
        more = f" ({format_count(coverage.counted)} counted)" if coverage.counted is not None and coverage.counted != listed else ""
        where = f" on {', '.join(ranks[:4])}{' and more' if len(ranks) > 4 else ''}" if ranks else ""
        cause = f" Likeliest cause: {causes[0].text.title} ({causes[0].confidence.name.lower()} confidence)." if incidents else ""
        least = "at least " if listed > MAX_ROWS else ""
        count = f"{format_count(listed)} violation{'s' if listed != 1 else ''} listed{more}"
        verb, them = "echoes" if len(echoes) == 1 else "echo", "it" if len(slots) == 1 else "them"
        named = _slots(echoes)
        echoed = f" ({named}{',' if ', first' in named else ''} only {verb} {them})" if echoes else ""
        return f"{count} for {least}{_slots(slots)}{echoed}{where}.{cause}"
    done = f"{format_count(coverage.protected_tokens)} slot checks and writes" if coverage.protected_tokens else "checks"
    if coverage.verdict == "partial":
        return f"No violation in {done}, but not everything was looked at: {coverage.reasons[0]}."
    return f"No violation in {done} and {format_count(coverage.sweep_passes or 0)} sweeps."


def _slots(found: Collection[tuple[object, int]]) -> str:
    """'slot 61 390', 'slots 128 and 256', '37 slots, first at 61 390'."""
    numbers = [format_count(slot) for slot in sorted({slot for _, slot in found})]
    if len(numbers) == 1:
        return f"slot {numbers[0]}"
    if 1 < len(numbers) <= _NAMED_SLOTS:
        return f"slots {', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"{format_count(len(found))} slots" + (f", first at {numbers[0]}" if numbers else "")


def _notes(log: CanaryLog, incidents: list[Incident]) -> tuple[str, ...]:
    notes = list(log.notes)
    injected = [event for event in log.events_of("perturb") if "skipped" not in event.values]
    if injected:
        hit = {
            (event.stream.server, event.stream.source, value)
            for event in injected
            for key in ("slot", "new_slot")
            if isinstance(value := event.values.get(key), int)
        }
        reported = {(finding.replica.server, finding.replica.source, finding.slot) for incident in incidents for finding in incident.causes}
        notes.append(
            f"Fault injection is on: {len(injected)} injected fault{'s' if len(injected) != 1 else ''} in this log, "
            f"{len(hit & reported)} of the reported slots are among them."
        )
    if len(log.violations) > MAX_ROWS:
        notes.append(f"Causes come from the first {format_count(MAX_ROWS)} of {format_count(len(log.violations))} rows.")
    notes += nearby_notes(log)
    if any(report.runners > 1 for report in log.streams):
        notes.append(
            "Target and draft runner print under the same rank. Their stats lines are added up; which of them a record is from cannot be told."
        )
    return tuple(notes)
