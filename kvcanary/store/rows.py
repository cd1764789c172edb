"""One run as a row of the list, and the choice of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, RowMapping, and_, or_, select, true
from sqlalchemy.sql.expression import UnaryExpression

from kvcanary.errors import StoreError
from kvcanary.lab.records import RunRecord, RunState, Verdict, owner_key
from kvcanary.store.schema import LABELS, RUNS

KINDS = ("plan", "benchmark", "campaign", "inspection")
LABEL_LIMIT, NOTE_LIMIT = 60, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What a list shows of a run. Times are seconds since the epoch; size_bytes is what its files take; labels are sorted.

    machine names what computed: the accelerator, else the processor. deleted_s is None unless the deletion can still be undone. owner is
    who made it, 'name (key)', empty without a login; private: nobody else but an administrator sees it.
    """

    id: str
    kind: str
    state: RunState
    verdict: Verdict
    created_s: float
    started_s: float | None
    finished_s: float | None
    device: str
    machine: str
    host: str
    model: str
    sentence: str
    note: str
    labels: tuple[str, ...]
    points: int
    size_bytes: int
    deleted_s: float | None
    owner: str
    private: bool


class Filters(TypedDict, total=False):
    """Which runs: equal kind, verdict, state, machine, model; having the label; text in id, sentence, note, model or machine, any case.

    newer_than is seconds since the epoch; deleted asks for the deleted runs alone. None and absence mean any.
    """

    kind: str | None
    verdict: str | None
    state: str | None
    machine: str | None
    model: str | None
    label: str | None
    text: str | None
    newer_than: float | None
    deleted: bool


EQUAL = ("kind", "verdict", "state", "machine", "model")
_SEARCHED = (RUNS.c.id, RUNS.c.sentence, RUNS.c.note, RUNS.c.model, RUNS.c.machine)
ORDERS: Mapping[str, tuple[UnaryExpression[Any] | ColumnElement[Any], ...]] = {
    "newest": (RUNS.c.created_s.desc(), RUNS.c.id.desc()),
    "oldest": (RUNS.c.created_s, RUNS.c.id),
    "largest": (RUNS.c.size_bytes.desc(), RUNS.c.id.desc()),
}


def condition(filters: Filters) -> ColumnElement[bool]:
    """The filters as SQL; StoreError for a filter that is none."""
    unknown = set(filters) - set(Filters.__annotations__)
    if unknown:
        raise StoreError(f"runs are filtered by {', '.join(Filters.__annotations__)}, got {sorted(unknown)[0]!r}")
    parts: list[ColumnElement[bool]] = [RUNS.c.deleted_s.is_not(None) if filters.get("deleted") else RUNS.c.deleted_s.is_(None)]
    parts += [RUNS.c[name] == str(wanted) for name in EQUAL if (wanted := filters.get(name)) is not None]
    if (label := filters.get("label")) is not None:
        parts.append(RUNS.c.id.in_(select(LABELS.c.run_id).where(LABELS.c.label == label)))
    if words := (filters.get("text") or "").split():
        parts += [or_(*(column.icontains(word, autoescape=True) for column in _SEARCHED)) for word in words]
    if (newer_than := filters.get("newer_than")) is not None:
        parts.append(RUNS.c.created_s >= newer_than)
    return and_(*parts)


def visible_to(key: str | None) -> ColumnElement[bool]:
    """Runs that a person may see, by the key of a login; None for who sees all."""
    return true() if key is None else or_(RUNS.c.private == 0, RUNS.c.owner_key == key)


def order_by(order: str) -> tuple[Any, ...]:
    """The order by name; StoreError for one that there is none of."""
    if order not in ORDERS:
        raise StoreError(f"order must be one of {', '.join(ORDERS)}, got {order[:60]!r}")
    return ORDERS[order]


def to_row(values: RowMapping, labels: tuple[str, ...]) -> RunRow:
    """A row of the table."""
    names = (name for name in RunRow.__dataclass_fields__ if name not in ("labels", "state", "verdict", "private"))
    return RunRow(
        state=RunState(values["state"]), verdict=Verdict(values["verdict"]), labels=labels, private=bool(values["private"]),
        **{name: values[name] for name in names},
    )  # fmt: skip


def from_record(record: RunRecord, *, origin: str, points: int, size_bytes: int) -> dict[str, Any]:
    """Columns of the table that follow from a record; notes, deletion and where files were copied do not. private is how it begins."""
    settings = record.spec.get("settings")
    machine = record.machine
    return {
        "id": record.id,
        "kind": record.kind,
        "state": record.state.value,
        "verdict": record.verdict.value,
        "created_s": record.created_s,
        "started_s": record.started_s,
        "finished_s": record.finished_s,
        "device": str(record.spec.get("device", ""))[:40],
        "machine": str(machine.get("accelerator") or machine.get("processor") or ""),
        "host": record.host,
        "model": str(settings.get("model", "")) if isinstance(settings, dict) else "",
        "sentence": record.sentence,
        "points": points,
        "size_bytes": size_bytes,
        "origin": origin,
        "owner": record.owner,
        "owner_key": owner_key(record.owner),
        # What somebody keeps was theirs alone so far: a form, an uploaded log. What ran on a shared machine was not.
        "private": int(bool(record.owner) and record.kind in ("plan", "inspection")),
    }
