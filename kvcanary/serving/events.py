"""What happened in a step, for timelines and replays."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvcanary.serving.pool import EMPTY, Int64Array

NO_REQUEST = -1


class EventKind(StrEnum):
    """Kinds in the order of a request's life; the last ones happen to the cache."""

    SUBMIT = "submit"
    REJECT = "reject"
    ADMIT = "admit"
    CHUNK = "chunk"
    DEDUP = "dedup"
    ROLLBACK = "rollback"
    WINDOW_OUT = "window_out"
    RETRACT = "retract"
    ABORT = "abort"
    FINISH = "finish"
    TRANSFER_START = "transfer_start"
    TRANSFER_DONE = "transfer_done"
    EVICT = "evict"
    WINDOW_EVICT = "window_evict"
    BACKUP = "backup"
    RELOAD = "reload"
    HOST_EVICT = "host_evict"


# Not frozen, as Step is not: every request makes five of them.
@dataclass(slots=True, eq=False)
class Event:
    """One thing that happened: rid -1 where no request is concerned, count tokens, slots int64 [m] as they were at that moment."""

    kind: EventKind
    rid: int = NO_REQUEST
    count: int = 0
    slots: Int64Array = field(default_factory=lambda: EMPTY)
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"kind": self.kind, "rid": self.rid, "count": self.count, "slots": self.slots.tolist(), "detail": self.detail}


class MoveKind(StrEnum):
    """Ways in which KV bytes reach other slots outside a forward."""

    BACKUP = "backup"
    RELOAD = "reload"
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True, eq=False)
class KvMove:
    """KV that has to be moved before the forward, in list order.

    BACKUP and RELOAD copy between device_slots and host_slots, int64 [n] each. ARRIVAL brings the KV and the records of a prompt that
    another instance computed: tokens int64 [n] at positions 0..n-1 into device_slots. window_slots: where the same tokens lie in the window
    pool, int64 [n] with 0 for tokens outside the window, or empty when no window KV moves.
    """

    kind: MoveKind
    rid: int
    device_slots: Int64Array
    host_slots: Int64Array = field(default_factory=lambda: EMPTY)
    tokens: Int64Array = field(default_factory=lambda: EMPTY)
    window_slots: Int64Array = field(default_factory=lambda: EMPTY)
