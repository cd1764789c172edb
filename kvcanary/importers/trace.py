"""Request traces: Mooncake JSONL, Azure CSV and BurstGPT CSV, read line by line.

A trace may be larger than memory, so rows come out one at a time and a bad row is noted with its line number and left out. Only a first
line that fits no format stops the reading.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any

from kvcanary.errors import ImportTextError

MOONCAKE_BLOCK_TOKENS = 512
MAX_NOTED_PROBLEMS = 100
MAX_LINE_CHARS = 4_000_000
MAX_TOKENS = 10_000_000
# Times are kept in the finest unit a format writes: a float of seconds since 1970 has no seventh digit.
_TICKS_PER_S = 10_000_000

# Azure writes seven digits after the second, one more than datetime reads, and newer files a zone.
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_COUNT = re.compile(r"\d+(?:\.0*)?")


class TraceKind(StrEnum):
    """Published trace formats."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. arrival_s counts from the first request of the trace.

    hash_ids: one id per 512 tokens of the prompt, equal ids for equal blocks behind equal prefixes; None where the format has none.
    """

    line: int
    arrival_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """A row that was left out: line counts from 1, and message says what is wrong with which value."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class TraceReader:
    """Iterate once over the requests of a trace; kind, rows, bad_rows and problems tell what was read so far.

    problems holds the first 100 bad rows, bad_rows counts all of them. ImportTextError when the first line fits no format.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.rows, self.bad_rows = 0, 0
        self.problems: list[TraceProblem] = []
        self._lines = enumerate(lines, start=1)
        self._start: int | None = None
        self._width = 0
        self._places: tuple[int, ...] = ()
        self.kind, self._first = self._detect()

    def __iter__(self) -> Iterator[TraceRow]:
        first, self._first = self._first, None
        for line, text in chain([first] if first else [], self._lines):
            if text.strip():
                yield from self._row(line, text)

    def _detect(self) -> tuple[TraceKind, tuple[int, str] | None]:
        for line, text in self._lines:
            stripped = text.lstrip("\ufeff").strip()
            if not stripped:
                continue
            if stripped.startswith("{"):
                return TraceKind.MOONCAKE, (line, stripped)
            header = [name.strip() for name in _header(stripped)]
            for kind, names in _COLUMNS.items():
                # A name that stands twice does not say which column is meant.
                if all(header.count(name) == 1 for name in names):
                    self._width, self._places = len(header), tuple(map(header.index, names))
                    return kind, None
            raise ImportTextError(
                f"line {line}: no known trace, got {stripped[:80]!r}; expected a JSON object (Mooncake), or a header with "
                + " or ".join(f"{', '.join(names)} ({kind.value})" for kind, names in _COLUMNS.items())
            )
        raise ImportTextError("the trace is empty; expected Mooncake JSON lines, or an Azure or BurstGPT CSV with its header")

    def _row(self, line: int, text: str) -> Iterator[TraceRow]:
        try:
            if len(text) > MAX_LINE_CHARS:
                raise _BadRowError(f"{len(text)} characters, at most {MAX_LINE_CHARS} are read")
            ticks, input_len, output_len, hash_ids = self._values(text)
        except _BadRowError as error:
            self.bad_rows += 1
            if len(self.problems) < MAX_NOTED_PROBLEMS:
                self.problems.append(TraceProblem(line, str(error)))
            return
        if self._start is None:
            self._start = ticks
        self.rows += 1
        yield TraceRow(line, (ticks - self._start) / _TICKS_PER_S, input_len, output_len, hash_ids)

    def _values(self, text: str) -> tuple[int, int, int, tuple[int, ...] | None]:
        if self.kind is TraceKind.MOONCAKE:
            return _mooncake(text)
        cells = _cells(text.strip())
        if len(cells) != self._width:
            raise _BadRowError(f"{len(cells)} columns where the header has {self._width}")
        time, prompt, output = ((name, cells[place].strip()) for name, place in zip(_COLUMNS[self.kind], self._places, strict=True))
        ticks = _azure_time(*time) if self.kind is TraceKind.AZURE else _seconds(*time, 1.0)
        return ticks, _tokens(*prompt), _tokens(*output), None


class _BadRowError(ValueError):
    """A row that cannot be read; never leaves this module."""


_COLUMNS = {
    TraceKind.AZURE: ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    TraceKind.BURSTGPT: ("Timestamp", "Request tokens", "Response tokens"),
}


def _header(text: str) -> list[str]:
    """The names of a first line, none where it is no CSV."""
    try:
        return _cells(text) if len(text) <= MAX_LINE_CHARS else []
    except _BadRowError:
        return []


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise _BadRowError(f"no CSV: {error}") from None


def _mooncake(text: str) -> tuple[int, int, int, tuple[int, ...]]:
    try:
        row: Any = json.loads(text)
    # A number of thousands of digits is a ValueError too, and brackets without end exhaust the stack.
    except (ValueError, RecursionError) as error:
        raise _BadRowError(f"no JSON: {error}") from None
    if not isinstance(row, dict):
        raise _BadRowError(f"must be a JSON object, got {type(row).__name__}")
    missing = [name for name in ("timestamp", "input_length", "output_length", "hash_ids") if name not in row]
    if missing:
        raise _BadRowError(f"{', '.join(missing)} missing")
    ticks = _seconds("timestamp", str(row["timestamp"]), 1e-3)
    input_len, output_len = (_tokens(name, str(row[name])) for name in ("input_length", "output_length"))
    ids = row["hash_ids"]
    strange = [ids] if not isinstance(ids, list) else [block for block in ids if type(block) is not int or not 0 <= block < 2**63]
    if strange:
        raise _BadRowError(f"hash_ids must be a list of whole numbers from 0 to 2^63 - 1, got {str(strange[0])[:40]!r}")
    blocks = -(-input_len // MOONCAKE_BLOCK_TOKENS)
    if len(ids) != blocks:
        raise _BadRowError(f"{len(ids)} hash_ids for input_length={input_len}, which has {blocks} blocks of {MOONCAKE_BLOCK_TOKENS} tokens")
    return ticks, input_len, output_len, tuple(ids)


def _azure_time(name: str, text: str) -> int:
    match = _AZURE_TIME.fullmatch(text)
    if not match:
        raise _BadRowError(f"{name} must be a date and time, got {text[:40]!r}")
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or "+00:00"))
    except ValueError:
        raise _BadRowError(f"{name} is no date and time that exists, got {text[:40]!r}") from None
    return int(whole.timestamp()) * _TICKS_PER_S + round(float(match[2] or 0) * _TICKS_PER_S)


def _seconds(name: str, text: str, unit_s: float) -> int:
    try:
        value = float(text)
    except ValueError:
        raise _BadRowError(f"{name} must be a number, got {text[:40]!r}") from None
    if not abs(value) < 2**53:
        raise _BadRowError(f"{name} must be between -2^53 and 2^53, got {text[:40]!r}")
    return round(value * unit_s * _TICKS_PER_S)


def _tokens(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text) or len(text) > 20:
        raise _BadRowError(f"{name} must be a whole number of tokens, got {text[:40]!r}")
    value = int(text.partition(".")[0])
    if not 1 <= value <= MAX_TOKENS:
        raise _BadRowError(f"{name} must be from 1 to {MAX_TOKENS}, got {value}")
    return value
