"""Exported runs, read back and taken in: the reader of every version of the document that `Store.document` has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvcanary.errors import ConfigError, StoreError
from kvcanary.lab.cards import check_cards
from kvcanary.lab.points import Point, Timing
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunRecord, check_schema
from kvcanary.store.rows import LABEL_LIMIT, NOTE_LIMIT
from kvcanary.typed import typed
from kvcanary.units import INT64_MAX

# The end of the year 9999, after which no calendar goes.
_LAST_S = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What a document holds beside the record; version 1 had points and cards only."""

    points: tuple[Point, ...] = ()
    cards: list[Any] = field(default_factory=list)
    note: str = ""
    labels: tuple[str, ...] = ()
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """A run without its arrays. result is None for a run that is no plan or inspection."""

    record: RunRecord
    points: tuple[Point, ...]
    cards: tuple[dict[str, Any], ...]
    note: str
    labels: tuple[str, ...]
    result: dict[str, Any] | None


def read_document(document: Mapping[str, Any]) -> RunDocument:
    """A run from its exported document, of this or an earlier version. StoreError names what is wrong with another one.

    It may come from anybody: each field has its type, amounts and times are possible ones, and the spec is one that a job could have had.
    """
    check_schema(document)
    names = {entry.name for entry in fields(_Beside)}
    try:
        record = typed(RunRecord, {key: value for key, value in document.items() if key not in {"schema", "version", *names}})
        beside = typed(_Beside, {key: value for key, value in document.items() if key in names})
        _check_spec(record)
        for time_s in (record.created_s, record.started_s, record.finished_s):
            _check_number("a time of the run", time_s or 0, _LAST_S)
        for point in beside.points:
            _check_point(point)
        # Before anything is stored: what the store refuses later would leave half a run.
        if len(beside.note) > NOTE_LIMIT or not all(0 < len(label.strip()) <= LABEL_LIMIT for label in beside.labels):
            raise ConfigError(f"a note may have {NOTE_LIMIT} characters, and each label 1 to {LABEL_LIMIT}")
        cards = tuple(check_cards(beside.cards))
    except ConfigError as error:
        raise StoreError(f"not a run: {error}") from error
    return RunDocument(
        record=record, points=beside.points, cards=cards, note=beside.note, labels=beside.labels, result=beside.result
    )  # fmt: skip


def _check_spec(record: RunRecord) -> None:
    """What a job was asked to do; a plan and an inspection have no job."""
    if record.kind == "benchmark":
        typed(BenchmarkSpec, record.spec)
    elif record.kind == "campaign":
        # Brings torch, for which everything else in the store need not wait.
        from kvcanary.lab.campaign_job import CampaignSpec

        typed(CampaignSpec, record.spec)


def _check_point(point: Point) -> None:
    """What was measured took some time, and what was counted fits 64 bits."""
    for entry in fields(Point):
        value = getattr(point, entry.name)
        if isinstance(value, Timing):
            for time_s in (value.p20_s, value.p50_s, value.p80_s, *value.samples_s):
                _check_number(f"a time of {entry.name}", time_s, _LAST_S, above=True)
            for count in (value.repeats, value.items, value.bytes_moved):
                _check_number(f"a count of {entry.name}", count, INT64_MAX)
        elif isinstance(value, int | float):
            _check_number(entry.name, value, INT64_MAX)


def _check_number(name: str, value: float, largest: int, *, above: bool = False) -> None:
    if not 0 <= value <= largest or (above and value == 0):
        raise ConfigError(f"{name} must be {'above' if above else 'at least'} 0 and at most {largest}, got {value:.6g}")


def parse_document(text: str) -> RunDocument:
    """The same from text. StoreError for text that is no JSON object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not a run: {error}") from error
    if not isinstance(document, dict):
        raise StoreError(f"not a run: a document is an object, got {type(document).__name__}")
    return read_document(document)


def write_run(folder: RunFolder, document: RunDocument) -> None:
    """Make the folder of a run that does not exist yet. StoreError where it cannot be stored."""
    try:
        folder.path.mkdir(parents=True)
        for point in document.points:
            folder.append_point(point)
        if document.cards:
            folder.write_cards([*document.cards])
        if document.result is not None:
            folder.write_result(document.result)
        # Last: a folder with a record is a run.
        folder.write_record(document.record)
    except OSError as error:
        raise StoreError(f"run {folder.path.name} cannot be stored under {folder.path.parent}: {error.strerror}") from error
