"""The violations of a stored inspection, read back as the rows that figures are drawn from.

The document holds the first violations only, may be of another version, or come from elsewhere: a record without a launch tag is left
out, and a number that no log could print counts as not printed.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from kvcanary.analysis.canary_lines import NUMBER_KEYS
from kvcanary.analysis.crossfilter import Crossfilter
from kvcanary.analysis.inspected import ReportedRows, stated_page_size
from kvcanary.analysis.violations import NO_RANK, Record, Stream, ViolationTable
from kvcanary.escape import visible
from kvcanary.typed import Loose


def reported_rows(document: Loose) -> ReportedRows:
    """Violations, pools and incidents of a document as `analysis.inspection.report_data` writes it."""
    arguments = [event.part("values") for event in document.parts("events") if event.text("kind") == "server_args"]
    page_size = stated_page_size([values.count("page_size") for values in arguments])
    findings = [
        (finding.text("group"), slot, finding.count("echo_of"))
        for incident in document.parts("incidents")
        # A cause before its echo.
        for finding in (*incident.parts("causes"), *incident.parts("echoes"))
        if (slot := finding.count("slot")) is not None
    ]
    return ReportedRows(
        Crossfilter(read_violations(document).frame(), page_size=page_size),
        pool_slots=max((rank.count("pool_slots") or 0 for rank in document.parts("ranks")), default=0),
        page_size=page_size,
        findings=findings,
        files=document.texts("files"),
    )


def read_violations(document: Loose) -> ViolationTable:
    """The records of a document, without hashes, which no figure needs."""
    table = ViolationTable()
    for found in document.parts("violations"):
        if not (tag := _name(found.text("launch_tag"))):
            continue
        numbers = [found.integer(name) for name in NUMBER_KEYS]
        # As in a line that was cut: nothing is known behind the first number that is missing.
        known = numbers.index(None) if None in numbers else len(numbers)
        row = table.append(
            Record(
                launch_tag=tag,
                fail_reason=_name("+".join(found.texts("reasons"))) or "none",
                numbers=tuple(n for n in numbers[:known] if n is not None),
            ),
            file=_name(found.text("file")),
            line=found.count("line") or 0,
            stream=Stream(_name(found.text("server")), _name(found.text("source")), _name(found.text("rank")) or NO_RANK),
            time=_seconds(found.text("time")),
        )
        if (step := found.count("step")) is not None:
            table.set_footer(row, total=found.count("total") or 0, ring_overflow=found.flag("ring_overflow"), step=step)
    return table


def _name(text: str) -> str:
    # Half of a surrogate pair, which JSON may hold, is in no column of text.
    return visible(text, keep="")


def _seconds(text: str) -> float:
    """The server's own clock as if it were UTC; NaN for what is no time."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return math.nan
