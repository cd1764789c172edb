"""Violation records of a block of log, read all at once with NumPy: what a broken server prints most, thousands a second.

A record is a whole message (the structured line and six body lines that repeat it) or its structured line alone, as a search for
"violation" keeps it. Everything else is left to the reader of single lines, so nothing is lost by being strict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary.analysis.block_text import HEX_DIGITS, BlockText, Bools, Checked, Int64, UInt64, Words
from kvcanary.analysis.violations import REASON_BITS
from kvcanary.layout import LaunchTag

MARK = b"kv_canary violation: launch_tag="
MESSAGE_LINES = 7
UNKNOWN = -1
_TAG, _REASON = re.compile(rb"[A-Z][A-Z0-9_]*|unknown\(-?\d{1,19}\)"), re.compile(rb"[a-z0-9_+]+")
_KIND, _BODY_REASON = re.compile(rb"[a-z0-9_()-]+"), re.compile(rb"[a-z_ ]+")
_MAX_TAG, _MAX_WORD = 32, 160


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Heads:
    """Lines that carry the server's prefix or what a traceback puts before a record, as [n] of a block.

    lines: their numbers in the block from 0; text_at: where the text behind the head begins. time: as printed, empty without a prefix.
    lead: what stands between time and text; b" TP0] ", b"] ", b"RuntimeError: " or nothing.
    """

    lines: Int64
    text_at: Int64
    time: Words
    lead: Words

    def __getitem__(self, items: slice | Bools) -> Heads:
        return Heads(lines=self.lines[items], text_at=self.text_at[items], time=self.time[items], lead=self.lead[items])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BulkRecords:
    """Records in the order of the block; every array is [n].

    whole: the body belongs to it, so the record is 7 lines long and not one. ints: slot_idx, position, stored_token, expected_token;
    hashes: stored_chain_hash, expected_aux. total, step and overflow are the footer, UNKNOWN without one.
    """

    heads: Heads
    whole: Bools
    tag: Words
    reason: Words
    ints: tuple[Int64, ...]
    hashes: tuple[UInt64, ...]
    total: Int64
    step: Int64
    overflow: Int64

    def __getitem__(self, items: slice | Bools) -> BulkRecords:
        return BulkRecords(
            heads=self.heads[items],
            whole=self.whole[items],
            tag=self.tag[items],
            reason=self.reason[items],
            ints=tuple(values[items] for values in self.ints),
            hashes=tuple(values[items] for values in self.hashes),
            total=self.total[items],
            step=self.step[items],
            overflow=self.overflow[items],
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Places:
    """Where the fields stand that the body repeats: start and length."""

    tag: tuple[Int64, Int64]
    ints: Sequence[tuple[Int64, Int64]]
    hash_at: Int64


def read_records(text: BlockText, heads: Heads) -> BulkRecords:
    """The records among lines whose text begins with the mark."""
    check = Checked(text, len(heads.lines))
    tag_at = heads.text_at + len(MARK)
    tag_length = text.next_space(tag_at, _MAX_TAG) - tag_at
    reason_at = check.expect(tag_at + tag_length, b" fail_reason=")
    reason_length = text.next_space(reason_at, _MAX_WORD) - reason_at
    tag, reason = check.words(tag_at, tag_length, _TAG), check.words(reason_at, reason_length, _REASON)
    check.good &= _plausible(tag, reason)
    at, ints, places = reason_at + reason_length, [], []
    for key in (b" slot_idx=", b" position=", b" stored_token=", b" expected_token="):
        start = check.expect(at, key)
        values, at = check.integers(start)
        ints.append(values)
        places.append((start, at - start))
    hash_at = check.expect(at, b" stored_chain_hash=0x")
    aux_at = check.expect(hash_at + HEX_DIGITS, b" expected_aux=0x")
    hashes = (check.hexadecimals(hash_at), check.hexadecimals(aux_at))
    check.good &= aux_at + HEX_DIGITS == text.ends[heads.lines]
    body = _Bodies(text, heads.lines, check.good, _Places(tag=(tag_at, tag_length), ints=places, hash_at=hash_at))
    records = BulkRecords(
        heads=heads,
        whole=body.whole,
        tag=tag,
        reason=reason,
        ints=tuple(ints),
        hashes=hashes,
        total=body.total,
        step=body.step,
        overflow=body.overflow,
    )
    return records[check.good]


def _plausible(tag: Words, reason: Words) -> Bools:
    """Tags that SGLang has, or reasons that it has: prose about the mark is no record."""
    tags = [text.decode(errors="replace") in LaunchTag.__members__ or text.startswith(b"unknown(") for text in tag.texts]
    reasons = [all(part in REASON_BITS for part in text.decode(errors="replace").split("+")) for text in reason.texts]
    good: Bools = np.array(tags, dtype=bool)[tag.codes] | np.array(reasons, dtype=bool)[reason.codes]
    return good


class _Bodies:
    """Which structured lines are followed by the body that repeats them, and the footers of these."""

    def __init__(self, text: BlockText, lines: Int64, good: Bools, places: _Places) -> None:
        count = len(lines)
        self.whole = np.zeros(count, dtype=bool)
        self.total, self.step, self.overflow = (np.full(count, UNKNOWN) for _ in range(3))
        # Most lines of a search's output have no body, so only those go on that a header follows.
        maybe = np.flatnonzero(good & (lines + MESSAGE_LINES <= len(text.starts)))
        maybe = maybe[text.says(text.starts[lines[maybe] + 1], b"KV cache")]
        if not len(maybe):
            return
        self._check = Checked(text, len(maybe))
        self._begin = [text.starts[lines[maybe] + number] for number in range(MESSAGE_LINES)]
        self._end = [text.ends[lines[maybe] + number] for number in range(MESSAGE_LINES)]
        self._repeats(
            (places.tag[0][maybe], places.tag[1][maybe]),
            [(start[maybe], length[maybe]) for start, length in places.ints],
            places.hash_at[maybe],
        )
        total, step, overflow = self._footer()
        whole = self._check.good
        self.whole[maybe] = whole
        for column, values in ((self.total, total), (self.step, step), (self.overflow, overflow)):
            column[maybe[whole]] = values[whole]

    def _repeats(self, tag: tuple[Int64, Int64], ints: Sequence[tuple[Int64, Int64]], hash_at: Int64) -> None:
        """The lines below belong to the record: they repeat tag, slot, position, token and hash."""
        check, begin, end = self._check, self._begin, self._end
        at = check.expect(begin[1], b"KV cache canary violation detected (kernel_kind=")
        for (start, length), behind in ((tag, b", slot_idx="), (ints[0], b", position="), (ints[1], b")")):
            at = check.expect(check.repeat(at, start, length), behind)
        check.good &= at == end[1]
        for number, word, form in ((2, b"canary_kind:       ", _KIND), (3, b"  fail_reasons: ", _BODY_REASON)):
            at = check.expect(begin[number], word)
            check.words(at, np.clip(end[number] - at, 0, _MAX_WORD), form)
        at = begin[4]
        check.good &= check.text.says(at, b"  stored:") | check.text.says(at, b"  actual:")
        at = check.expect(at + 9, b"   token_id=")
        for (start, length), behind in ((ints[2], b"   position="), (ints[1], b" prev_hash=0x")):
            at = check.expect(check.repeat(at, start, length), behind)
        check.good &= check.repeat(at, hash_at, np.full(len(hash_at), HEX_DIGITS)) == end[4]
        check.expect(begin[5], b"  expected: ")

    def _footer(self) -> tuple[Int64, Int64, Int64]:
        check = self._check
        total, at = check.counts(check.expect(self._begin[6], b"  total_violations="))
        at = check.expect(at, b" ring_overflow=")
        overflow = check.text.says(at, b"True ")
        check.good &= overflow | check.text.says(at, b"False ")
        step, at = check.counts(check.expect(at + np.where(overflow, 4, 5), b" step_when_pumped="))
        check.good &= at == self._end[6]
        return total, step, overflow.astype(np.int64)
