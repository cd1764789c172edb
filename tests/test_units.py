"""Reading and writing of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary import units
from kvcanary.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16384", 16384),
        ("16_384", 16384),
        ("16 384", 16384),
        ("16\u202f384", 16384),
        ("16k", 16000),
        ("16Ki", 16384),
        ("1.5M", 1_500_000),
        ("2^20", 1 << 20),
        ("2**20", 1 << 20),
        ("-1", -1),
        (" 7 ", 7),
        ("0.5Ki", 512),
        ("+3", 3),
    ],
)
def test_integers_as_operators_write_them(text: str, value: int) -> None:
    assert units.parse_integer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12.5",
        "nan",
        "inf",
        "1e400",
        "1e3",
        "sixteen",
        "1,000",
        "16kb",
        "1.0005k",
        "2^64",
        "9^9999",
        "9" * 30,
        "1__0",
        "0x10",
        "\u0661\u0662x",
    ],
)
def test_what_is_no_whole_number_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted forms: 16384"):
        units.parse_integer(text)


@given(st.integers(-units.INT64_MAX, units.INT64_MAX))
def test_a_formatted_count_reads_back(value: int) -> None:
    assert units.parse_integer(units.format_count(value)) == value
    assert units.parse_integer(str(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("80GiB", 80 << 30), ("80 GB", 80 * 10**9), ("81559MiB", 81559 << 20), ("1.5TiB", 3 << 39), ("123", 123), ("0.5 gib", 1 << 29)],
)
def test_sizes_tell_gb_from_gib(text: str, value: int) -> None:
    assert units.parse_size(text) == value


@pytest.mark.parametrize("text", ["", "80 Gigs", "-1GiB", "1.2.3GiB", "lots", "99999999999TiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted forms"):
        units.parse_size(text)


@given(st.integers(0, units.INT64_MAX))
def test_plain_bytes_read_back(value: int) -> None:
    assert units.parse_size(str(value)) == value


@pytest.mark.parametrize(("text", "value"), [("0.875", 0.875), ("87.5%", 0.875), ("87.5 %", 0.875), (".9", 0.9), ("1", 1.0)])
def test_fractions(text: str, value: float) -> None:
    assert units.parse_fraction(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "half", "nan", "1e-3", "0,5"])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted forms"):
        units.parse_fraction(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1.0, "100 %"), (0.9999999, "> 99.9 %"), (0.996, "99.6 %"), (0.0194, "1.9 %"), (0.00012, "0.012 %"), (0.71, "71 %")],
)
def test_a_fraction_never_rounds_to_all_or_nothing(value: float, text: str) -> None:
    assert units.format_fraction(value).replace(units.THIN_SPACE, " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 %"), (1.0, "+100 %"), (-1.0, "-100 %"), (-0.9997, "< -99.9 %"), (0.9997, "> +99.9 %"), (0.0002, "+0.02 %"), (-0.25, "-25 %")],
)
def test_a_difference_of_shares_has_a_sign(value: float, text: str) -> None:
    assert units.format_points(value).replace(units.THIN_SPACE, " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (50_293_888, "47.96 MiB"), (139.7 * 2**30, "139.70 GiB"), (-2048, "-2.00 KiB")],
)
def test_bytes_in_binary_units(value: float, text: str) -> None:
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.2e-9, "3.2 ns"), (4.5e-5, "45 µs"), (0.0123, "12.3 ms"), (0.9, "900 ms"), (61, "61 s"), (600, "10 min"), (9000, "2.5 h")],
)
def test_times_in_the_unit_one_would_say(value: float, text: str) -> None:
    assert units.format_seconds(value) == text


def test_a_rate_names_what_it_counts() -> None:
    assert units.format_rate(12_345_678, "tokens") == "12.3 M tokens/s"
    assert units.format_rate(12.3, "slots") == "12.3 slots/s"


def test_a_time_has_a_unit() -> None:
    assert [units.parse_seconds(text) for text in ("20 ms", "20ms", "1.5 s", "300 us", "300 µs", "2 min", "7ns")] == pytest.approx(
        [0.02, 0.02, 1.5, 3e-4, 3e-4, 120.0, 7e-9]
    )
    for text in ("20", "", "ms", "-1 s", "0 s", "1e3 s", "1 h", "nan s", "9" * 50 + " s"):
        with pytest.raises(ConfigError, match="must be a time above zero with its unit"):
            units.parse_seconds(text)


def test_digits_are_grouped_in_a_formula_but_not_in_names_and_decimals() -> None:
    text = "3 * pool_slot_count 262144 = 786432; 4096 rows, 999 pages, 0.123456, bf16_100000, 262144.5, got 262144."
    grouped = (
        "3 * pool_slot_count 262\u202f144 = 786\u202f432; 4\u202f096 rows, 999 pages, 0.123456, bf16_100000, 262144.5, got 262\u202f144."
    )
    assert units.group_digits(text) == grouped


@given(st.integers(0, 10**12))
def test_a_number_in_a_formula_is_written_as_one_beside_it(value: int) -> None:
    assert units.group_digits(f"rows {value} = {value}") == f"rows {units.format_count(value)} = {units.format_count(value)}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (["a", "b"], "a, b"), (["all, sweep 10", "strict"], "all, sweep 10; strict"), ([], ""), (0.5, "0.5")],
)
def test_a_list_of_names_with_commas_is_told_apart(value: object, text: str) -> None:
    assert units.format_value(value) == text
