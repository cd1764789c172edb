"""What there is to say about runs beside each other as sections: the page and the report show the same list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from kvcanary.analysis.compare import Comparison, Row, compare, differences, level_sentence
from kvcanary.analysis.compare_campaigns import CampaignComparison, campaign_level_sentence, compare_campaigns
from kvcanary.analysis.frames import decode_variant, points_frame, variants
from kvcanary.charts import compare as compare_charts
from kvcanary.charts import detection
from kvcanary.charts.report import Picture, Section, Table, report_html
from kvcanary.charts.sections import map_picture, run_name
from kvcanary.errors import StoreError
from kvcanary.lab.campaign import summarise
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.frontier import config_costs
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunRecord
from kvcanary.store.database import Store
from kvcanary.units import format_count, format_points, format_rate, format_seconds

# The groups of differences as a sentence has them.
_OF = {"settings": "settings", "run": "options", "machine": "machine", "versions": "versions"}


def compare_report(store: Store, run_ids: Sequence[str], limit: float | None = None) -> str:
    """The report of runs beside each other as one HTML document."""
    sections = compare_sections(store, run_ids, limit)
    first, *others = (run_name(store.row(run_id)) for run_id in run_ids)
    return report_html(f"{first} compared with {'; '.join(others)}", sections)


def compare_sections(store: Store, run_ids: Sequence[str], limit: float | None = None) -> list[Section]:
    """The first run is what the others are compared with; two at least, as many as can be told apart in a chart at most."""
    if not 2 <= len(run_ids) <= compare_charts.RUN_LIMIT or len(set(run_ids)) < len(run_ids):
        raise StoreError(f"compare 2 to {compare_charts.RUN_LIMIT} different runs, got {len(run_ids)}")
    records = [store.record(run_id) for run_id in run_ids]
    names = [run_name(store.row(run_id)) for run_id in run_ids]
    found = [_differing(records, names)]
    kinds = sorted({record.kind for record in records})
    if len(kinds) > 1:
        sentence = f"A {' and a '.join(kinds)} have no measurement in common; choose runs of one kind to compare what was measured."
        return [*found, Section(heading="Measurements", sentence=sentence)]
    if kinds == ["campaign"]:
        return [*found, *_campaigns(store, records, names, limit)]
    if kinds != ["benchmark"]:
        return found
    points = [store.points(run_id) for run_id in run_ids]
    for name, after in zip(names[1:], points[1:], strict=True):
        found.append(_ratios(name if len(names) > 2 else "", compare([points[0]], [after]), limit))
    found += _overlaid(names, points)
    maps = [picture for run_id, name in zip(run_ids, names, strict=True) if (picture := map_picture(store, run_id, name)) is not None]
    if maps:
        found.append(Section(heading="Slot maps", pictures=maps, beside=True))
    return found


def _differing(records: Sequence[RunRecord], names: Sequence[str]) -> Section:
    """What is not the same, and first of all which runs these are and how each ended."""
    found = differences(records)
    groups = ", ".join(dict.fromkeys(_OF[item.group] for item in found))
    sentence = f"What differs: {groups}." if found else "Settings, options, machine and versions are the same."
    rows = [
        ("id", "run", *(record.id for record in records)),
        ("verdict", "run", *(record.verdict.value for record in records)),
        *((item.name, item.group, *item.values) for item in found),
    ]
    return Section(heading="What differs", sentence=sentence, tables=(Table(head=("what differs", "of", *names), rows=rows),))


def _ratios(name: str, found: Comparison, limit: float | None) -> Section:
    heading = f"Ratios: {name}" if name else "Ratios"
    if not found.rows:
        return Section(heading=heading, sentence=found.sentence)
    shown = compare_charts.most_telling(found.rows)
    picture = Picture(draw=lambda theme: compare_charts.ratios(shown, theme, limit), alt=_ratio_words(shown, len(found.rows)))
    table = Table(
        head=("operation", "prefix", "before", "after", "ratio of rates", "interval", "outcome"),
        rows=[_ratio_cells(row) for row in (*found.rows, *found.bounds)],
        numeric=(1, 2, 3, 4, 5),
    )
    return Section(heading=heading, sentence=f"{found.sentence} {level_sentence()}", pictures=(picture,), tables=(table,))


def _ratio_words(shown: Sequence[Row], count: int) -> str:
    """The ratio chart in words: its extremes."""
    least, most = min(shown, key=lambda row: row.ratio), max(shown, key=lambda row: row.ratio)
    cut = f" The {len(shown)} most telling of {count} are drawn." if len(shown) < count else ""
    return f"Ratios from {least.ratio:.2f} ({compare_charts.row_name(least)}) to {most.ratio:.2f} ({compare_charts.row_name(most)}).{cut}"


def _ratio_cells(row: Row) -> tuple[str, ...]:
    interval = "none" if row.interval is None else f"{row.interval.low:.3f} to {row.interval.high:.3f}"
    return (
        compare_charts.row_name(row), format_count(row.prefix), format_seconds(row.before_s), format_seconds(row.after_s),
        f"{row.ratio:.3f}", interval, row.outcome,
    )  # fmt: skip


def _overlaid(names: Sequence[str], points: Sequence[Sequence[Point]]) -> list[Section]:
    """Throughput of all runs by batch, for each hash mode and layout that any has; a run without it has no line."""
    frames = [points_frame(list(mine)) for mine in points]
    found = list(dict.fromkeys(variant for frame in frames for variant in variants(frame)))
    pictures = []
    for mode, layout in found:
        rows = [(name, decode_variant(frame, mode, layout)) for name, frame in zip(names, frames, strict=True)]
        rows = [(name, mine) for name, mine in rows if len(mine)]
        for op, what in (("verify", "slots"), ("stamp", "tokens")):
            best = "; ".join(f"{name}: {_best(mine, op, what)}" for name, mine in rows)
            pictures.append(
                Picture(
                    draw=partial(compare_charts.overlay, rows, op, what),
                    alt=f"{op}, hash {mode}, {layout} slots, best rate by run: {best}.",
                )
            )
    return [Section(heading="Throughput", pictures=pictures, beside=True)] if pictures else []


def _best(rows: pd.DataFrame, op: str, what: str) -> str:
    rates = rows[rows["op"] == op]["items_per_s"]
    return format_rate(float(rates.max()), what) if len(rates) else "not measured"


def _campaigns(store: Store, records: Sequence[RunRecord], names: Sequence[str], limit: float | None) -> list[Section]:
    """Rates and costs of each against the first, and the matrices beside each other."""
    runs = [read_runs(store.folder(record.id).path) for record in records]
    sections: list[Section] = []
    for name, after in zip(names[1:], runs[1:], strict=True):
        sections += campaign_ratios(name if len(names) > 2 else "", compare_campaigns(runs[0], after), limit)
    pictures = []
    for record, name, mine in zip(records, names, runs, strict=True):
        if mine:
            plan = plan_of(CampaignSpec(**record.spec))
            cells, costs = summarise(plan, mine), config_costs(plan, mine)
            alt = f"{name}: {detection.matrix_summary(cells)}"
            pictures.append(Picture(draw=partial(detection.matrix, cells, costs), alt=alt))
    return [*sections, Section(heading="Matrices", pictures=pictures)] if pictures else sections


def campaign_ratios(name: str, found: CampaignComparison, limit: float | None) -> list[Section]:
    """Detection rates and costs of two campaigns."""
    of = f": {name}" if name else ""
    if not found.rates:
        return [Section(heading=f"Detection rates{of}", sentence=found.sentence)]
    shown = compare_charts.most_telling_rates(found.rates)
    rates = Table(
        head=("fault", "configuration", "before", "after", "after - before", "interval", "outcome"),
        rows=[
            (
                row.kind, row.config, str(row.before), str(row.after), format_points(row.difference),
                f"{format_points(row.low)} to {format_points(row.high)}", row.outcome,
            )
            for row in found.rates
        ],
        numeric=(2, 3, 4, 5),
    )  # fmt: skip
    costs = Table(
        head=("configuration", "before", "after", "ratio of speeds", "interval", "outcome", "entries per step before", "after"),
        rows=[
            (
                row.config, format_seconds(row.before_s), format_seconds(row.after_s), f"{row.ratio:.3f}",
                f"{row.interval.low:.3f} to {row.interval.high:.3f}", row.outcome, format_count(round(row.before_verified)),
                format_count(round(row.after_verified)),
            )
            for row in found.costs
        ],
        numeric=(1, 2, 3, 4, 6, 7),
    )  # fmt: skip
    pictures = []
    if shown:
        telling = max(shown, key=lambda row: abs(row.difference))
        alt = (
            f"Differences of {len(shown)} detection rates, the largest {format_points(telling.difference)} ({telling.name})."
            if telling.difference
            else f"Detection rates that differ: 0 of {len(shown)}."
        )
        pictures.append(Picture(draw=partial(compare_charts.rate_differences, shown), alt=alt))
    sections = [
        Section(
            heading=f"Detection rates{of}", sentence=f"{found.sentence} {campaign_level_sentence()}", pictures=pictures, tables=(rates,)
        )
    ]
    if found.costs:
        words = "; ".join(f"{row.config}: {row.ratio:.2f}" for row in found.costs)
        picture = Picture(draw=lambda theme: compare_charts.cost_ratios(found.costs, theme, limit), alt=f"Ratios of speeds: {words}.")
        sections.append(Section(heading=f"Costs{of}", pictures=(picture,), tables=(costs,)))
    return sections
