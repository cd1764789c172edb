"""Traces in the shapes they are published in, and rows that are none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.importers.trace import MAX_NOTED_PROBLEMS, TraceKind, TraceReader, TraceRow

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-17 09:12:41.0650020,812,34
2023-11-17 09:12:41.0650027,1290,3

2023-11-17 09:13:00.1000000,77,210
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
12.5,GPT-4,1087,230,1317,API log
"""


def mooncake(**changes: object) -> str:
    return json.dumps({"timestamp": 3000, "input_length": 1025, "output_length": 7, "hash_ids": [4, 5, 9], **changes})


def read(text: str) -> tuple[TraceReader, list[TraceRow]]:
    reader = TraceReader(text.splitlines(keepends=True))
    return reader, list(reader)


def test_azure_keeps_the_seventh_digit_and_skips_blank_lines() -> None:
    reader, rows = read(AZURE)
    assert rows == [TraceRow(2, 0.0, 812, 34), TraceRow(3, 7e-7, 1290, 3), TraceRow(5, 19.034998, 77, 210)]
    assert (reader.kind, reader.rows, reader.bad_rows) == (TraceKind.AZURE, 3, 0)


@pytest.mark.parametrize("stamp", ["2024-05-12 00:00:01.250000+00:00", "2024-05-12T00:00:01.25Z", "2024-05-12 02:00:01.25+02:00"])
def test_azure_times_with_a_zone(stamp: str) -> None:
    _, rows = read(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00+00:00,5,5\n{stamp},6,6\n")
    assert rows[1].arrival_s == 1.25


def test_burstgpt_takes_the_columns_by_name() -> None:
    reader, rows = read(BURSTGPT)
    assert rows == [TraceRow(2, 0.0, 472, 18), TraceRow(3, 7.5, 1087, 230)]
    assert reader.kind is TraceKind.BURSTGPT
    _, moved = read("Session ID,Timestamp,Elapsed time,Response tokens,Request tokens\na,0,1,7,9\n")
    assert (moved[0].input_len, moved[0].output_len) == (9, 7)


def test_a_header_is_read_as_the_rows_are() -> None:
    _, rows = read('"Timestamp","Model","Request tokens","Response tokens"\n"5","a, b","472","18"\n')
    assert rows == [TraceRow(2, 0.0, 472, 18)]
    more = 400
    reader, rows = read("Timestamp,Request tokens,Response tokens" + ",column" * more + "\n5,472,18" + ",x" * more + "\n")
    assert (rows, reader.problems) == ([TraceRow(2, 0.0, 472, 18)], [])


def test_mooncake_times_are_milliseconds_and_ids_are_kept() -> None:
    reader, rows = read("\ufeff" + mooncake() + "\n" + mooncake(timestamp=4500, input_length=512, hash_ids=[4]))
    assert rows == [TraceRow(1, 0.0, 1025, 7, (4, 5, 9)), TraceRow(2, 1.5, 512, 7, (4,))]
    assert reader.kind is TraceKind.MOONCAKE


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"timestamp": 1, ', "line 2: no JSON"),
        ("[1, 2]", "line 2: must be a JSON object, got list"),
        ('{"timestamp": 1, "input_length": 5}', "line 2: output_length, hash_ids missing"),
        (mooncake(input_length=0), "line 2: input_length must be from 1 to 10000000, got 0"),
        (mooncake(input_length=12.5), "line 2: input_length must be a whole number of tokens, got '12.5'"),
        (mooncake(output_length=-3), "line 2: output_length must be a whole number of tokens, got '-3'"),
        (mooncake(timestamp=None), "line 2: timestamp must be a number, got 'None'"),
        (mooncake(timestamp=float("nan")), "line 2: timestamp must be between -2^53 and 2^53, got 'nan'"),
        (mooncake(hash_ids=[4, 5]), "line 2: 2 hash_ids for input_length=1025, which has 3 blocks of 512 tokens"),
        (mooncake(hash_ids=[4, 5, True]), "line 2: hash_ids must be a list of whole numbers from 0 to 2^63 - 1, got 'True'"),
        (mooncake(hash_ids="4 5 9"), "line 2: hash_ids must be a list of whole numbers from 0 to 2^63 - 1, got '4 5 9'"),
        ('{"timestamp": ' + "9" * 6000 + "}", "line 2: no JSON"),
        ("[" * 100_000, "line 2: no JSON"),
    ],
)
def test_a_bad_mooncake_row_is_named_and_left_out(row: str, message: str) -> None:
    reader, rows = read("\n".join((mooncake(), row, mooncake())))
    assert [found.line for found in rows] == [1, 3]
    (problem,) = reader.problems
    assert str(problem).startswith(message)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-17 09:13:00.1,77", "line 6: 2 columns where the header has 3"),
        ("yesterday,77,2", "line 6: TIMESTAMP must be a date and time, got 'yesterday'"),
        ("2023-02-30 09:13:00.1,77,2", "line 6: TIMESTAMP is no date and time that exists"),
        ("2023-11-17 09:13:00.1,77,0", "line 6: GeneratedTokens must be from 1 to 10000000, got 0"),
        ("2023-11-17 09:13:00.1,many,4", "line 6: ContextTokens must be a whole number of tokens, got 'many'"),
        ("x" * 200_000, "line 6: no CSV"),
    ],
)
def test_a_bad_azure_row_is_named_and_left_out(row: str, message: str) -> None:
    reader, rows = read(AZURE + row + "\n2023-11-17 09:14:00.1000000,3,3")
    assert len(rows) == 4
    assert [str(problem)[: len(message)] for problem in reader.problems] == [message]


def test_problems_are_counted_beyond_those_that_are_kept() -> None:
    reader, rows = read(mooncake() + "\n" + "{}\n" * 250)
    assert (len(rows), reader.bad_rows, len(reader.problems)) == (1, 250, MAX_NOTED_PROBLEMS)


def test_rows_come_out_before_the_rest_was_read() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield mooncake()

    reader = iter(TraceReader(endless()))
    assert [next(reader).line for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the trace is empty"),
        ("\n  \n", "the trace is empty"),
        ("time,prompt,output\n1,2,3", "line 1: no known trace, got 'time,prompt,output'; expected a JSON object"),
        ("2023-11-17 09:12:41.06,812,34", "line 1: no known trace"),
        ("Timestamp,Request tokens,Response tokens," + "x" * 200_000, "line 1: no known trace"),
        ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n2023-11-17 09:12:41.06,812,34,5", "line 1: no known trace"),
    ],
)
def test_text_that_is_no_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(ImportTextError) as caught:
        read(text)
    assert str(caught.value).startswith(message)
