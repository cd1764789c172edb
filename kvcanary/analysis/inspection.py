"""A diagnosis as plain data: the versioned form that `kvcanary inspect --json` prints and reports are made from."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from kvcanary.analysis.canary_lines import HASH_KEYS, NUMBER_KEYS
from kvcanary.analysis.canary_log import CanaryLog, LogEvent, StreamReport
from kvcanary.analysis.diagnosis import DiagnosedCause, Diagnosis
from kvcanary.analysis.incidents import Finding, Incident
from kvcanary.analysis.violations import Violation, ViolationTable

# Documents before these had the schema "kvcanary.inspect/1" and no version, and are else the same.
SCHEMA, VERSION = "kvcanary.inspection", 1


def report_data(log: CanaryLog, diagnosis: Diagnosis, *, max_violations: int = 1000) -> dict[str, Any]:
    """JSON-ready: verdict, coverage, counts, causes, incidents, ranks, events and the first violations.

    Hashes are text, '0x' and 16 digits, because JSON readers lose digits beyond 2^53; every other number is exact.
    """
    listed = len(log.violations)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": diagnosis.verdict,
        "sentence": diagnosis.sentence,
        "files": list(log.files),
        "bytes_read": log.bytes_read,
        "lines": log.lines,
        "canary_lines": log.canary_lines,
        "unread_lines": log.unread,
        "unread_samples": list(log.unread_samples),
        "complete": log.complete,
        "coverage": _plain_dict(asdict(diagnosis.coverage)),
        "counts": counts(log.violations),
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "incidents": [_incident(incident, diagnosis) for incident in diagnosis.incidents[:max_violations]],
        "incidents_found": len(diagnosis.incidents),
        "ranks": [_rank(report) for report in log.streams],
        "events": [_event(event) for event in log.events[:max_violations]],
        "notes": list(diagnosis.notes),
        "violations": [violation_data(log.violations[row]) for row in range(min(listed, max_violations))],
        "violations_listed": listed,
    }


def counts(violations: ViolationTable) -> list[dict[str, Any]]:
    """Rows and distinct slots by server, source, rank, launch tag and reasons, most rows first."""
    groups = [
        {
            "server": stream.server,
            "source": stream.source,
            "rank": stream.rank,
            "launch_tag": tag,
            "reasons": reasons,
            "violations": rows,
            "slots": slots,
        }
        for stream, tag, reasons, rows, slots in violations.group_counts()
    ]
    keys = ("server", "source", "rank", "launch_tag", "reasons")
    return sorted(groups, key=lambda group: (-int(group["violations"]), *(str(group[key]) for key in keys)))


def violation_data(violation: Violation) -> dict[str, Any]:
    """One record."""
    data = {name: getattr(violation, name) for name in _VIOLATION_FIELDS}
    return _plain_dict(
        {
            "server": violation.stream.server,
            "source": violation.stream.source,
            "rank": violation.stream.rank,
            **data,
            "stored_chain_hash": hash_text(violation.stored_chain_hash),
            "expected_aux": hash_text(violation.expected_aux),
        }
    )


_VIOLATION_FIELDS = (
    "file",
    "line",
    "time",
    "launch_tag",
    "reasons",
    "reasons_raw",
    "slot_idx",
    "position",
    "stored_token",
    "expected_token",
    "expected_position",
    "step",
    "total",
    "ring_overflow",
    "running_reqs",
    "truncated",
)


def hash_text(value: int | None) -> str | None:
    """A hash as the server prints it."""
    return None if value is None else f"0x{value:016x}"


def record_line(violation: Violation) -> str:
    """The structured line of a record as SGLang prints it, as far as it was read."""
    parts = [f"launch_tag={violation.launch_tag}", f"fail_reason={'+'.join(violation.reasons_raw) or 'none'}"]
    parts += [f"{name}={value}" for name in NUMBER_KEYS if (value := getattr(violation, name)) is not None]
    parts += [f"{name}={hash_text(value)}" for name in HASH_KEYS if (value := getattr(violation, name)) is not None]
    return f"kv_canary violation: {' '.join(parts)}"


def _cause(cause: DiagnosedCause) -> dict[str, Any]:
    text = cause.text
    return {
        "cause": str(cause.cause),
        "title": text.title,
        "confidence": cause.confidence.name.lower(),
        "meaning": text.meaning,
        "evidence": list(cause.evidence),
        "confirm": list(text.confirm),
        "flags": list(text.flags),
        "references": list(text.references),
        "also_possible": [str(other) for other in cause.others],
        "incidents": list(cause.incidents),
        "slots": cause.slots,
    }


def _incident(incident: Incident, diagnosis: Diagnosis) -> dict[str, Any]:
    suspicion = diagnosis.suspicions[incident.number]
    return _plain_dict(
        {
            "number": incident.number,
            "cause": str(suspicion.cause),
            "confidence": suspicion.confidence.name.lower(),
            "rows": incident.rows,
            "ranks": incident.ranks,
            "first_time": incident.first_time,
            "last_time": incident.last_time,
            "first_step": incident.first_step,
            "last_step": incident.last_step,
            "running_reqs": incident.running_reqs,
            "longest_run": incident.pattern.longest_run,
            "stride": incident.pattern.stride,
            "causes": [_finding(finding) for finding in incident.causes[:100]],
            "echoes": [_finding(finding) for finding in incident.echoes[:100]],
            "causes_found": len(incident.causes),
            "echoes_found": len(incident.echoes),
        }
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "slot": finding.slot,
        "group": finding.group,
        "places": sorted(finding.places),
        "rows": len(finding.rows),
        "echo_of": finding.echo_of,
    }


def _rank(report: StreamReport) -> dict[str, Any]:
    data = {name: getattr(report, name) for name in report.__dataclass_fields__ if name not in ("stream", "install", "health_error")}
    stream = {"server": report.stream.server, "source": report.stream.source, "rank": report.stream.rank}
    return _plain_dict({**stream, **data, "install": dict(report.install)})


def _event(event: LogEvent) -> dict[str, Any]:
    return _plain_dict(
        {
            "kind": event.kind,
            "server": event.stream.server,
            "source": event.stream.source,
            "rank": event.stream.rank,
            "file": event.file,
            "line": event.line,
            "time": event.time,
            "values": dict(event.values),
            "tags": event.tags,
            "text": event.text[:300],
        }
    )


def _plain_dict(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value
