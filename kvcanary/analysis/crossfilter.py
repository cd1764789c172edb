"""Violations as small integer columns that filter each other: each breakdown is counted under the choices made in all others.

A million rows weigh about 60 MB here and answer in milliseconds, so a page can ask again at each click.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvcanary.analysis.incidents import Incident
from kvcanary.units import format_count

Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Filters = Mapping[str, Sequence[str]]

FACETS = ("time", "pool", "rank", "tag", "reason", "position", "token", "page", "stride", "incident")
OTHER = "other"
# A page size that the log does not state; slots still group by address.
BLOCK_SLOTS = 64
TIME_BINS = 120
_TOP = 12
_COUNTED_SLOTS = 1 << 24
_RANGE = ".."
_DIGITS = re.compile(r"\d+")
# Text and numbers in turn, so that two labels never compare a number with a text.
_DIGIT_PARTS = re.compile(r"(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Facet:
    """One way to group rows: labels, and codes int32 [n] into them, -1 where a row has none. An ordered facet takes 'first..last'."""

    name: str
    labels: tuple[str, ...]
    codes: Codes
    ordered: bool = False

    def chosen(self, labels: Sequence[str]) -> Mask:
        """Which labels are meant, bool [labels]; what is not a label means none."""
        wanted = np.zeros(len(self.labels), dtype=bool)
        places = {label: index for index, label in enumerate(self.labels)}
        for label in labels:
            first, dots, last = label.partition(_RANGE)
            if label in places:
                wanted[places[label]] = True
            elif self.ordered and dots and first in places and last in places:
                wanted[places[first] : places[last] + 1] = True
        return wanted

    def unknown(self, labels: Sequence[str]) -> list[str]:
        """Labels that this log does not have."""
        return [label for label in labels if not self.chosen([label]).any()]


def label_words(name: str, label: str) -> str:
    """A label for reading: digits in groups, and powers of two named where they mean something."""
    if name in ("rank", "tag", "reason", "pool", "time", "incident", "token"):
        return label
    words = _DIGITS.sub(lambda digits: format_count(int(digits[0])), label).replace("-", "–")
    power = name == "stride" and label.isdecimal() and int(label) > 1 and int(label) & (int(label) - 1) == 0
    return f"{words} = 2^{int(label).bit_length() - 1}" if power else words


class Crossfilter:
    """The rows of a log by facet. Filters map a facet's name to the labels that are kept; an empty choice keeps all.

    frame: ViolationTable.frame(). page_size: slots per page, None where the log does not say. slots: int64 [n], -1 where a record was
    cut before its slot.
    """

    def __init__(self, frame: pd.DataFrame, incidents: Sequence[Incident] = (), *, page_size: int | None = None) -> None:
        self.count = len(frame)
        self.page_size = page_size if page_size and page_size > 1 else None
        self.slots: npt.NDArray[np.int64] = _integers(frame["slot_idx"])
        self.time_axis, time = _time(frame)
        pool = _category("pool", _relabelled(frame["group"], lambda group: group or "FULL"))
        facets = (
            time,
            pool,
            _category("rank", _rank_names(frame), natural=True),
            _category("tag", frame["launch_tag"]),
            _category("reason", frame["reasons"]),
            _positions(_integers(frame["position"])),
            _top("token", _integers(frame["stored_token"]), str),
            self._pages(),
            _strides(self.slots, pool.codes),
            _incident_rows(incidents, self.count),
        )
        self.facets = {facet.name: facet for facet in facets}

    def mask(self, filters: Filters, *, without: str = "") -> Mask:
        """Rows that every filter keeps, bool [n]; `without` leaves one facet's own filter out."""
        kept = np.ones(self.count, dtype=bool)
        for name, labels in filters.items():
            if labels and name != without and name in self.facets:
                facet = self.facets[name]
                # One more place for -1, which is in no choice.
                kept &= np.append(facet.chosen(labels), False)[facet.codes]
        return kept

    def counts(self, name: str, filters: Filters) -> npt.NDArray[np.int64]:
        """Rows per label of a facet under the filters of all other facets, int64 [labels]."""
        facet = self.facets[name]
        codes = facet.codes[self.mask(filters, without=name)]
        result: npt.NDArray[np.int64] = np.bincount(codes[codes >= 0], minlength=len(facet.labels)).astype(np.int64)
        return result

    def table(self, rows: str, columns: str, filters: Filters) -> npt.NDArray[np.int64]:
        """Rows by two facets under the filters of all others, int64 [labels of rows, labels of columns]."""
        one, other = self.facets[rows], self.facets[columns]
        kept = self.mask({name: labels for name, labels in filters.items() if name not in (rows, columns)})
        return self._cross(one, other, kept)

    def timeline(self, filters: Filters) -> npt.NDArray[np.int64]:
        """Rows by time and reason under all filters but that of time, int64 [bins, reasons]."""
        return self._cross(self.facets["time"], self.facets["reason"], self.mask(filters, without="time"))

    def slot_rows(self, kept: Mask) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Distinct slots of the kept rows in order, and rows of each."""
        mine = self.slots[kept & (self.slots >= 0)]
        if mine.max(initial=0) > _COUNTED_SLOTS:
            slots, counts = np.unique(mine, return_counts=True)
            return slots, counts.astype(np.int64)
        # Slots of a pool are dense, so counting is quicker than sorting; a damaged number may be anywhere.
        by_slot = np.bincount(mine).astype(np.int64)
        slots = np.flatnonzero(by_slot)
        return slots, by_slot[slots]

    @staticmethod
    def _cross(one: Facet, other: Facet, kept: Mask) -> npt.NDArray[np.int64]:
        kept = kept & (one.codes >= 0) & (other.codes >= 0)
        width = len(other.labels)
        joint = one.codes[kept].astype(np.int64) * width + other.codes[kept]
        counts: npt.NDArray[np.int64] = np.bincount(joint, minlength=len(one.labels) * width).astype(np.int64)
        return counts.reshape(len(one.labels), width)

    def _pages(self) -> Facet:
        size = self.page_size or BLOCK_SLOTS
        pages = np.where(self.slots >= 0, self.slots // size, -1)
        return _top("page", pages, lambda page: f"{page * size}-{page * size + size - 1}")


def _integers(column: pd.Series) -> npt.NDArray[np.int64]:
    """A nullable column as int64, -1 where it has no value."""
    values: npt.NDArray[np.int64] = column.fillna(-1).to_numpy(dtype=np.int64)
    return values


def _category(name: str, column: pd.Series, *, natural: bool = False) -> Facet:
    """Labels by rows, most first; or as people count, TP2 before TP10."""
    texts = column.astype("category")
    codes = texts.cat.codes.to_numpy()
    counts = np.bincount(codes[codes >= 0], minlength=len(texts.cat.categories))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    if natural:
        # Every other part is a number.
        parts = [
            [int(part) if at % 2 else part for at, part in enumerate(_DIGIT_PARTS.split(str(texts.cat.categories[place])))]
            for place in order
        ]
        order = order[sorted(range(len(order)), key=parts.__getitem__)]
    place = np.full(len(counts) + 1, -1, dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return Facet(name, tuple(str(texts.cat.categories[index]) for index in order), place[codes])


def _relabelled(column: pd.Series, name: Callable[[str], str]) -> pd.Series:
    """A column of categories under other names; what gets one name becomes one category."""
    names = [name(str(label)) for label in column.cat.categories]
    places = {label: place for place, label in enumerate(dict.fromkeys(names))}
    lookup = np.array([*(places[label] for label in names), -1], dtype=np.int32)
    return pd.Series(pd.Categorical.from_codes(lookup[column.cat.codes.to_numpy()], categories=pd.Index(list(places), dtype="str")))


def _rank_names(frame: pd.DataFrame) -> pd.Series:
    """What tells the ranks of this log apart: rank, with service and log in front where there are several."""
    parts = [frame[name].cat for name in (*(name for name in ("server", "source") if frame[name].nunique() > 1), "rank")]
    sizes = [len(part.categories) for part in parts]
    if 0 in sizes:
        return frame["rank"]
    joint = np.ravel_multi_index([part.codes.to_numpy() for part in parts], sizes)
    used, codes = np.unique(joint, return_inverse=True)
    words = zip(*(part.categories[places] for part, places in zip(parts, np.unravel_index(used, sizes), strict=True)), strict=True)
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index([" ".join(map(str, group)) for group in words], dtype="str")))


def _time(frame: pd.DataFrame) -> tuple[str, Facet]:
    """Name of the axis and the rows in at most TIME_BINS equal bins: by time, else by step, else in the order read."""
    if frame["time"].notna().any():
        axis, column = "time", frame["time"]
    elif frame["step"].notna().any():
        axis, column = "step", frame["step"]
    else:
        axis, column = "order in the log", pd.Series(np.arange(len(frame)))
    known = column.notna().to_numpy()
    codes = np.full(len(frame), -1, dtype=np.int32)
    if not known.any():
        return axis, Facet("time", (), codes, ordered=True)
    values = column[known].astype("datetime64[s]").astype("int64") if axis == "time" else column[known].astype("int64")
    numbers = values.to_numpy(dtype=np.int64)
    low = int(numbers.min())
    width = max(1, -(-(int(numbers.max()) - low + 1) // TIME_BINS))
    codes[known] = (numbers - low) // width
    starts = low + width * np.arange(int(codes.max()) + 1)
    labels = [str(pd.Timestamp(int(start), unit="s")) for start in starts] if axis == "time" else [str(start) for start in starts]
    return axis, Facet("time", tuple(labels), codes, ordered=True)


def _positions(positions: npt.NDArray[np.int64]) -> Facet:
    """Powers of two: 0, 1, 2 to 3, 4 to 7 and so on."""
    known = positions >= 0
    # frexp gives the exponent exactly; a logarithm would round at the borders.
    bins = np.where(known, np.frexp(np.maximum(positions, 0).astype(np.float64))[1], -1).astype(np.int64)
    used, codes = np.unique(bins, return_inverse=True)
    labels = []
    for number in used.tolist():
        low, high = (0, 0) if number <= 0 else (1 << (number - 1), (1 << number) - 1)
        labels.append("unknown" if number < 0 else str(low) if low == high else f"{low}-{high}")
    return Facet("position", tuple(labels), codes.astype(np.int32), ordered=True)


def _top(name: str, values: npt.NDArray[np.int64], label: Any) -> Facet:
    """The most frequent values, the rest together as 'other', none below 0."""
    codes = np.full(len(values), -1, dtype=np.int32)
    known = values >= 0
    distinct, inverse, counts = np.unique(values[known], return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_TOP]
    place = np.full(len(distinct), len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    codes[known] = place[inverse]
    labels = [label(int(distinct[index])) for index in order]
    return Facet(name, (*labels, OTHER) if len(distinct) > len(order) else tuple(labels), codes)


def _strides(slots: npt.NDArray[np.int64], pools: Codes) -> Facet:
    """How far each reported slot stands behind the reported slot before it in its pool."""
    strides = np.full(len(slots), -1, dtype=np.int64)
    for pool in np.unique(pools).tolist():
        mine = (pools == pool) & (slots >= 0)
        distinct, inverse = np.unique(slots[mine], return_inverse=True)
        if len(distinct) > 1:
            gaps = np.diff(distinct)
            strides[mine] = np.append(gaps[:1], gaps)[inverse]
    return _top("stride", strides, str)


def _incident_rows(incidents: Sequence[Incident], count: int) -> Facet:
    codes = np.full(count, -1, dtype=np.int32)
    for place, incident in enumerate(incidents):
        for finding in incident.findings:
            codes[list(finding.rows)] = place
    return Facet("incident", tuple(str(incident.number) for incident in incidents), codes)
