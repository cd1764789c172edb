"""What holds stamp and verify back: the time that each limit of the machine alone would take, beside the time that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from kvcanary.lab.bounds import STAMP_BYTES, VERIFY_BYTES
from kvcanary.lab.records import Point, Timing
from kvcanary.lab.tables import above_bound, share_text
from kvcanary.units import format_count, format_fraction, format_rate, format_seconds

Limit = Literal["memory", "compute", "chain latency", "launch"]
Op = Literal["stamp", "verify"]

LIMITS: tuple[Limit, ...] = ("memory", "compute", "chain latency", "launch")

# A chain hash is three rounds of the mixer, a word of real KV is one.
_WORDS_PER_HASH = 3
# From these shares of the measured time on, a limit is said to be touched, or to be most of it.
_TOUCHED, _MOSTLY = 0.9, 0.5
_OPS: tuple[tuple[Op, int], ...] = (("stamp", STAMP_BYTES), ("verify", VERIFY_BYTES))
COLUMNS = (
    "workload", "layout", "hash_mode", "batch", "op", "items", "p50_s", "items_per_s", "memory_s", "compute_s", "chain latency_s", "launch_s",
    "limit", "share", "copy_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One operation of one point: the limit that takes longest alone, and its share of the measured median (1.0: nothing is left)."""

    limit: Limit
    share: float
    alone_s: dict[Limit, float]


def held_by(point: Point, op: Op, limits: Mapping[str, float]) -> Held | None:
    """The limit that holds an operation; None where it, its bound or the machine's limits were not measured.

    memory: the point's own bound, which moves the same bytes in the same order. compute: hashes of all items out of registers. chain
    latency: the longest chain of a stamp, hash after hash. launch: the same operation with one entry.
    """
    timing: Timing | None = getattr(point, op)
    bound: Timing | None = getattr(point, f"{op}_bound")
    # A run of an earlier version has one launch limit for both operations.
    if timing is None or bound is None or f"{op}_launch_s" not in limits:
        return None
    words = (timing.bytes_moved / timing.items - dict(_OPS)[op]) / 8
    alone: dict[Limit, float] = {"memory": bound.p50_s, "launch": limits[f"{op}_launch_s"]}
    if "hashes_per_s" in limits:
        alone["compute"] = timing.items * (1 + words / _WORDS_PER_HASH) / limits["hashes_per_s"]
    if op == "stamp":
        alone["chain latency"] = timing.items / point.batch * limits["chain_step_s"]
    limit = max(alone, key=lambda name: alone[name])
    return Held(limit=limit, share=alone[limit] / timing.p50_s, alone_s=alone)


def roofline_frame(points: Iterable[Point], limits: Mapping[str, float]) -> pd.DataFrame:
    """One row per point and operation with the columns COLUMNS; a limit that does not apply is NaN."""
    rows, copied = [], limits.get("copy_bytes_per_s")
    for point in points:
        for op, _ in _OPS:
            held = held_by(point, op, limits)
            timing: Timing | None = getattr(point, op)
            if held is None or timing is None:
                continue
            rows.append(
                {
                    "workload": point.workload, "layout": point.layout, "hash_mode": point.hash_mode, "batch": point.batch, "op": op,
                    "items": timing.items, "p50_s": timing.p50_s, "items_per_s": timing.items_per_s, "limit": held.limit,
                    "share": held.share, "copy_share": timing.bytes_per_s / copied if copied else None,
                    **{f"{name}_s": held.alone_s.get(name) for name in LIMITS},
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def roofline_variants(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The (workload, hash_mode, layout) that have at least one row, those with most sizes first."""
    keys = list(zip(frame["workload"], frame["hash_mode"], frame["layout"], strict=True))
    sizes = {key: frame.loc[[other == key for other in keys], "items"].nunique() for key in dict.fromkeys(keys)}
    return sorted(sizes, key=lambda key: -sizes[key])


def roofline_variant(frame: pd.DataFrame, workload: str, hash_mode: str, layout: str) -> pd.DataFrame:
    """Rows of one variant, by operation and items."""
    chosen = frame[(frame["workload"] == workload) & (frame["hash_mode"] == hash_mode) & (frame["layout"] == layout)]
    return chosen.sort_values(["op", "items"])


def sentence(rows: pd.DataFrame, limits: Mapping[str, float]) -> str:
    """What holds each operation at its largest size, and which knob would help, from the rows of one variant."""
    if rows.empty:
        return "What limits stamp and verify was not measured in this run."
    parts = [_part(op, rows[rows["op"] == op]) for op, _ in _OPS]
    fastest = format_rate(1 / limits["chain_step_s"], "tokens") if limits.get("chain_step_s") else ""
    chain = f" One chain alone stamps at most {fastest}, however many cores there are." if fastest else ""
    return " ".join(part for part in parts if part) + chain


def _part(op: str, rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    last = rows.iloc[-1]
    limit: Limit = last["limit"]
    share, what = float(last["share"]), "tokens" if op == "stamp" else "slots"
    took = f"{op.capitalize()} of {format_count(int(last['items']))} {what} takes {format_seconds(float(last['p50_s']))}"
    if above_bound(share):
        return f"{took}, less than {limit} alone was measured to take, so what limits it is not known."
    if share >= _TOUCHED:
        held = f"which is the limit that {limit} sets"
    elif share >= _MOSTLY:
        held = f"{format_fraction(share)} of it {limit}"
    else:
        held = f"and no single limit explains it; {limit} alone would take {format_fraction(share)} of the time"
    return f"{took}, {held}. What would help: {knob(limit, last['hash_mode'], last['layout'])}."


def knob(limit: Limit, hash_mode: str, layout: str) -> str:
    """What would help against a limit, in the operator's terms."""
    if limit == "launch":
        return "launching less often for more tokens: larger decode batches, graph replay, a longer sweep interval, the V half off"
    if limit == "chain latency":
        return "more requests in a forward: one chain goes no faster on more cores, so smaller prefill chunks of more requests are quicker"
    if limit == "compute":
        fewer = {"all": "hashing partial rows instead of all; ", "partial": "hashing no rows; "}.get(hash_mode, "")
        return f"{fewer}more CPU threads, or a GPU"
    fewer = {"all": "partial rows instead of all", "partial": "no rows at all"}.get(hash_mode, "")
    side_by_side = "larger pages, so that the slots of a request lie side by side" if layout == "shuffled" else ""
    ways = [f"hashing {fewer}" if fewer else "", side_by_side]
    return (
        " or ".join(way for way in ways if way) or "verifying fewer slots per step: a longer sweep interval, fewer prefix tokens in flight"
    )


def growth(rows: pd.DataFrame, op: Op) -> float | None:
    """Largest over smallest median time per item among the sizes of one variant; None with fewer than two sizes."""
    mine = rows[rows["op"] == op]
    if len(mine) < 2:
        return None
    per_item: Sequence[float] = (mine["p50_s"] / mine["items"]).tolist()
    return max(per_item) / min(per_item)


def table_rows(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """The rows of one variant as text: op, items, measured, held by, share, bytes per second as a share of a plain copy, each limit alone."""
    return [
        (
            str(row["op"]),
            format_count(int(row["items"])),
            format_seconds(float(row["p50_s"])),
            str(row["limit"]),
            share_text(float(row["share"])),
            format_fraction(float(row["copy_share"])) if pd.notna(row["copy_share"]) else "not measured",
            *(format_seconds(float(row[f"{name}_s"])) if pd.notna(row[f"{name}_s"]) else "does not apply" for name in LIMITS),
        )
        for row in rows.to_dict("records")
    ]
