"""Messages read all at once: the same table, counters and line numbers as one by one, whatever stands between and inside them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.analysis import bulk_messages, log_reader
from kvcanary.analysis.bulk_messages import read_messages
from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.layout import FAIL_REASON_LABELS, LaunchTag
from tests.analysis.rendering import Row, prefix, stats

RANKS = ("TP0", "TP1", "DP1 TP3 EP3", "")


KNOWN = [tag.name for tag in LaunchTag]


def message(rng: random.Random, number: int, tags: list[str] | None = None) -> str:
    reasons = tuple(label for label in FAIL_REASON_LABELS if rng.random() < 0.3)
    row = Row(
        tag=rng.choice(tags or [*KNOWN, "unknown(7)"]),
        reasons=reasons,
        slot=rng.choice([0, 5, -1, 10**17, rng.randrange(1 << 20)]),
        position=rng.choice([0, -3, rng.randrange(1 << 16)]),
        token=rng.randrange(-1, 200_000),
        expected_token=rng.choice([-1, 77]),
        stored_hash=rng.getrandbits(64),
        aux=rng.getrandbits(rng.choice([3, 63])),
    )
    time = f"2027-02-03 04:{number // 600 % 60:02d}:{number // 10 % 60:02d}"
    return prefix(rng.choice(RANKS), time) + row.message(total=number, step=number // 3, overflow=rng.random() < 0.1)


def damaged(rng: random.Random, text: str) -> str:
    """One message with one thing wrong, or something else in its place."""
    kind = rng.randrange(7)
    if kind == 0:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice("0aZ =\n") + text[at + 1 :]
    if kind == 1:
        return text[: rng.randrange(1, len(text))]
    if kind == 2:
        lines = text.split("\n")
        lines.insert(rng.randrange(1, len(lines)), f"{prefix('TP1')}Decode batch, #running-req: {rng.randrange(50)}, x")
        return "\n".join(lines)
    return (text.replace("\n", "\r\n"), stats(100, 3), "RuntimeError: " + text.split("] ", 1)[1], "noise")[kind - 3]


def read(data: bytes, size: int) -> LogBuilder:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.finish()
    return builder


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.05, 0.4]), st.sampled_from([1 << 20, 30_000]))
def test_bulk_and_single_reading_agree(seed: int, share: float, size: int) -> None:
    rng = random.Random(seed)
    parts = [message(rng, number) for number in range(1, 160)]
    data = "".join((damaged(rng, part) if rng.random() < share else part) + "\n" for part in parts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_messages, "MIN_MESSAGES", 1)
        patch.setattr(log_reader, "_BULK_RUN", 1)
        bulk = read(data, size)
        patch.setattr(bulk_messages, "MIN_MESSAGES", 1 << 30)
        single = read(data, size)
    assert len(single.violations) > 80
    assert bulk.violations.frame().equals(single.violations.frame())
    one, other = bulk.build(), single.build()
    assert one.streams == other.streams
    assert (one.lines, one.canary_lines, one.unread, one.events) == (other.lines, other.canary_lines, other.unread, other.events)


def test_a_clean_block_is_one_run() -> None:
    rng = random.Random(4)
    texts = [message(rng, number, KNOWN) + "\n" for number in range(1, 101)]
    block = ("noise\n" + "".join(texts)).encode()
    found = read_messages(block)
    assert found is not None
    assert found.run_at(6) == slice(0, 100)
    assert found.run_at(7) == slice(0, 0)
    assert int(found.ends[-1]) == len(block)


def test_few_messages_are_left_to_the_single_reader() -> None:
    rng = random.Random(4)
    assert read_messages("".join(message(rng, number) + "\n" for number in range(1, 9)).encode()) is None


@pytest.mark.parametrize(
    "old", ["slot_idx=", "position=", "canary_kind:", "prev_hash=0x", "total_violations=", "ring_overflow=", "detected"]
)
def test_a_message_that_does_not_repeat_its_record_is_not_whole(old: str) -> None:
    rng = random.Random(9)
    texts = [message(rng, number, KNOWN) + "\n" for number in range(1, 101)]
    head, body = texts[50].split("\n", 1)
    texts[50] = f"{head}\n" + body.replace(old, old[:-1] + "!", 1)
    found = read_messages("".join(texts).encode())
    assert found is not None
    assert len(found.starts) == 99
    assert found.run_at(0) == slice(0, 50)


@pytest.mark.parametrize("line", range(1, 7))
def test_a_line_that_goes_on_is_not_of_the_plain_form(line: int) -> None:
    rng = random.Random(9)
    texts = [message(rng, number, KNOWN) + "\n" for number in range(1, 101)]
    lines = texts[50].split("\n")
    lines[line] += "!" if line != 5 else ""
    texts[50] = "\n".join(lines)
    found = read_messages("".join(texts).encode())
    assert found is not None
    # What is expected stands in many forms, so the sixth line is free to be anything.
    assert len(found.starts) == (100 if line == 5 else 99)
