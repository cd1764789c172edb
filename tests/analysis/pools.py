"""Small pools with real chains, damaged in one way each: rows as the canary would report them, computed here from the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcanary.layout import CHAIN_START, mix3
from tests.analysis.rendering import Row

Record = tuple[int, int, int]


def chain(tokens: Sequence[int], first_position: int = 0) -> list[Record]:
    """(prev_hash, token, position) of each token."""
    records, running = [], CHAIN_START
    for position, token in enumerate(tokens, start=first_position):
        records.append((running, token, position))
        running = mix3(running, token, position)
    return records


@dataclass
class Pool:
    """HEAD and TAIL records by slot, and the slots whose bytes changed."""

    head: dict[int, Record] = field(default_factory=dict)
    tail: dict[int, Record] = field(default_factory=dict)
    bad_bytes: set[int] = field(default_factory=set)

    def stamp(self, slots: Sequence[int], tokens: Sequence[int], first_position: int = 0) -> None:
        for slot, record in zip(slots, chain(tokens, first_position), strict=True):
            self.head[slot] = self.tail[slot] = record

    def shared_prefix(self, prefix: Sequence[int], own: Sequence[int]) -> None:
        """Requests with the same first slots, each with one slot of its own behind them."""
        for slot in own:
            self.stamp([*prefix, slot], [*(500 + place for place in range(len(prefix))), 600 + slot])

    def verify(self, slots: Sequence[int], *, group: str = "FULL", places: Sequence[str] = ("HEAD", "TAIL")) -> list[Row]:
        """Rows for a request whose row of the table is `slots`."""
        rows = []
        for place in places:
            buffer = self.head if place == "HEAD" else self.tail
            for position, slot in enumerate(slots):
                prev_hash, token, stored_position = buffer[slot]
                expected = mix3(*buffer[slots[position - 1]]) if position else CHAIN_START
                reasons = (
                    *(("verify_chain_hash",) if prev_hash != expected else ()),
                    *(("verify_position",) if stored_position != position else ()),
                    *(("verify_real_kv_hash",) if place != "HEAD" and slot in self.bad_bytes else ()),
                )
                if reasons:
                    rows.append(
                        Row(
                            tag=f"{place}_K_{group}",
                            reasons=reasons,
                            slot=slot,
                            position=stored_position,
                            token=token,
                            stored_hash=prev_hash,
                            aux=expected,
                        )
                    )
        return rows
