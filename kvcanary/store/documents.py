"""Exported runs, read back and taken in: the reader of every version of the document that `Store.document` has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvcanary.errors import StoreError
from kvcanary.lab.cards import check_cards
from kvcanary.lab.points import Point
from kvcanary.lab.records import RunFolder, RunRecord

# What a document holds beside the record; version 1 had points and cards only.
_BESIDE = ("points", "cards", "note", "labels", "result")


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
    """A run from its exported document, of this or an earlier version. StoreError names what is wrong with another one."""
    known = {field.name for field in fields(RunRecord)} | {"schema", "version", *_BESIDE}
    if unknown := sorted(set(document) - known):
        # Said by the version where that explains it.
        RunRecord.from_document({key: value for key, value in document.items() if key in known - {*_BESIDE}})
        raise StoreError(f"not a run: {unknown[0][:60]!r} is no field of it")
    result = document.get("result")
    if not isinstance(result, dict | None):
        raise StoreError(f"not a run: result must be an object or null, got {type(result).__name__}")
    try:
        record = RunRecord.from_document({key: value for key, value in document.items() if key not in _BESIDE})
        return RunDocument(
            record=record,
            points=tuple(Point.from_dict(point) for point in document.get("points", ())),
            cards=tuple(check_cards(document.get("cards", []))),
            note=str(document.get("note", "")),
            labels=tuple(str(label) for label in document.get("labels", ())),
            result=result,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(f"not a run: {error}") from error


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
