"""A run for other programs: its document as JSON, its table as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvcanary.errors import StoreError
from kvcanary.escape import csv_text
from kvcanary.lab.campaign_job import read_runs
from kvcanary.lab.tables import points_table
from kvcanary.store.database import Store
from kvcanary.store.runs import document_json

CAMPAIGN_COLUMNS = (
    "kind", "variant", "config", "seed", "changed", "steps", "latency_steps", "corrupt_tokens", "verified", "canary_s",
)  # fmt: skip


def export_json(store: Store, run_id: str) -> str:
    """The whole run but its arrays."""
    return document_json(store.document(run_id)) + "\n"


def export_csv(store: Store, run_id: str) -> str:
    """The table of `table` with a header; text that a spreadsheet would calculate gets a leading quote."""
    found = table(store, run_id)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.column_names)
    for row in found.to_pylist():
        writer.writerow([csv_text(value) if isinstance(value, str) else value for value in row.values()])
    return text.getvalue()


def export_parquet(store: Store, run_id: str) -> bytes:
    """The table of `table`."""
    buffer = io.BytesIO()
    pq.write_table(table(store, run_id), buffer, compression="zstd")
    return buffer.getvalue()


def table(store: Store, run_id: str) -> Any:
    """A benchmark's points, one row per point and operation; a campaign's runs, one row each. StoreError for a run that has no table."""
    record = store.record(run_id)
    if record.kind == "benchmark":
        return points_table(store.points(run_id))
    if record.kind == "campaign":
        return _campaign_table(store, run_id)
    raise StoreError(f"run {run_id} is a {record.kind} and has no table of measurements; export it as json or html")


def _campaign_table(store: Store, run_id: str) -> Any:
    rows: list[Sequence[Any]] = [
        (*run.key, run.changed, run.steps, run.latency_steps, run.corrupt_tokens, run.verified, run.canary_s)
        for run in read_runs(store.folder(run_id).path)
    ]
    types = [pa.string()] * 3 + [pa.int64()] * 6 + [pa.float64()]
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return pa.table({name: pa.array(list(column), type=kind) for name, column, kind in zip(CAMPAIGN_COLUMNS, columns, types, strict=True)})
