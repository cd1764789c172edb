"""Prefill/decode disaggregation: slots that belong to nobody's forward while their KV is on the way."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary.serving.pool import Int64Array


@dataclass(slots=True, eq=False)
class Transfer:
    """KV of one request on the way until the step `due`. row 0 means that the request was aborted; its slots are freed on arrival."""

    rid: int
    row: int
    slots: Int64Array
    due: int


class TransferQueue:
    """Transfers in flight. A slot stays here until its transfer ended, even when the request is gone: a late write must hit nobody."""

    def __init__(self, delay_steps: int) -> None:
        self._delay = delay_steps
        self.pending: list[Transfer] = []

    def start(self, rid: int, row: int, slots: Int64Array, now: int) -> Transfer:
        """Put slots in flight."""
        transfer = Transfer(rid, row, slots, now + self._delay)
        self.pending.append(transfer)
        return transfer

    def abort(self, rid: int) -> Transfer | None:
        """Mark the transfer of rid as aborted and return it as it was; None when there is none."""
        for index, transfer in enumerate(self.pending):
            if transfer.rid == rid and transfer.row:
                self.pending[index] = Transfer(rid, 0, transfer.slots, transfer.due)
                return transfer
        return None

    def arrivals(self, now: int) -> list[Transfer]:
        """Take out the transfers that have ended by the step `now`."""
        done = [transfer for transfer in self.pending if transfer.due <= now]
        self.pending = [transfer for transfer in self.pending if transfer.due > now]
        return done

    def next_due(self) -> int | None:
        """The earliest step at which something arrives."""
        return min((transfer.due for transfer in self.pending), default=None)

    def slots(self) -> list[Int64Array]:
        """Slots in flight, by transfer."""
        return [transfer.slots for transfer in self.pending]
