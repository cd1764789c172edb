"""Violation records read from logs: one frozen record each, kept as columns so that a million of them stay small."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvcanary import layout
from kvcanary.analysis.columns import IntColumn
from kvcanary.layout import FailReason

NO_RANK = "(none)"
_Key = TypeVar("_Key", str, "Stream")

# A record is cut from the right, so the count of fields read says which are known; order of the printed line.
RECORD_FIELDS = (
    "launch_tag",
    "fail_reason",
    "slot_idx",
    "position",
    "stored_token",
    "expected_token",
    "stored_chain_hash",
    "expected_aux",
)
_INT_FIELDS = RECORD_FIELDS[2:6]
_HASH_FIELDS = RECORD_FIELDS[6:]
_UNKNOWN = -1

# Builds before mid 2026 printed the kernel's names; both spellings mean the same bit.
REASON_BITS = {label: 1 << index for index, label in enumerate(layout.FAIL_REASON_LABELS)} | {
    "chain_hash": FailReason.VERIFY_CHAIN_HASH.value,
    "position": FailReason.VERIFY_POSITION.value,
    "real_kv_hash": FailReason.VERIFY_REAL_KV_HASH.value,
    "token": FailReason.VERIFY_TOKEN.value,
    "none": 0,
}


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """Who printed a line: the log (rotated files share one name), the service or pod inside it, and the rank as printed or '(none)'."""

    server: str
    source: str
    rank: str

    @property
    def label(self) -> str:
        """Short name for people: the rank, with the service in front where there is one."""
        return f"{self.source} {self.rank}" if self.source else self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One record of the canary, as printed.

    reasons: current labels in SGLang's order; reasons_raw: as printed. Fields behind the cut of a truncated record are None. Hashes
    are unsigned 64-bit; in a write row expected_aux is a position and expected_position holds it signed. step, total and ring_overflow
    come from the record's own footer and are None where that is missing or cannot be told from another record's. running_reqs is the
    batch size of the nearest batch line before it. time is local to the server, without zone.
    """

    file: str
    line: int
    stream: Stream
    time: datetime | None
    launch_tag: str
    reasons: tuple[str, ...]
    reasons_raw: tuple[str, ...]
    slot_idx: int | None
    position: int | None
    stored_token: int | None
    expected_token: int | None
    stored_chain_hash: int | None
    expected_aux: int | None
    step: int | None
    total: int | None
    ring_overflow: bool | None
    running_reqs: int | None
    truncated: bool

    @property
    def bits(self) -> int:
        """Reason bits (layout.FailReason)."""
        return _bits(self.reasons)

    @property
    def expected_position(self) -> int | None:
        """Position that a write row expected, signed; None for verify rows."""
        if self.expected_aux is None or not self.bits & layout.WRITE_REASONS:
            return None
        return layout.to_signed(self.expected_aux)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The structured line alone: values in the order of RECORD_FIELDS, cut short where the line was cut."""

    launch_tag: str
    fail_reason: str
    numbers: tuple[int, ...]


class ViolationTable:
    """Append-only columns of violations; index or iterate for Violation objects, frame() for pandas. About 50 bytes a row."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._tags: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._streams: dict[Stream, int] = {}
        self._codes = {name: IntColumn() for name in ("file", "tag", "reason", "stream", "running_reqs")}
        self._ints = {name: IntColumn() for name in (*_INT_FIELDS, "line", "step", "total")}
        self._hashes = {name: array("Q") for name in _HASH_FIELDS}
        self._numbers: tuple[IntColumn | array[int], ...] = (
            *(self._ints[name] for name in _INT_FIELDS),
            *(self._hashes[name] for name in _HASH_FIELDS),
        )
        self._times = array("d")
        self._overflow = array("b")
        self._fields_read = array("b")
        self._groups: tuple[int, list[tuple[Stream, str, str, int, int]]] = (0, [])

    def __len__(self) -> int:
        return len(self._times)

    def append(
        self, record: Record, *, file: str, line: int, stream: Stream, time: float = math.nan, running_reqs: int | None = None
    ) -> int:
        """Add a record and return its row; time in seconds as if the server's clock were UTC, NaN when unknown."""
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        codes, ints, numbers = self._codes, self._ints, record.numbers
        codes["file"].append(len(self._files) - 1)
        codes["tag"].append(self._tags.setdefault(record.launch_tag, len(self._tags)))
        codes["reason"].append(self._reasons.setdefault(record.fail_reason, len(self._reasons)))
        codes["stream"].append(self._streams.setdefault(stream, len(self._streams)))
        codes["running_reqs"].append(_UNKNOWN if running_reqs is None else running_reqs)
        for column, value in zip(self._numbers, numbers if len(numbers) == 6 else numbers + (0,) * (6 - len(numbers)), strict=True):
            column.append(value)
        ints["line"].append(line)
        ints["step"].append(_UNKNOWN)
        ints["total"].append(_UNKNOWN)
        self._times.append(time)
        self._overflow.append(_UNKNOWN)
        self._fields_read.append(2 + len(numbers))
        return len(self._times) - 1

    def extend(
        self,
        *,
        file: str,
        lines: npt.NDArray[np.int64],
        streams: tuple[npt.NDArray[np.int64], Sequence[Stream]],
        tags: tuple[npt.NDArray[np.int64], Sequence[str]],
        reasons: tuple[npt.NDArray[np.int64], Sequence[str]],
        ints: Sequence[npt.NDArray[np.int64]],
        hashes: Sequence[npt.NDArray[np.uint64]],
        times: npt.NDArray[np.float64],
        totals: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64],
        overflow: npt.NDArray[np.int64],
        running_reqs: npt.NDArray[np.int64],
    ) -> None:
        """Add whole records, all arrays [n]: as append and set_footer would one by one; -1 where a footer or a batch size is unknown.

        streams, tags, reasons: codes and what they stand for; every text that is given has to be used. ints in the order of slot_idx,
        position, stored_token, expected_token; hashes in the order of stored_chain_hash, expected_aux.
        """
        count = len(lines)
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        codes = {
            "file": np.full(count, len(self._files) - 1),
            "tag": _recoded(*tags, self._tags),
            "reason": _recoded(*reasons, self._reasons),
            "stream": _recoded(*streams, self._streams),
            "running_reqs": running_reqs,
        }
        for name, values in codes.items():
            self._codes[name].extend(values)
        for name, values in zip((*_INT_FIELDS, "line", "step", "total"), (*ints, lines, steps, totals), strict=True):
            self._ints[name].extend(values)
        for name, hashed in zip(_HASH_FIELDS, hashes, strict=True):
            self._hashes[name].frombytes(hashed.tobytes())
        self._times.frombytes(times.astype(np.float64).tobytes())
        self._overflow.frombytes(overflow.astype(np.int8).tobytes())
        self._fields_read.frombytes(np.full(count, len(RECORD_FIELDS), dtype=np.int8).tobytes())

    def set_footer(self, row: int, *, total: int, ring_overflow: bool | None, step: int | None) -> None:
        """Attach the record's own footer."""
        self._ints["total"][row] = total
        if ring_overflow is not None:
            self._overflow[row] = int(ring_overflow)
        if step is not None:
            self._ints["step"][row] = step

    def __getitem__(self, row: int) -> Violation:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return self._violation(row % len(self), list(self._streams), self._texts("tag"), self._texts("reason"))

    def first(self, count: int) -> list[Violation]:
        """The first rows, at most so many."""
        return list(itertools.islice(self, count))

    def _violation(self, row: int, streams: list[Stream], tags: list[str], reasons: list[str]) -> Violation:
        known = self._fields_read[row] - 2
        overflow = self._overflow[row]
        raw = reasons[self._codes["reason"][row]]
        slot, position, token, expected, stored, aux = (
            column[row] if number < known else None for number, column in enumerate(self._numbers)
        )
        return Violation(
            file=self._files[self._codes["file"][row]],
            line=self._ints["line"][row],
            stream=streams[self._codes["stream"][row]],
            time=to_datetime(self._times[row]),
            launch_tag=tags[self._codes["tag"][row]],
            reasons=normal_reasons(raw),
            reasons_raw=tuple(part for part in raw.split("+") if part != "none"),
            slot_idx=slot,
            position=position,
            stored_token=token,
            expected_token=expected,
            stored_chain_hash=stored,
            expected_aux=aux,
            step=_known(self._ints["step"][row]),
            total=_known(self._ints["total"][row]),
            ring_overflow=None if overflow == _UNKNOWN else bool(overflow),
            running_reqs=_known(self._codes["running_reqs"][row]),
            truncated=known < len(self._numbers),
        )

    def __iter__(self) -> Iterator[Violation]:
        streams, tags, reasons = list(self._streams), self._texts("tag"), self._texts("reason")
        return (self._violation(row, streams, tags, reasons) for row in range(len(self)))

    def _texts(self, name: str) -> list[str]:
        return list(self._tags if name == "tag" else self._reasons)

    def group_counts(self) -> list[tuple[Stream, str, str, int, int]]:
        """Stream, launch tag, '+'-joined current reasons, rows and distinct slots of each group; kept until a row is added."""
        if self._groups[0] != len(self):
            self._groups = (len(self), self._count_groups())
        return self._groups[1]

    def _count_groups(self) -> list[tuple[Stream, str, str, int, int]]:
        normal: dict[str, int] = {}
        reasons = _recoded(np.arange(len(self._reasons)), ["+".join(normal_reasons(text)) or "none" for text in self._reasons], normal)
        shape = (len(self._streams), len(self._tags), len(normal))
        # One array after the other, because of a million rows each weighs megabytes.
        joint = self._codes["stream"].array(np.int32 if math.prod(shape) < 1 << 31 else np.int64)
        for size, column in (
            (shape[1], self._codes["tag"].array(np.int32)),
            (shape[2], reasons.astype(np.int32)[self._codes["reason"].array(np.int32)]),
        ):
            joint *= size
            joint += column.astype(joint.dtype, copy=False)
        order = np.argsort(joint, kind="stable")
        joint = joint[order]
        starts = np.flatnonzero(np.append(True, joint[1:] != joint[:-1])) if len(joint) else np.zeros(0, dtype=np.int64)
        known = np.array(self._fields_read, dtype=np.int8) > RECORD_FIELDS.index("slot_idx")
        slots = self._ints["slot_idx"].array()
        streams, tags, labels = list(self._streams), list(self._tags), list(normal)
        found = []
        for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(joint)], strict=False):
            rows = order[first:stop]
            stream, tag, reason = np.unravel_index(int(joint[first]), shape)
            distinct = np.unique(slots[rows[known[rows]]])
            found.append((streams[int(stream)], tags[int(tag)], labels[int(reason)], len(rows), len(distinct)))
        return found

    def frame(self) -> pd.DataFrame:
        """One row per violation, in the order read.

        Columns: time (datetime64, NaT unknown); file, server, source, rank, launch_tag, place (HEAD/TAIL/SWEEP), half (K/V),
        group (FULL/SWA), reasons ('+'-joined current labels) as categories; bits uint8; slot_idx, position, stored_token,
        expected_token, expected_position, step, total, running_reqs as nullable Int64; stored_chain_hash, expected_aux as nullable
        UInt64; ring_overflow nullable boolean; truncated bool; line int64.
        """
        tags, reasons, streams = self._texts("tag"), self._texts("reason"), list(self._streams)
        codes = {name: column.array(np.int32) for name, column in self._codes.items()}
        known = np.array(self._fields_read, dtype=np.int8)
        parts = [tag.split("_") if tag in layout.LaunchTag.__members__ else ["", "", ""] for tag in tags]
        bits = np.array([sum({REASON_BITS.get(part, 0) for part in reason.split("+")}) for reason in reasons], dtype=np.uint8)
        columns: dict[str, Any] = {
            "time": _datetimes(self._times),
            "file": _category(codes["file"], self._files),
            "server": _category(codes["stream"], [stream.server for stream in streams]),
            "source": _category(codes["stream"], [stream.source for stream in streams]),
            "rank": _category(codes["stream"], [stream.rank for stream in streams]),
            "launch_tag": _category(codes["tag"], tags),
            "place": _category(codes["tag"], [part[0] for part in parts]),
            "half": _category(codes["tag"], [part[1] for part in parts]),
            "group": _category(codes["tag"], [part[2] for part in parts]),
            "reasons": _category(codes["reason"], ["+".join(normal_reasons(reason)) or "none" for reason in reasons]),
            "bits": bits[codes["reason"]] if len(reasons) else np.zeros(0, dtype=np.uint8),
        }
        for name in _INT_FIELDS:
            columns[name] = _masked(self._ints[name].array(), known <= RECORD_FIELDS.index(name))
        for name in _HASH_FIELDS:
            columns[name] = _masked(np.array(self._hashes[name], dtype=np.uint64), known <= RECORD_FIELDS.index(name))
        aux = np.array(self._hashes["expected_aux"], dtype=np.uint64).view(np.int64)
        is_write = (columns["bits"] & int(layout.WRITE_REASONS)) != 0
        columns["expected_position"] = _masked(aux, ~is_write | (known < len(RECORD_FIELDS)))
        for name in ("step", "total"):
            values = self._ints[name].array()
            columns[name] = _masked(values, values == _UNKNOWN)
        running = codes["running_reqs"].astype(np.int64)
        columns["running_reqs"] = _masked(running, running == _UNKNOWN)
        overflow = np.array(self._overflow, dtype=np.int8)
        columns["ring_overflow"] = pd.arrays.BooleanArray(overflow == 1, overflow == _UNKNOWN)
        columns["truncated"] = known < len(RECORD_FIELDS)
        columns["line"] = self._ints["line"].array()
        return pd.DataFrame(columns)


@lru_cache(maxsize=4096)
def normal_reasons(printed: str) -> tuple[str, ...]:
    """Current labels of a printed fail_reason, in SGLang's order; a label that no release had is kept as it is."""
    parts = printed.replace(",", "+").split("+")
    bits = sum({REASON_BITS.get(part, 0) for part in parts})
    return (*layout.reason_labels(bits), *(part for part in parts if part and part not in REASON_BITS))


@lru_cache(maxsize=4096)
def _bits(reasons: tuple[str, ...]) -> int:
    return sum({REASON_BITS.get(reason, 0) for reason in reasons})


@lru_cache(maxsize=256)
def to_datetime(seconds: float) -> datetime | None:
    """Server-local time without zone, None for a time that is not known."""
    return None if not math.isfinite(seconds) else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _recoded(codes: npt.NDArray[np.int64], names: Sequence[_Key], known: dict[_Key, int]) -> npt.NDArray[np.int64]:
    """Codes of a table that grows, for codes of a batch."""
    lookup = np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)
    result: npt.NDArray[np.int64] = lookup[codes]
    return result


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value


def _masked(values: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> Any:
    return pd.arrays.IntegerArray(values, mask)


def _category(codes: np.ndarray[Any, Any], labels: list[str]) -> Any:
    distinct = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    lookup = np.array([distinct[label] for label in labels], dtype=np.int32)
    dense: np.ndarray[tuple[Any, ...], np.dtype[np.int32]] = lookup[codes] if labels else codes
    return pd.Categorical.from_codes(dense, categories=pd.Index(list(distinct), dtype="str"))


def _datetimes(seconds: array[float]) -> np.ndarray[Any, Any]:
    values = np.array(seconds, dtype=np.float64)
    known = ~np.isnan(values)
    stamps = (np.where(known, values, 0) * 1e6).astype("datetime64[us]")
    stamps[~known] = np.datetime64("NaT")
    return stamps
