"""Snapshots verified offline and read as a log, so that one diagnosis and one page serve both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary import snapshot
from kvcanary.analysis.canary_log import CanaryLog, LogBuilder
from kvcanary.analysis.ring_rows import add_ring_rows
from kvcanary.errors import ImportTextError, KvCanaryError

RING_SOURCE = "ring"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoolStatus:
    """What offline verification says about each slot of one group: uint8 [num_slots] (layout.SlotStatus)."""

    name: str
    pool: str
    rank: str
    status: npt.NDArray[np.uint8]


def read_snapshots(files: Sequence[tuple[str, Path | bytes]]) -> tuple[CanaryLog, tuple[PoolStatus, ...]]:
    """Load, verify and list snapshots, given as name and path or content; a violation ring inside is listed beside what was found now.

    ImportTextError names a file that is none.
    """
    builder = LogBuilder()
    statuses: list[PoolStatus] = []
    for name, source in files:
        try:
            loaded = snapshot.load(source, name)
            checks = snapshot.verify(loaded)
        except ImportTextError:
            raise
        except KvCanaryError as error:
            # Verification speaks of tensors and of no file.
            raise ImportTextError(f"snapshot {name} cannot be verified: {error}") from error
        builder.files.append(name)
        builder.bytes_read += len(source) if isinstance(source, bytes) else source.stat().st_size
        rank = loaded.labels.get("rank", "")
        for check in checks:
            add_ring_rows(builder, _rows(check.rows), name=name, source=check.kind, rank=rank, checked=check.chained + check.bytes_only)
            statuses.append(PoolStatus(name=name, pool=check.kind, rank=rank, status=check.status.numpy()))
            if len(check.unlike):
                slots = ", ".join(str(slot) for slot in check.unlike[:8].tolist())
                builder.notes.append(f"HEAD and TAIL records of {len(check.unlike)} {check.kind} slots differ: {slots}")
        if loaded.ring_total:
            add_ring_rows(builder, _rows(loaded.ring_rows), name=name, source=RING_SOURCE, rank=rank, total=loaded.ring_total)
    return builder.build(), tuple(statuses)


def _rows(rows: Any) -> npt.NDArray[np.int64]:
    plain: npt.NDArray[np.int64] = rows.numpy()
    return plain
