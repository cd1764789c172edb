"""An inspection as sections of the self-contained report that all pages share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvcanary.analysis import slot_map
from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.inspection import counts
from kvcanary.charts import slots, violations
from kvcanary.charts.report import Kind, Picture, Section, Table, report_html
from kvcanary.layout import SlotStatus
from kvcanary.units import format_bytes, format_count

_LIMIT = 200
_KINDS: dict[str, Kind] = {"pass": "pass", "fail": "error", "partial": "warning", "not run": "note"}


def html(inspected: Inspected, label: str) -> str:
    """The whole report; it needs no network."""
    diagnosis = inspected.diagnosis
    title = f"KV canary inspection: {label}"
    verdict = f"{diagnosis.verdict.capitalize()}. {diagnosis.sentence}"
    return report_html(title, sections(inspected), verdict=verdict, kind=_KINDS[diagnosis.verdict])


def sections(inspected: Inspected) -> list[Section]:
    """Causes, violations over time and by kind, slot map, incidents, coverage; parts without content are left out."""
    found = [*_causes(inspected), _violations(inspected), *_maps(inspected), _incidents(inspected), _coverage(inspected)]
    return [section for section in found if section is not None]


def _causes(inspected: Inspected) -> Sequence[Section]:
    parts = []
    for number, cause in enumerate(inspected.diagnosis.causes):
        text = cause.text
        rows = [("evidence", item) for item in cause.evidence]
        rows += [("confirm by", item) for item in text.confirm]
        rows += [("flag", item) for item in text.flags]
        rows += [("public report", item) for item in text.references]
        rows += [("also possible", other.replace("_", " ")) for other in cause.others]
        head = "Likeliest cause" if number == 0 else "Other cause"
        parts.append(
            Section(
                heading=f"{head}: {text.title} ({cause.confidence.name.lower()} confidence)",
                sentence=text.meaning,
                tables=(Table(head=("what", "in words"), rows=rows),),
            )
        )
    return parts


def _violations(inspected: Inspected) -> Section | None:
    cross = inspected.cross
    if not cross.count:
        return None
    bins, reasons = cross.facets["time"], cross.facets["reason"]
    numbers, chosen = cross.timeline({}), bins.chosen(())
    picture = Picture(
        draw=lambda theme: violations.timeline(cross.time_axis, bins.labels, reasons.labels, numbers, chosen, theme),
        alt=violations.timeline_summary(cross.time_axis, bins.labels, reasons.labels, numbers),
    )
    groups = counts(inspected.log.violations)
    rows = [
        (
            f"{group['source']} {group['rank']}".strip(),
            group["launch_tag"],
            group["reasons"],
            format_count(group["violations"]),
            format_count(group["slots"]),
        )
        for group in groups[:_LIMIT]
    ]
    caption = f"The first {_LIMIT} of {format_count(len(groups))} groups." if len(groups) > _LIMIT else ""
    table = Table(head=("rank", "launch tag", "reasons", "violations", "slots"), rows=rows, numeric=(3, 4), caption=caption)
    return Section(heading="Violations", pictures=(picture,), tables=(table,))


def _maps(inspected: Inspected) -> Sequence[Section]:
    everything = inspected.cross.mask({})
    parts = []
    for pool in inspected.pools:
        status, outside = inspected.status(pool, everything)
        tallies = slot_map.count_statuses(status)
        bad, grid = tallies[SlotStatus.CORRUPTED], slot_map.reduce_to_tiles(status)
        text = f"{format_count(bad)} of {format_count(slot_map.pool_slots(tallies))} slots reported; {pool.origin}."
        if outside:
            text += f" {format_count(outside)} reported slot numbers lie outside the map."
        shown = tallies if inspected.statuses else tallies | {SlotStatus.FREE: 0}
        picture = Picture(draw=partial(slots.overview, grid, shown), alt=text)
        parts.append(Section(heading=f"Slot map of the {'window' if pool.name == 'SWA' else 'full'} pool", pictures=(picture,)))
    return parts


def _incidents(inspected: Inspected) -> Section | None:
    diagnosis = inspected.diagnosis
    if not diagnosis.incidents:
        return None
    rows = [
        (
            str(incident.number),
            str(incident.first_time or "unknown"),
            ", ".join(incident.ranks),
            "unknown" if incident.first_step is None else f"{incident.first_step} to {incident.last_step}",
            format_count(incident.rows),
            _some([finding.slot for finding in incident.causes]),
            _some([finding.slot for finding in incident.echoes]),
            f"{diagnosis.suspicions[incident.number].cause.replace('_', ' ')} "
            f"({diagnosis.suspicions[incident.number].confidence.name.lower()})",
        )
        for incident in diagnosis.incidents[:_LIMIT]
    ]
    total = len(diagnosis.incidents)
    caption = f"The first {_LIMIT} of {format_count(total)} incidents." if total > _LIMIT else ""
    head = ("#", "time", "ranks", "steps", "rows", "slots", "echoes", "cause")
    return Section(heading="Incidents", tables=(Table(head=head, rows=rows, numeric=(0, 4), caption=caption),))


def _coverage(inspected: Inspected) -> Section:
    log, diagnosis = inspected.log, inspected.diagnosis
    rows = [("read", f"{', '.join(log.files)}: {format_bytes(log.bytes_read)}, {format_count(log.lines)} lines")]
    rows += [("not covered", reason) for reason in diagnosis.coverage.reasons]
    rows += [("note", note) for note in diagnosis.notes]
    rows += [("cannot tell", limit) for limit in diagnosis.cannot_tell]
    sentence = (
        f"{format_count(diagnosis.coverage.protected_tokens)} checks and writes, "
        f"{format_count(diagnosis.coverage.sweep_passes)} sweeps, {format_count(log.unread)} canary lines not understood."
    )
    return Section(
        heading="Coverage, and what this log cannot tell", sentence=sentence, tables=(Table(head=("what", "in words"), rows=rows),)
    )


def _some(numbers: Sequence[int]) -> str:
    ordered = sorted(set(numbers))
    return ", ".join(map(str, ordered[:6])) + (f" and {len(ordered) - 6} more" if len(ordered) > 6 else "")
