"""An inspection as sections: causes, violations over time and by kind, slot map and slots, incidents, what is covered and what is not.

One list for an inspection just made and for a stored one: texts and counts come from its document, figures from its rows. A document may
be of another version or from elsewhere: what it does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kvcanary.analysis import slot_map
from kvcanary.analysis.inspected import Pool, ReportedRows
from kvcanary.charts import slots, violations
from kvcanary.charts.report import Picture, Section, Table, cut
from kvcanary.layout import SlotStatus
from kvcanary.typed import Loose
from kvcanary.units import format_bytes, format_count

_LIMIT = 200
_NAMES = 6
EVENT_WORDS = {
    "error": "error", "sigquit": "child failed", "perturb": "injected fault", "divergence": "window translation", "install": "install",
    "attach": "attached buffers", "health": "health check", "tree": "cache", "ready": "ready", "server_args": "server arguments",
}  # fmt: skip
_RANK_COLUMNS = {
    "listed": "listed", "counter": "counted", "last_step": "last step", "overflow_steps": "skipped steps",
    "protected_tokens": "checks and writes", "sweep_passes": "sweeps", "pool_slots": "pool slots",
}  # fmt: skip


def inspection_sections(document: Mapping[str, Any], rows: ReportedRows) -> list[Section]:
    """What a document and its rows say; parts without content are left out.

    document: as `analysis.inspection.report_data` writes it. rows: all violations, or those that a stored document holds, which then says
    in each figure how many it leaves out.
    """
    found = Loose(document)
    left_out = max(0, (found.count("violations_listed") or 0) - rows.cross.count)
    more = (
        f" The first {format_count(rows.cross.count)} violations are stored; {format_count(left_out)} more are not shown."
        if left_out
        else ""
    )
    parts = [
        *_causes(found), _violations(found, rows, more), *_pools(rows, more), _incidents(found), _ranks(found), _coverage(found), _events(found),
        _listed(found),
    ]  # fmt: skip
    return [part for part in parts if part is not None]


def _causes(found: Loose) -> Sequence[Section]:
    parts = []
    for number, cause in enumerate(found.parts("causes")[:_LIMIT]):
        rows = [
            (words, item)
            for words, name in (("evidence", "evidence"), ("confirm by", "confirm"), ("flag", "flags"), ("public report", "references"))
            for item in cause.texts(name)
        ]
        rows += [("also possible", other.replace("_", " ")) for other in cause.texts("also_possible")]
        title = cause.text("title") or cause.text("cause").replace("_", " ") or "without a name"
        confidence = f" ({words} confidence)" if (words := cause.text("confidence")) else ""
        parts.append(
            Section(
                heading=f"{'Other' if number else 'Likeliest'} cause: {title}{confidence}",
                sentence=cause.text("meaning"),
                tables=(Table(head=("what", "in words"), rows=rows),) if rows else (),
            )
        )
    return parts


def _violations(found: Loose, rows: ReportedRows, more: str) -> Section | None:
    cross, groups = rows.cross, found.parts("counts")
    pictures = []
    bins, reasons = cross.facets["time"], cross.facets["reason"]
    if bins.labels:
        numbers, chosen = cross.timeline({}), bins.chosen(())
        pictures.append(
            Picture(
                draw=lambda theme: violations.timeline(cross.time_axis, bins.labels, reasons.labels, numbers, chosen, theme),
                alt=violations.timeline_summary(cross.time_axis, bins.labels, reasons.labels, numbers) + more,
            )
        )
    cells = [
        (_rank(group), group.text("launch_tag"), group.text("reasons"), _count(group.count("violations")), _count(group.count("slots")))
        for group in groups[:_LIMIT]
    ]
    head = ("rank", "launch tag", "reasons", "violations", "slots")
    table = Table(head=head, rows=cells, numeric=(3, 4), caption=cut("groups", len(cells), len(groups)))
    return Section(heading="Violations", pictures=pictures, tables=(table,) if cells else ()) if pictures or cells else None


def _pools(rows: ReportedRows, more: str) -> Sequence[Section]:
    everything = rows.cross.mask({})
    parts = []
    for pool in rows.pools:
        if not pool.num_slots:
            continue
        status, outside = rows.status(pool, everything)
        tallies = slot_map.count_statuses(status)
        grid, text = slot_map.reduce_to_tiles(status), rows.summary(pool, status, outside)
        shown = tallies if rows.statuses else tallies | {SlotStatus.FREE: 0}
        picture = Picture(draw=partial(slots.overview, grid, shown), alt=text + more)
        parts.append(Section(heading=f"Slot map of the {pool.title}", pictures=(picture,), tables=_slots(rows, pool)))
    return parts


def _slots(rows: ReportedRows, pool: Pool) -> Sequence[Table]:
    listed, total = rows.most_reported(pool, rows.cross.mask({}), _LIMIT)
    if not listed:
        return ()
    size = rows.page_size or 1
    cells = [
        (format_count(slot), format_count(count), role, *((format_count(slot // size), format_count(slot % size)) if size > 1 else ()))
        for slot, count, role in listed
    ]
    head = ("slot", "violations", "role", *(("page", "in page") if size > 1 else ()))
    caption = f"The {format_count(len(listed))} slots with the most violations of {format_count(total)}." if total > len(listed) else ""
    return (Table(head=head, rows=cells, numeric=(0, 1, 3, 4), caption=caption),)


def _incidents(found: Loose) -> Section | None:
    incidents = found.parts("incidents")
    cells = [
        (
            _count(incident.count("number")),
            incident.text("first_time") or "unknown",
            ", ".join(incident.texts("ranks")),
            _steps(incident.count("first_step"), incident.count("last_step")),
            _count(incident.count("rows")),
            _some(incident, "causes"),
            _some(incident, "echoes"),
            f"{incident.text('cause').replace('_', ' ') or 'unknown'} ({incident.text('confidence') or 'unknown'})",
        )
        for incident in incidents[:_LIMIT]
    ]
    caption = cut("incidents", len(cells), max(len(incidents), found.count("incidents_found") or 0))
    head = ("#", "time", "ranks", "steps", "rows", "slots", "echoes", "cause")
    return Section(heading="Incidents", tables=(Table(head=head, rows=cells, numeric=(0, 4), caption=caption),)) if cells else None


def _ranks(found: Loose) -> Section | None:
    ranks = [rank for rank in found.parts("ranks") if rank.count("canary_lines") != 0]
    cells = [(_rank(rank) or "unknown", *(_count(rank.count(name)) for name in _RANK_COLUMNS)) for rank in ranks[:_LIMIT]]
    table = Table(
        head=("rank", *_RANK_COLUMNS.values()), rows=cells, numeric=range(1, len(_RANK_COLUMNS) + 1),
        caption=cut("ranks", len(cells), len(ranks)),
    )  # fmt: skip
    return Section(heading="Coverage by rank", tables=(table,)) if cells else None


def _coverage(found: Loose) -> Section | None:
    coverage = found.part("coverage")
    size, lines = found.count("bytes_read"), found.count("lines")
    read = [
        ", ".join(found.texts("files")),
        format_bytes(size) if size is not None else "",
        f"{format_count(lines)} lines" if lines else "",
    ]
    rows = [("read", ", ".join(part for part in read if part))] if any(read) else []
    rows += [("read", "not to the end")] if found.flag("complete") is False else []
    rows += [("not covered", reason) for reason in coverage.texts("reasons")]
    rows += [("note", note) for note in found.texts("notes")]
    rows += [("cannot tell", limit) for limit in coverage.texts("cannot_tell")]
    counted = [
        f"{format_count(value)} {words}"
        for value, words in (
            (coverage.count("protected_tokens"), "checks and writes"),
            (coverage.count("sweep_passes"), "sweeps"),
            (found.count("unread_lines"), "canary lines not understood"),
        )
        if value is not None
    ]
    if not rows and not counted:
        return None
    return Section(
        heading="Coverage, and what this log cannot tell",
        sentence=f"{', '.join(counted)}." if counted else "",
        tables=(Table(head=("what", "in words"), rows=rows),) if rows else (),
    )


def _events(found: Loose) -> Section | None:
    events = found.parts("events")
    cells = [
        (
            event.text("time") or "unknown",
            _rank(event),
            EVENT_WORDS.get(event.text("kind"), event.text("kind")),
            _count(event.count("line")),
            event.text("text"),
        )
        for event in events[:_LIMIT]
    ]
    table = Table(head=("time", "rank", "what", "line", "text"), rows=cells, numeric=(3,), caption=cut("lines", len(cells), len(events)))
    return Section(heading="Other lines that matter", tables=(table,)) if cells else None


def _listed(found: Loose) -> Section | None:
    listed = found.parts("violations")
    cells = [
        (
            record.text("time") or "unknown",
            _rank(record),
            _count(record.count("step")),
            record.text("launch_tag"),
            "+".join(record.texts("reasons")),
            *(_count(record.integer(name)) for name in ("slot_idx", "position")),
            # A token is a name and no amount.
            *(str(token) if (token := record.integer(name)) is not None else "unknown" for name in ("stored_token", "expected_token")),
        )
        for record in listed[:_LIMIT]
    ]
    total = max(len(listed), found.count("violations_listed") or 0)
    head = ("time", "rank", "step", "launch tag", "reasons", "slot", "position", "stored token", "expected token")
    table = Table(head=head, rows=cells, numeric=(2, 5, 6, 7, 8), caption=cut("violations", len(cells), total))
    return Section(heading="Violations as listed", tables=(table,)) if cells else None


def _rank(where: Loose) -> str:
    return f"{where.text('source')} {where.text('rank')}".strip()


def _count(value: int | None) -> str:
    return "unknown" if value is None else format_count(value)


def _steps(first: int | None, last: int | None) -> str:
    if first is None:
        return "unknown"
    return format_count(first) if last in (None, first) else f"{format_count(first)} to {format_count(last or 0)}"


def _some(incident: Loose, name: str) -> str:
    ordered = sorted({slot for finding in incident.parts(name) if (slot := finding.count("slot")) is not None})
    left = max(len(ordered), incident.count(f"{name}_found") or 0) - _NAMES
    return ", ".join(map(format_count, ordered[:_NAMES])) + (f" and {format_count(left)} more" if left > 0 else "")
