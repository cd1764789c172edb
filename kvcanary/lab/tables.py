"""Points and the slot map of a run as Parquet, for this program's pages and for anybody's own tools."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kvcanary.errors import StoreError
from kvcanary.lab.records import Point
from kvcanary.layout import SLOT_FIELDS
from kvcanary.units import format_fraction, format_seconds

SLOTS_SCHEMA, SLOTS_VERSION = "kvcanary.slots", 1
POINT_COLUMNS = (
    "workload", "layout", "hash_mode", "batch", "prefix", "op", "items", "p20_s", "p50_s", "p80_s", "repeats", "items_per_s", "bytes_moved",
    "bytes_per_s", "bound_p50_s", "share_of_bound", "forward_s", "warm_up_s",
)  # fmt: skip
_TEXT_COLUMNS = ("workload", "layout", "hash_mode", "op")
_WHOLE_COLUMNS = ("batch", "prefix", "items", "repeats", "bytes_moved")
_ROW_GROUP = 1 << 20
# A rate this much above its bound is no noise: the bound was timed while something else slowed the machine down.
_NOISE = 0.1


def point_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row per point and operation, in the columns POINT_COLUMNS."""
    rows = []
    for point in points:
        for op, timing, bound in (("stamp", point.stamp, point.stamp_bound), ("verify", point.verify, point.verify_bound)):
            if timing is not None:
                rows.append(
                    {
                        "workload": point.workload, "layout": point.layout, "hash_mode": point.hash_mode, "batch": point.batch,
                        "prefix": point.prefix, "op": op, "items": timing.items, "p20_s": timing.p20_s, "p50_s": timing.p50_s,
                        "p80_s": timing.p80_s, "repeats": timing.repeats, "items_per_s": timing.items_per_s,
                        "bytes_moved": timing.bytes_moved, "bytes_per_s": timing.bytes_per_s,
                        "bound_p50_s": None if bound is None else bound.p50_s, "share_of_bound": point.share_of_bound(op),
                        "forward_s": point.forward_s, "warm_up_s": point.warm_up_s,
                    }
                )  # fmt: skip
    return rows


def forward_text(forward_s: float, step_time_s: float | None) -> str:
    """One forward's canary cost in words, with its share of a stated step of the model."""
    share = f" ({format_fraction(forward_s / step_time_s)} of a step)" if step_time_s else ""
    return f"{format_seconds(forward_s)}{share}"


def above_bound(share: float) -> bool:
    """Whether a rate is so far above its bound that the bound says nothing about it. share: of the bound, 1.0 is the limit."""
    return share > 1 + _NOISE


def share_text(share: float | None) -> str:
    """A rate as a share of its bound, for a cell or behind a colon; None and NaN were not measured."""
    if share is None or math.isnan(share):
        return "not measured"
    return "above it, so no limit" if above_bound(share) else format_fraction(share)


def points_table(points: Sequence[Point]) -> Any:
    """The rows of `point_rows` as an Arrow table, whose types do not depend on what was measured."""
    types = {name: pa.string() for name in _TEXT_COLUMNS} | {name: pa.int64() for name in _WHOLE_COLUMNS}
    schema = pa.schema([(name, types.get(name, pa.float64())) for name in POINT_COLUMNS])
    return pa.Table.from_pylist(point_rows(points), schema=schema)


def write_points(path: Path, points: Sequence[Point]) -> None:
    """The rows of `point_rows` as one Parquet file."""
    _write(path, points_table(points))


def write_slots(path: Path, columns: dict[str, npt.NDArray[Any]], *, length: int) -> None:
    """One row per slot: status and flags uint8, chain_index int64, and SLOT_FIELDS int64 where the records are kept.

    `length` is the number of tokens per chain. The two small columns lie apart from the rest, so a reader of them reads only them.
    """
    details = {"schema": SLOTS_SCHEMA, "version": str(SLOTS_VERSION), "length": str(length)}
    _write(
        path,
        pa.table(columns).replace_schema_metadata(details),
        row_group_size=_ROW_GROUP,
        write_statistics=False,
        use_dictionary=["status", "flags"],
        # Bytes of equal weight side by side is what makes indices, tokens and positions compress; a hash never does.
        use_byte_stream_split=[name for name in ("chain_index", "token", "position") if name in columns],
    )


def read_slots(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """The named columns, the optional ones where the file has them, and the number of tokens per chain.

    Raises StoreError for a damaged file or a newer version.
    """
    try:
        with pq.ParquetFile(path) as file:
            details = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
            if details.get("schema") != SLOTS_SCHEMA:
                raise StoreError(f"{path.name} is no slot map: schema is {details.get('schema')!r}, expected {SLOTS_SCHEMA!r}")
            if int(details["version"]) > SLOTS_VERSION:
                raise StoreError(f"{path.name} was written by a newer kvcanary (version {details['version']}); update kvcanary")
            wanted = [*names, *(name for name in optional if name in file.schema_arrow.names)]
            table = file.read(columns=wanted)
            return {name: table[name].to_numpy() for name in wanted}, int(details["length"])
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"slot map {path} cannot be read: {error}") from error


def count_slots(path: Path) -> int:
    """Slots of a map, from the file's end alone. StoreError for a damaged file."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"slot map {path} cannot be read: {error}") from error


def record_columns(fields: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """Records int64 [num_slots, 4] as columns."""
    return {name: np.ascontiguousarray(fields[:, index]) for index, name in enumerate(SLOT_FIELDS)}


def _write(path: Path, table: Any, **options: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, temporary, compression="zstd", **options)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
