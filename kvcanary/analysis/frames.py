"""Measured points as tidy frames."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvcanary.lab.records import Point
from kvcanary.lab.tables import POINT_COLUMNS, point_rows


def points_frame(points: Sequence[Point]) -> pd.DataFrame:
    """One row per point and operation, columns as in lab.tables.POINT_COLUMNS; empty with the same columns when nothing was measured."""
    return pd.DataFrame(point_rows(list(points)), columns=list(POINT_COLUMNS))


def variants(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The (hash_mode, layout) pairs that have decode points, in the order they were measured."""
    decode = frame[frame["workload"] == "decode"]
    return list(dict.fromkeys(zip(decode["hash_mode"], decode["layout"], strict=True)))


def decode_variant(frame: pd.DataFrame, hash_mode: str, layout: str) -> pd.DataFrame:
    """Decode points of one variant, by batch."""
    chosen = frame[(frame["workload"] == "decode") & (frame["hash_mode"] == hash_mode) & (frame["layout"] == layout)]
    return chosen.sort_values("batch")
