"""Any mixture of valid lines, cuts and noise never loses a complete valid violation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.analysis.canary_log import LogBuilder
from kvcanary.analysis.log_reader import LogReader
from kvcanary.layout import FAIL_REASON_LABELS, LaunchTag
from tests.analysis.rendering import Row, install, prefix, stats

ints = st.integers(-(2**63), 2**63 - 1)
hashes = st.integers(0, 2**64 - 1)
rows = st.builds(
    Row,
    tag=st.sampled_from([tag.name for tag in LaunchTag] + ["unknown(77)"]),
    reasons=st.lists(st.sampled_from(FAIL_REASON_LABELS), unique=True, max_size=6).map(
        lambda labels: tuple(sorted(labels, key=FAIL_REASON_LABELS.index))
    ),
    slot=ints,
    position=ints,
    token=ints,
    expected_token=ints,
    stored_hash=hashes,
    aux=hashes,
)
ranks = st.sampled_from(["TP0", "TP1", "DP1 TP3 EP3", ""])
noise = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x1b\\"), max_size=60).filter(lambda text: "launch_tag=" not in text),
    st.sampled_from(
        [
            "  expected: prev_hash=0x00",
            "  total_violations=3 ring_overflow=False step_when_pumped=2",
            "KV cache canary violation detected (kernel_kind=HEAD_K_FULL, slot_idx=1, position=1)",
            "kv_canary violation:",
            "kv_canary violation: launch_tag=",
            "grep kv_canary violation: launch_tag=... here",
            "RuntimeError: ",
            '{"log": "half a record',
            "Scheduler hit an exception: Traceback (most recent call last):",
            stats(100, 3),
            install(),
        ]
    ),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, list[Row]]:
    lines: list[str] = []
    whole: list[Row] = []
    for kind in draw(st.lists(st.sampled_from(["line", "message", "cut", "noise", "raised"]), max_size=12)):
        if kind == "noise":
            lines.append(draw(noise))
            continue
        row = draw(rows)
        text = row.line() if kind == "line" else row.message(total=draw(st.integers(1, 10**9)), step=draw(st.integers(0, 10**9)))
        text = ("RuntimeError: " if kind == "raised" else prefix(draw(ranks))) + text
        if kind == "cut":
            # Cut inside the structured line, so that the record is not complete.
            text = text[: draw(st.integers(0, text.index("expected_aux=0x") + 30))]
        else:
            whole.append(row)
        lines.append(text)
    end = draw(st.sampled_from(["\n", "", "\r\n"]))
    return "\n".join(lines) + end, whole


def key(row: Row) -> tuple[object, ...]:
    return row.tag, row.reasons, row.slot, row.position, row.token, row.expected_token, row.stored_hash, row.aux


@settings(max_examples=max(400, settings().max_examples), deadline=None)
@given(logs(), st.integers(1, 400))
def test_no_complete_violation_is_lost(case: tuple[str, list[Row]], size: int) -> None:
    text, whole = case
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    data = text.encode()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.finish()
    found = [
        (v.launch_tag, v.reasons, v.slot_idx, v.position, v.stored_token, v.expected_token, v.stored_chain_hash, v.expected_aux)
        for v in builder.violations
        if not v.truncated
    ]
    assert found == [key(row) for row in whole]
    builder.build()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        "launch_tag=",
        "kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=none ",
        "a=<",
        "install_canary: a=[",
        "kv-canary: kernel_run_counter is zero ",
        "kv_canary_swa_divergence={",
        "a.a",
        "a.log.log",
        '{"a":',
        "\\n",
        "\r",
        "total_violations=1 ",
        "KV cache canary violation detected (",
        "a-1-",
    ],
)
def test_no_line_takes_quadratic_time(unit: str) -> None:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    for lead in ("", "install_canary: ", prefix() + Row().line() + "\n"):
        reader.feed((lead + unit * (900_000 // len(unit)) + " canary Error: x\n").encode())
    reader.finish()
    builder.build()


@settings(max_examples=max(200, settings().max_examples), deadline=None)
@given(st.binary(max_size=4000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    reader.feed(b"kv_canary violation: launch_tag=HEAD_K_FULL " + data + b"\nkv_canary " + data)
    reader.finish()
    builder.build().violations.frame()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("place", ["tag", "reason", "rank", "time"])
def test_bytes_that_are_no_text_where_a_word_should_stand(place: str, whole: bool) -> None:
    """Reports that are read many at once; a damaged one among them costs no other."""
    report = Row().message() if whole else Row().line()
    lines = f"{prefix()}{report}\n".encode() * 40
    word = {"tag": b"TAIL_K_FULL", "reason": b"verify_real_kv_hash", "rank": b"TP0", "time": b"04:05:06"}[place]
    damaged = lines.replace(word, word[:-1] + b"\x92", 1)
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    reader.feed(damaged)
    reader.finish()
    assert len(builder.violations) >= 39
    builder.build().violations.frame()


@pytest.mark.parametrize("inside", ["[" * 1900, "9" * 1900, '"a": ' + "[" * 1900, '"a": 1, '])
def test_what_looks_like_a_divergence_and_is_no_json(inside: str) -> None:
    builder = LogBuilder()
    reader = LogReader(builder, server="s", file="f")
    reader.feed(f"{prefix()}kv_canary_swa_divergence={{{inside}}}\n{prefix()}{Row().line()}\n".encode())
    reader.finish()
    assert len(builder.violations) == 1
