"""Lines read all at once: the same table, counters and line numbers as one by one, whatever stands between and inside them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcanary.analysis import bulk_lines, bulk_wrappers, log_reader
from kvcanary.analysis.block_text import Words
from kvcanary.analysis.bulk_lines import BulkBlock, read_block
from kvcanary.analysis.bulk_wrappers import pieces_of
from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.analysis.messages import MessageReader
from kvcanary.importers.log_lines import LogLine, unwrap
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


def single_line(rng: random.Random, number: int) -> str:
    """One of the lines that come alone: records as a search keeps them, counters, and lines of no meaning."""
    whole = message(rng, number)
    line = whole.split("\n", 1)[0]
    head, text = line.split("] ", 1)
    head += "] "
    choices = (
        line,
        text,
        f"RuntimeError: {text}",
        f"{head}[canary] step={number} protected_tokens={number * 9} sweep_passes={number // 7} violations={number // 2} launch_tags_active=6/12",
        f"{head}[canary] sweep succeeded {number} times (last_step={4 * number})",
        f"{head}kv-canary: per-forward verify skipped this step due to overflow (total={number}, capacity=300); check ServerArgs / pool sizing",
        f"{head}Decode batch, #running-req: {number}, #token: 9",
        f"{head}Decode batch, #running-req: x, expected: y",
        'INFO:     10.0.0.9:5512 - "POST /generate HTTP/1.1" 200 OK',
        f"{head}ValueError: none",
        f"{head}Scheduler hit an exception: Traceback (most recent call last):",
        "  total_violations=3 ring_overflow=True step_when_pumped=9",
        whole.split("\n", 1)[1],
        whole,
    )
    return rng.choices(choices, weights=(9, 3, 3, 3, 3, 3, 4, 1, 1, 1, 1, 1, 1, 3))[0]


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
        lines.insert(rng.randrange(1, len(lines) + 1), f"{prefix('TP1')}Decode batch, #running-req: {rng.randrange(50)}, x")
        return "\n".join(lines)
    return (text.replace("\n", "\r\n"), stats(100, 3), "RuntimeError: " + text.split("] ", 1)[-1], "noise")[kind - 3]


def collected(rng: random.Random, text: str, by: str) -> str:
    """A line as a collector writes it; now and then one is cut, marked as partial or left alone."""
    if not by or rng.random() < 0.01:
        return text
    time = f"2027-02-03T04:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
    fraction, zone = rng.choice(["", ".5", ".123456789"]), rng.choice(["Z", "+02:00"])
    mark = "P" if rng.random() < 0.01 else "F"
    text = {
        "docker": f'{{"log":"{text}\\n","stream":"{rng.choice(["stderr", "stdout"])}","time":"{time}{fraction}Z"}}',
        "cri": f"{time}{fraction}{zone} {rng.choice(['stderr', 'stdout'])} {mark} {text}",
        "kubectl": f"{time}{fraction}{zone} {text}",
        "compose": f"server-1  | {text}",
        "colours": f"\x1b[33m{text}\x1b[0m",
    }[by]
    return text[: rng.randrange(len(text))] if rng.random() < 0.01 else text


def read(data: bytes, size: int) -> LogBuilder:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.finish()
    return builder


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.05, 0.4]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([1 << 20, 30_000]),
    st.sampled_from([1, 12]),
    st.sampled_from(["", "", "docker", "cri", "kubectl", "compose", "colours"]),
)
# A digit before the kind, which one reader took for a whole message.
@example(220354974, 0.4, 0.2, 1 << 20, 1, "")
def test_bulk_and_single_reading_agree(seed: int, share: float, alone: float, size: int, run: int, by: str) -> None:
    rng = random.Random(seed)
    parts = [single_line(rng, number) if rng.random() < alone else message(rng, number) for number in range(1, 160)]
    lines = [line for part in parts for line in (damaged(rng, part) if rng.random() < share else part).split("\n")]
    data = "".join(collected(rng, line, by) + "\n" for line in lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_lines, "MIN_LINES", 1)
        patch.setattr(bulk_wrappers, "MIN_LINES", 2)
        patch.setattr(log_reader, "_BULK_RUN", run)
        bulk = read(data, size)
        patch.setattr(bulk_lines, "MIN_LINES", 1 << 30)
        single = read(data, size)
    assert len(single.violations) > 20
    assert bulk.violations.frame().equals(single.violations.frame())
    one, other = bulk.build(), single.build()
    assert one.streams == other.streams
    assert (one.lines, one.canary_lines, one.unread, one.events) == (other.lines, other.canary_lines, other.unread, other.events)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["docker", "cri", "kubectl", "compose", "colours"]))
def test_unwrapping_a_block_is_unwrapping_its_lines(seed: int, by: str) -> None:
    rng = random.Random(seed)
    parts = [single_line(rng, number) for number in range(1, 60)]
    lines = [line for part in parts for line in (damaged(rng, part) if rng.random() < 0.1 else part).split("\n")]
    lines += rng.choices(
        ["", "stdout F", "stderr", "a | b", "é", "tab\tstop", 'a "quote"', "back\\slash", "{}", "2027-02-03T04:05:06Z x"], k=20
    )
    rng.shuffle(lines)
    data = "".join(collected(rng, line, by) + "\n" for line in lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_wrappers, "MIN_LINES", 2)
        pieces = list(pieces_of(data))
    found: list[LogLine] = []
    for piece in pieces:
        for number, raw in enumerate(piece.text.decode().split("\n")[:-1]):
            for part in filter(None, raw.split("\r")):
                found += [piece.outside(line, number) for line in unwrap(part)]
    expected = [line for raw in data.decode().split("\n") for part in filter(None, raw.split("\r")) for line in unwrap(part)]
    # A line of nothing but a wrapper is skipped once the wrapper is off.
    assert [line for line in found if line.text] == [line for line in expected if line.text]


def block_of(texts: list[str]) -> BulkBlock:
    found = read_block("".join(texts).encode())
    assert found is not None
    return found


def messages(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [message(rng, number, KNOWN) + "\n" for number in range(1, 101)]


def test_a_clean_block_is_one_run() -> None:
    texts = messages(4)
    found = block_of(["noise\n", *texts])
    assert found.run_at(6) == slice(1, 701)
    assert found.run_at(7) == slice(0, 0)
    # A reader cannot begin inside of a message, and it can between two.
    assert found.run_at(6 + texts[0].index("canary_kind")) == slice(3, 3)
    assert found.run_at(6 + len(texts[0])) == slice(8, 701)
    assert found.gaps(6 + sum(map(len, texts)), 12) == [(0, 6)]


def test_records_alone_are_lines_of_a_run() -> None:
    lines = [text.split("\n", 1)[0] + "\n" for text in messages(4)]
    found = block_of([*lines[:70], f"{prefix()}Decode batch, #running-req: 7\n", f"{prefix()}MemoryError: x\n", *lines[70:]])
    assert not found.records.whole.any()
    # The batch line means nothing to the reader; the error does.
    assert found.run_at(0) == slice(0, 71)
    assert len(found.records.heads.lines) == 100


def test_few_messages_are_left_to_the_single_reader() -> None:
    rng = random.Random(4)
    assert read_block("".join(message(rng, number) + "\n" for number in range(1, 9)).encode()) is None


@pytest.mark.parametrize(
    "old", ["slot_idx=", "position=", "canary_kind:", "prev_hash=0x", "total_violations=", "ring_overflow=", "detected"]
)
def test_a_message_that_does_not_repeat_its_record_is_not_whole(old: str) -> None:
    texts = messages(9)
    head, body = texts[50].split("\n", 1)
    texts[50] = f"{head}\n" + body.replace(old, old[:-1] + "!", 1)
    found = block_of(texts)
    assert (len(found.records.whole), int(found.records.whole.sum())) == (100, 99)
    # The structured line is still read at once; its body is left to the single reader.
    assert found.run_at(0) == slice(0, 351)


@pytest.mark.parametrize("line", range(1, 7))
def test_a_line_that_goes_on_is_not_of_the_plain_form(line: int) -> None:
    texts = messages(9)
    lines = texts[50].split("\n")
    lines[line] += "!" if line != 5 else ""
    texts[50] = "\n".join(lines)
    # What is expected stands in many forms, so the sixth line is free to be anything.
    assert int(block_of(texts).records.whole.sum()) == (100 if line == 5 else 99)


def test_a_run_costs_what_it_holds_and_not_what_its_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of short runs in one block, each with times of its own."""
    rng, asked = random.Random(6), []
    seconds = MessageReader.seconds
    monkeypatch.setattr(MessageReader, "seconds", lambda self, time: asked.append(time) or seconds(self, time))
    lines = []
    for number in range(3000):
        head, text = message(rng, 10 * number).split("\n", 1)[0].split("] ", 1)
        lines.append(f"{head}] {text}\n")
        if number % 15 == 14:
            lines.append(f"{head}] ValueError: none\n")
    found = read("".join(lines).encode(), 1 << 22)
    assert len(found.violations) == 3000
    assert len(asked) < 3 * len(lines)


@given(st.lists(st.integers(0, 40)), st.integers(41, 200))
def test_the_texts_in_use_are_numbered_by_their_first_use(codes: list[int], texts: int) -> None:
    for count in (41, texts):
        words = Words(codes=np.array(codes, dtype=np.int64), texts=[b"%d" % number for number in range(count)])
        dense, used = words.used()
        assert used == [b"%d" % code for code in dict.fromkeys(codes)]
        assert [used[place] for place in dense.tolist()] == [b"%d" % code for code in codes]
