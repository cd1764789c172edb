"""Finished and unfinished runs on disk: list, open, delete, export."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary.errors import StoreError
from kvcanary.lab.jobs import RUNS_FOLDER
from kvcanary.lab.records import Point, RunFolder, RunRecord
from kvcanary.lab.tables import POINT_COLUMNS as POINT_COLUMNS
from kvcanary.lab.tables import RECORD_COLUMNS, read_slots
from kvcanary.lab.tables import point_rows as point_rows


@dataclass(frozen=True, slots=True, eq=False)
class SlotArrays:
    """The map of a run: status and flags uint8 [num_slots], chain_index int64 [num_slots] (-1: no token), tokens per chain, records.

    fields is int64 [num_slots, 4] or None where the pool was too large to keep its records.
    """

    status: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    chain_index: npt.NDArray[np.int64]
    length: int
    fields: npt.NDArray[np.int64] | None


def read_slot_arrays(folder: RunFolder) -> SlotArrays | None:
    """The map in a run's folder, None where the run did not get that far."""
    if not folder.slots_file.is_file():
        return None
    columns, length = read_slots(folder.slots_file, ("status", "flags", "chain_index"), RECORD_COLUMNS)
    kept = all(name in columns for name in RECORD_COLUMNS)
    fields = np.stack([columns[name] for name in RECORD_COLUMNS], axis=1) if kept else None
    return SlotArrays(columns["status"], columns["flags"], columns["chain_index"], length, fields)


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs under one data folder."""

    root: Path

    def folder(self, run_id: str) -> RunFolder:
        """The folder of a run; StoreError when there is none of that id."""
        path = self.root / RUNS_FOLDER / run_id
        if "/" in run_id or run_id.startswith(".") or not (path / "run.json").is_file():
            raise StoreError(f"no run {run_id[:60]!r} under {self.root / RUNS_FOLDER}")
        return RunFolder(path)

    def all(self) -> list[RunRecord]:
        """Records, newest first; a damaged folder is left out here and named by `damaged`."""
        return self._scan()[0]

    def damaged(self) -> list[str]:
        """One sentence per folder that cannot be read."""
        return self._scan()[1]

    def _scan(self) -> tuple[list[RunRecord], list[str]]:
        records, problems = [], []
        base = self.root / RUNS_FOLDER
        for path in sorted(base.iterdir(), reverse=True) if base.is_dir() else []:
            if not path.name.startswith(".") and (path / "run.json").is_file():
                try:
                    records.append(RunFolder(path).read_record())
                except StoreError as error:
                    problems.append(str(error))
        return sorted(records, key=lambda record: record.created_s, reverse=True), problems

    def record(self, run_id: str) -> RunRecord:
        """One record."""
        return self.folder(run_id).read_record()

    def points(self, run_id: str) -> list[Point]:
        """Its measured points."""
        return self.folder(run_id).read_points()

    def slots(self, run_id: str) -> SlotArrays | None:
        """Its map, None where the run did not get that far."""
        path = self.folder(run_id).slots_file
        if not path.is_file():
            return None
        columns, length = read_slots(path, ("status", "flags", "chain_index"), RECORD_COLUMNS)
        kept = all(name in columns for name in RECORD_COLUMNS)
        fields = np.stack([columns[name] for name in RECORD_COLUMNS], axis=1) if kept else None
        return SlotArrays(columns["status"], columns["flags"], columns["chain_index"], length, fields)

    def slot_status(self, run_id: str) -> npt.NDArray[np.uint8] | None:
        """The status of every slot alone, uint8 [num_slots], in a fraction of the time; None where the run did not get that far."""
        path = self.folder(run_id).slots_file
        return read_slots(path, ("status",))[0]["status"] if path.is_file() else None

    def cards(self, run_id: str) -> list[dict[str, Any]]:
        """Cards of its bad slots."""
        return self.folder(run_id).read_cards()

    def delete(self, run_id: str) -> None:
        """Remove a run that is over, or that cannot be read; StoreError while it is active."""
        folder = self.folder(run_id)
        try:
            record = folder.read_record()
        except StoreError:
            record = None
        if record is not None and record.state.active:
            raise StoreError(f"run {run_id} is {record.state}; stop it before it is deleted")
        # Renamed first, so that no reader meets half a run.
        doomed = folder.path.with_name(f".deleted-{run_id}")
        try:
            os.replace(folder.path, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be deleted: {error}") from error

    def document(self, run_id: str) -> dict[str, Any]:
        """The whole run but its arrays, as one JSON-ready document."""
        return {
            **self.record(run_id).to_document(),
            "points": [asdict(point) for point in self.points(run_id)],
            "cards": self.cards(run_id),
        }


def document_json(document: dict[str, Any]) -> str:
    """Text of a document, for a file or standard output."""
    return json.dumps(document, indent=2, allow_nan=False)


def points_csv(points: list[Point]) -> str:
    """The rows of `point_rows` as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, POINT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(point_rows(points))
    return text.getvalue()
