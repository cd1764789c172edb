"""What there is to say about one run as sections: the page and the report show the same list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kvcanary.analysis import inspection, slot_map
from kvcanary.analysis.frames import decode_variant, points_frame, variants
from kvcanary.analysis.stored_inspection import reported_rows
from kvcanary.charts import detection, frontier, slots, throughput
from kvcanary.charts.inspection_sections import inspection_sections
from kvcanary.charts.plan_sections import plan_sections
from kvcanary.charts.report import Kind, Picture, Section, Table, report_html
from kvcanary.config import plan_report
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.errors import ConfigError, StoreError
from kvcanary.lab.campaign import CellSummary, summarise
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.frontier import ConfigCost, LatencyCurve, by_cost, config_costs, latency_curves
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunRecord, Verdict
from kvcanary.lab.tables import forward_text, point_rows, share_text
from kvcanary.layout import SlotStatus
from kvcanary.store.database import Store
from kvcanary.store.rows import RunRow
from kvcanary.typed import Loose
from kvcanary.units import format_bytes, format_count, format_fraction, format_rate, format_seconds, format_value

_NAME_CHARS = 24
VERDICT_KINDS: Mapping[Verdict, Kind] = {
    Verdict.PASS: "pass", Verdict.FAIL: "error", Verdict.PARTIAL: "warning", Verdict.NOT_RUN: "note",
}  # fmt: skip


def run_sections(store: Store, run_id: str) -> list[Section]:
    """Everything about one run, whatever of it there is; StoreError when there is no such run. A part that cannot be read says why."""
    record = store.record(run_id)
    parts: list[Section | None] = []
    if record.kind == "campaign":
        parts += _read(_campaign, store, record)
    elif record.kind == "plan":
        parts += _read(_plan, store, record)
    elif record.kind == "inspection":
        parts += _read(_inspection, store, record)
    else:
        parts += [*_read(_points, store, record), *_read(_map, store, record)]
    parts += [_outcome(store, record), _settings(record), gate(record), coverage(record), machine(record)]
    return [part for part in parts if part is not None]


def run_report(store: Store, run_id: str) -> str:
    """The report of one run as one HTML document."""
    record = store.record(run_id)
    verdict = record.sentence or f"{record.state.value.capitalize()}. {record.error}"
    return report_html(
        f"{record.kind.capitalize()} {record.id}", run_sections(store, run_id), verdict=verdict, kind=VERDICT_KINDS[record.verdict]
    )


def _read(part: Any, store: Store, record: RunRecord) -> list[Section]:
    try:
        found: list[Section] = part(store, record)
    except (StoreError, ConfigError) as error:
        return [Section(heading="Not readable here", sentence=str(error))]
    return found


def _outcome(store: Store, record: RunRecord) -> Section:
    row = store.row(record.id)
    facts = [("run", record.id), ("kind", record.kind), ("state", record.state.value), ("verdict", record.verdict.value)]
    facts.append(("made", time_text(record.created_s)))
    # A plan is there at once.
    if record.started_s is not None and record.finished_s is not None and record.finished_s > record.started_s:
        facts.append(("took", format_seconds(record.finished_s - record.started_s)))
    facts += [("note", row.note)] if row.note else []
    facts += [("labels", ", ".join(row.labels))] if row.labels else []
    facts += [("error", record.error)] if record.error else []
    facts += [("left out", reason) for reason in record.skipped]
    facts += [("note of the run", note) for note in record.notes]
    return Section(heading="Outcome", tables=(Table(head=("what", "value"), rows=facts),))


def _settings(record: RunRecord) -> Section | None:
    given = record.spec.get("settings")
    options = [(name, format_value(value)) for name, value in record.spec.items() if name != "settings"]
    if not isinstance(given, dict):
        heading = "What was read" if record.kind == "inspection" else "What ran"
        return Section(heading=heading, tables=(Table(head=("option", "value"), rows=options),)) if options else None
    try:
        flat = Settings.from_flat(given).to_flat()
    except ConfigError:
        flat = given
    changed = [(name, _amount(name, value)) for name, value in flat.items() if name not in FIELDS or value != FIELDS[name].default]
    sentence = {0: "Every setting has its default.", 1: "One setting differs from its default; all others have theirs."}.get(
        len(changed), f"{format_count(len(changed))} settings differ from their defaults; all others have them."
    )
    tables = [Table(head=("setting", "value"), rows=changed)] if changed else []
    tables += [Table(head=("option", "value"), rows=options)] if options else []
    return Section(heading="Settings", sentence=sentence, tables=tables)


def _amount(name: str, value: Any) -> str:
    """A setting as its field shows it: sizes in GiB, whole numbers in groups."""
    if isinstance(value, int) and not isinstance(value, bool):
        return format_bytes(value) if name.endswith("_bytes") else format_count(value)
    return format_value(value)


def _points(store: Store, record: RunRecord) -> list[Section]:
    points = store.points(record.id)
    if not points:
        return [Section(heading="Throughput", sentence="Nothing was measured in this run.")]
    frame = points_frame(points)
    pictures = []
    for mode, layout in variants(frame):
        rows = decode_variant(frame, mode, layout)
        text = f"Hash {mode}, {layout} slots: {throughput.summary(rows, record.spec.get('step_time_s'))}"
        pictures.append(Picture(draw=partial(throughput.by_batch, rows), alt=text))
    return [Section(heading="Throughput", pictures=pictures, tables=(points_table(record, points),))]


def points_table(record: RunRecord, points: Sequence[Point]) -> Table:
    """Every measured point and operation; one forward also as a share of the model's step where the run states it."""
    step_time_s = record.spec.get("step_time_s")
    head = ("workload", "slots", "hash", "batch", "prefix", "op", "rate", "median", "p20 to p80", "share of bound", "one forward")
    return Table(head=head, rows=[_point_cells(row, step_time_s) for row in point_rows(points)], numeric=(3, 4, 6, 7, 8, 9, 10))


def _point_cells(row: Mapping[str, Any], step_time_s: float | None) -> tuple[str, ...]:
    return (
        row["workload"], row["layout"], row["hash_mode"], format_count(row["batch"]), format_count(row["prefix"]), row["op"],
        format_rate(row["items_per_s"], "tokens" if row["op"] == "stamp" else "slots"), format_seconds(row["p50_s"]),
        f"{format_seconds(row['p20_s'])} to {format_seconds(row['p80_s'])}",
        share_text(row["share_of_bound"]),
        "not a forward" if row["forward_s"] is None else forward_text(row["forward_s"], step_time_s),
    )  # fmt: skip


def _map(store: Store, record: RunRecord) -> list[Section]:
    picture = map_picture(store, record.id)
    if picture is None:
        return []
    cards = store.cards(record.id)
    sentence = f"{format_count(len(cards))} slots have a card." if cards else "No slot is bad."
    return [Section(heading="Slot map", sentence=sentence, pictures=(picture,), tables=planted_tables(record))]


def planted_tables(record: RunRecord) -> list[Table]:
    """The faults that were planted; no table where there is none."""
    rows = [
        (fault["kind"], format_count(fault["slot"]), fault["field"], ", ".join(fault["expected"]) or "out of reach", fault["why"])
        for fault in record.faults
    ]
    return [Table(head=("planted", "slot", "field", "expected at", "why"), rows=rows, numeric=(1,))] if rows else []


def map_picture(store: Store, run_id: str, name: str = "") -> Picture | None:
    """The slot map of a run, None where it did not get that far."""
    arrays = store.slots(run_id)
    if arrays is None:
        return None
    grid, counts = slot_map.reduce_to_tiles(arrays.status), slot_map.count_statuses(arrays.status)
    parts = ", ".join(
        f"{format_count(count)} {_STATUS_WORDS[status]}" for status, count in counts.items() if count and status is not SlotStatus.RESERVED
    )
    text = f"{name + ': ' if name else ''}{format_count(slot_map.pool_slots(counts))} slots: {parts}."
    return Picture(draw=lambda theme: slots.overview(grid, counts, theme), alt=text)


_STATUS_WORDS = {status: status.name.lower() for status in SlotStatus}


def _campaign(store: Store, record: RunRecord) -> list[Section]:
    plan = plan_of(CampaignSpec(**record.spec))
    runs = read_runs(store.folder(record.id).path)
    if not runs:
        return [Section(heading="Detection", sentence="No run was finished, so there is no matrix.")]
    cells, costs = summarise(plan, runs), by_cost(config_costs(plan, runs))
    curves = latency_curves(plan, runs, [cost.config for cost in costs])
    text = detection.matrix_summary(cells)
    picture = Picture(draw=lambda theme: detection.matrix(cells, costs, theme), alt=text)
    soon = Picture(draw=partial(frontier.latency, curves), alt=frontier.latency_summary(curves))
    price = Picture(draw=partial(frontier.frontier, costs), alt=frontier.frontier_summary(costs))
    return [
        Section(heading="Detection", pictures=(picture,)),
        Section(heading="Cost and detection", pictures=(soon, price), tables=(costs_table(costs, curves),), beside=True),
        Section(heading="Every cell", tables=(cells_table(cells),)),
    ]


def costs_table(costs: Sequence[ConfigCost], curves: Sequence[LatencyCurve]) -> Table:
    """What each configuration finds, how soon and for what; curves by steps, of the same configurations in the same order."""
    head = (
        "configuration", "found", "at once", "steps p50", "steps p90", "tokens p50", "tokens p90", "entries per step", "canary per step",
        "on the frontier",
    )  # fmt: skip
    rows = [
        (
            row.config,
            f"{format_fraction(row.rate)} of {format_count(row.injected)}" if row.injected else "nothing injected",
            format_fraction(curve.shares[0]),
            *("none" if steps is None else f"{steps:.3g}" for steps in (row.latency_p50, row.latency_p90)),
            *("none" if count is None else format_count(round(count)) for count in (row.latency_tokens_p50, row.latency_tokens_p90)),
            format_count(round(row.verified_per_step)),
            format_seconds(row.canary_s_per_step),
            "yes" if row.on_frontier else "no",
        )
        for row, curve in zip(costs, curves, strict=True)
    ]
    return Table(head=head, rows=rows, numeric=tuple(range(1, 9)))


def cells_table(cells: Sequence[CellSummary]) -> Table:
    """Every cell of a detection matrix."""
    rows = [
        (
            f"{cell.kind}.{cell.variant}", cell.config, cell.outcome, f"{cell.detected} of {cell.injected}",
            "" if cell.latency_p50 is None else f"{cell.latency_p50:g}", ", ".join(cell.reports), cell.reason,
        )
        for cell in cells
    ]  # fmt: skip
    head = ("fault", "configuration", "result", "reported", "latency p50, steps", "reported as", "why out of reach")
    return Table(head=head, rows=rows, numeric=(3, 4))


def _plan(store: Store, record: RunRecord) -> list[Section]:
    document = store.result(record.id) or {}
    return _whole(plan_sections(document), document, plan_report.VERSION)


def _inspection(store: Store, record: RunRecord) -> list[Section]:
    document = store.result(record.id) or {}
    return _whole(inspection_sections(document, reported_rows(Loose(document))), document, inspection.VERSION)


def _whole(sections: list[Section], document: Mapping[str, Any], known: int) -> list[Section]:
    """Says what else there may be, so that nobody takes a part for the whole. known: the newest version of the document."""
    if (Loose(document).count("version") or 0) > known:
        words = "A newer version of kvcanary wrote this result; what only that version knows is not shown."
    elif not sections:
        words = "Nothing in the stored result can be read here."
    else:
        return sections
    return [*sections, Section(heading="Not all is shown", sentence=words)]


def gate(record: RunRecord) -> Section | None:
    """The checks that had to hold before anything was measured."""
    if not record.gate:
        return None
    rows = [(check.name, "yes" if check.ok else "NO", check.detail) for check in record.gate]
    held = sum(check.ok for check in record.gate)
    return Section(
        heading="Gate", sentence=f"{held} of {len(rows)} checks held.", tables=(Table(head=("check", "held", "detail"), rows=rows),)
    )


def coverage(record: RunRecord) -> Section | None:
    """What the verdict rests on, as counts."""
    if not record.coverage:
        return None
    rows = [(_COVERAGE_WORDS.get(name, name.replace("_", " ")), format_count(count)) for name, count in record.coverage.items()]
    sentence = "What the verdict rests on: slots that were looked at, left out and out of reach, launches, and ring rows kept and dropped."
    return Section(heading="Coverage", sentence=sentence, tables=(Table(head=("what", "count"), rows=rows, numeric=(1,)),))


# The pool is allocated with a page that holds no token, which the operator's number of slots does not count.
_COVERAGE_WORDS = {"slots": "slots, with the padding page", "reserved": "slots of the padding page"}


def machine(record: RunRecord) -> Section | None:
    """Where it ran, with which versions, and how long its stages took."""
    facts = {name: format_bytes(value) if name.endswith("_bytes") else format_value(value) for name, value in record.machine.items()}
    facts |= record.versions
    facts |= {"backend": record.backend["reason"]} if "reason" in record.backend else {}
    facts |= {name.removesuffix("_s"): format_seconds(value) for name, value in record.durations_s.items()}
    if not facts:
        return None
    return Section(heading="Machine and versions", tables=(Table(head=("what", "value"), rows=list(facts.items())),))


def run_name(row: RunRow) -> str:
    """'Qwen3-8B, 2026-01-31 23:59, 1a2b3c4d': a run in a legend or a heading, by its first label, else its model, else its kind."""
    model = row.model.rstrip("/").rpartition("/")[2]
    what = row.labels[0] if row.labels else model or row.kind
    return f"{what[:_NAME_CHARS]}, {datetime.fromtimestamp(row.created_s, UTC):%Y-%m-%d %H:%M}, {row.id.rpartition('-')[2]}"


def time_text(seconds: float) -> str:
    """'2026-01-31 23:59:59 UTC'."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
