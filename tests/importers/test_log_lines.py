"""Wrappers around a log line, alone and nested."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.importers.log_lines import MAX_WRAPPERS, LogLine, unwrap

SAID = "[2027-05-06 07:08:09 DP0 TP1] Decode batch"
TIME = "2027-05-06 07:08:09"


@pytest.mark.parametrize(
    ("raw", "source"),
    [
        (SAID, ""),
        (f"api-1  | {SAID}", "api-1"),
        (f"[pod/a-0/main] {SAID}", "a-0/main"),
        (f"2027-05-06T07:08:10.5Z stdout F {SAID}", ""),
        (f"api-1  | 2027-05-06T07:08:10Z {SAID}", "api-1"),
        (f"logs/a.log:17:{SAID}", "logs/a.log"),
        (f"a.log-17-{SAID}", "a.log"),
        (f"a.log:{SAID}", "a.log"),
        (f"17:{SAID}", ""),
        (f"> {SAID}", ""),
        (f"\x1b[31m{SAID}\x1b[0m\r\n", ""),
        (json.dumps({"log": SAID + "\n", "stream": "stderr", "kubernetes": {"pod_name": "b-1"}}), "b-1"),
        (json.dumps({"jsonPayload": {"message": SAID}, "resource": {"labels": {"pod_name": "b-2"}}}), "b-2"),
        (f"api-1  | {json.dumps({'message': SAID, 'service': 'inner'})}", "api-1"),
    ],
)
def test_text_rank_time_and_source(raw: str, source: str) -> None:
    [line] = unwrap(raw)
    assert (line.text, line.rank, line.time, line.source, line.prefixed) == ("Decode batch", "DP0 TP1", TIME, source, True)


@pytest.mark.parametrize(
    "text", ["  stored:   token_id=4", "10.0.0.7:5000 - GET /", "RuntimeError: a: b", "{not json", "a | b", "x" * 9000]
)
def test_a_plain_line_stays_as_it_is(text: str) -> None:
    [line] = unwrap(text)
    assert line.text == (text if text != "a | b" else "b")
    assert not line.prefixed


def test_time_of_the_collector_serves_where_the_server_prints_none() -> None:
    [line] = unwrap("2027-05-06T07:08:09.123Z stderr P   fail_reasons: x")
    assert line == LogLine(text="  fail_reasons: x", time=TIME, partial=True)


def test_json_record_of_several_lines_and_without_text() -> None:
    lines = list(unwrap(json.dumps({"msg": f"{SAID}\nsecond", "time": "2027-01-01T00:00:00Z"})))
    assert [(line.text, line.rank) for line in lines] == [("Decode batch", "DP0 TP1"), ("second", "")]
    assert [line.text for line in unwrap('{"level": "info"}')] == ['{"level": "info"}']
    deep = '{"a":' * 3000 + "1" + "}" * 3000
    assert [line.text for line in unwrap(deep)] == [deep]


def test_wrappers_without_end_are_taken_off_up_to_a_limit() -> None:
    [line] = unwrap("x | " * 3000 + "y")
    assert line.text == "x | " * (3000 - MAX_WRAPPERS) + "y"


@given(st.text(max_size=200))
def test_never_raises_and_yields_at_least_one_line(text: str) -> None:
    assert list(unwrap(text))
