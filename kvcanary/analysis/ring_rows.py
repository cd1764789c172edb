"""Violation rows of a ring or a snapshot as a CanaryLog, so that one diagnosis reads logs and snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary import layout
from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.violations import NO_RANK, Record, Stream
from kvcanary.layout import LaunchTag


def add_ring_rows(
    builder: LogBuilder, rows: np.ndarray[Any, Any], *, name: str, source: str, rank: str = "", total: int | None = None, checked: int = 0
) -> None:
    """Add int64 [n, 8] rows (layout.RING_FIELDS) as violations of one rank.

    total: violations counted, more than the rows when a ring was full. checked: entries that were verified to find them, 0 when unknown.
    """
    state = builder.state(Stream(name, source, rank or NO_RANK))
    state.canary_lines += 1
    builder.canary_lines += 1
    for number, row in enumerate(rows.tolist(), start=1):
        kind, slot, position, token, expected_token, stored, aux, bits = row
        tag = LaunchTag(kind).name if kind in LaunchTag.__members__.values() else f"unknown({kind})"
        record = Record(
            launch_tag=tag,
            fail_reason="+".join(layout.reason_labels(bits)) or "none",
            numbers=(slot, position, token, expected_token, layout.to_unsigned(stored), layout.to_unsigned(aux)),
        )
        state.on_record(truncated=False)
        builder.violations.append(record, file=name, line=number, stream=state.stream)
    state.on_stats(0, checked, 0, len(rows) if total is None else total, None)
    # Rows of a ring come without the step; a stats line would give one.
    state.now.stats_step = state.now.last_step = None
