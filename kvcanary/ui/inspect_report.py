"""The self-contained report of an inspection that was just made: the sections that a stored one has, with every row in its figures."""

from __future__ import annotations

from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.inspection import report_data
from kvcanary.charts.inspection_sections import inspection_sections
from kvcanary.charts.report import Section, report_html
from kvcanary.charts.sections import VERDICT_KINDS
from kvcanary.lab.records import Verdict


def html(inspected: Inspected, label: str) -> str:
    """The whole report; it needs no network."""
    diagnosis = inspected.diagnosis
    title = f"KV canary inspection: {label}"
    verdict = f"{diagnosis.verdict.capitalize()}. {diagnosis.sentence}"
    return report_html(title, sections(inspected), verdict=verdict, kind=VERDICT_KINDS[Verdict(diagnosis.verdict)])


def sections(inspected: Inspected) -> list[Section]:
    """What the report shows below the verdict."""
    return inspection_sections(report_data(inspected.log, inspected.diagnosis), inspected)
