from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.overflow import PrefixGroup, forecast_overflow, most_requests, pattern_slots, verify_rows
from kvcanary.errors import ConfigError


def group(requests: int, shared: int, own: int) -> PrefixGroup:
    return PrefixGroup(requests=requests, shared_tokens=shared, own_tokens=own)


def test_shared_tokens_cost_slots_once_and_rows_per_request() -> None:
    groups = [group(10, 500, 20)]
    assert verify_rows(groups) == 10 * 520
    assert pattern_slots(groups) == 500 + 10 * (20 + 1)
    assert verify_rows(groups, window=100) == 1000


def test_whole_pages_are_shared() -> None:
    # 500 = 7 pages of 64 and 52 tokens that each request keeps for itself.
    assert pattern_slots([group(3, 500, 20)], page_size=64) == 448 + 3 * 128
    assert pattern_slots([group(0, 500, 20)], page_size=64) == 0


def test_no_sharing_never_overflows() -> None:
    forecast = forecast_overflow(10_000, [group(20, 0, 400)])
    assert (forecast.rows, forecast.capacity, forecast.skipped, forecast.fits) == (8000, 30_000, False, True)
    assert forecast.skip_from_requests is None


def test_limits_are_the_first_that_overflow() -> None:
    forecast = forecast_overflow(10_000, [group(5, 6000, 30)])
    # 30 000 / 6030 = 4.97: four requests pass, five do not.
    assert forecast.skipped
    assert forecast.skip_from_requests == 5
    assert not forecast_overflow(10_000, [group(4, 6000, 30)]).skipped
    assert forecast.skip_from_prefix == 5971
    assert not forecast_overflow(10_000, [group(5, 5970, 30)]).skipped
    assert forecast_overflow(10_000, [group(5, 5971, 30)]).skipped
    assert "not verified" in forecast.text
    assert forecast.formula == "5 x (6000 + 30) = 30150 rows; 3 x 10000 = 30000"


def test_total_equal_to_the_capacity_is_verified() -> None:
    assert not forecast_overflow(1000, [group(5, 590, 10)]).skipped
    assert forecast_overflow(1000, [group(5, 591, 10)]).skipped


def test_a_prefix_that_ends_on_a_page_can_fit_where_a_shorter_one_does_not() -> None:
    # 3 x 704 rows over 5 requests: a prefix of 383 overflows, but shares 5 pages only and needs 320 + 5 x 128 = 960 slots;
    # 384 shares 6 pages and needs 384 + 5 x 64 = 704.
    assert forecast_overflow(704, [group(5, 383, 40)], page_size=64).slots == 960
    forecast = forecast_overflow(704, [group(5, 384, 40)], page_size=64)
    assert (forecast.slots, forecast.skip_from_prefix, forecast.skipped, forecast.fits) == (704, 384, True, True)


def test_request_rows_limit_the_forecast() -> None:
    assert forecast_overflow(10_000, [group(2, 3000, 10)]).skip_from_requests == 10
    assert forecast_overflow(10_000, [group(2, 3000, 10)], max_requests=9).skip_from_requests is None


def test_a_pattern_that_does_not_fit_says_so() -> None:
    forecast = forecast_overflow(1000, [group(50, 900, 40)])
    assert not forecast.fits
    assert "do not fit" in forecast.text


def test_several_groups() -> None:
    forecast = forecast_overflow(20_000, [group(8, 4000, 10)] * 2)
    assert forecast.rows == 16 * 4010
    assert forecast.skip_from_requests == 8
    mixed = forecast_overflow(20_000, [group(8, 4000, 10), group(1, 0, 50)])
    assert mixed.skip_from_requests is None
    assert mixed.rows == 8 * 4010 + 50


def test_bad_sizes_are_named() -> None:
    with pytest.raises(ConfigError, match="own_tokens must not be negative, got -1"):
        group(1, 1, -1)
    with pytest.raises(ConfigError, match="pool_slots must be at least 1, got 0"):
        forecast_overflow(0, [])
    with pytest.raises(ConfigError, match="page_size must be at least 1"):
        forecast_overflow(1, [], page_size=0)


@settings(deadline=None)
@given(
    st.integers(1, 20_000), st.integers(1, 3), st.integers(1, 200), st.integers(0, 4000), st.integers(0, 200), st.sampled_from([1, 16, 64])
)
def test_limits_agree_with_the_forecast_they_lead_to(pool: int, count: int, requests: int, shared: int, own: int, page: int) -> None:
    forecast = forecast_overflow(pool, [group(requests, shared, own)] * count, page_size=page)
    limit = forecast.skip_from_requests
    if limit is not None:
        at = forecast_overflow(pool, [group(limit, shared, own)] * count, page_size=page)
        below = forecast_overflow(pool, [group(limit - 1, shared, own)] * count, page_size=page)
        assert at.skipped
        assert at.fits
        assert not below.skipped
        assert limit * count > 3
    else:
        # No number of requests may both overflow and fit.
        for n in range(1, 60):
            at = forecast_overflow(pool, [group(n, shared, own)] * count, page_size=page)
            assert not (at.skipped and at.fits)
    if forecast.skipped and forecast.fits:
        assert limit is not None
        assert limit <= requests
        assert forecast.skip_from_prefix is not None
        assert forecast.skip_from_prefix <= shared


@given(st.integers(1, 50_000), st.integers(0, 900), st.integers(0, 300), st.integers(1, 4), st.sampled_from([1, 16, 64]), st.integers(1, 5))
def test_most_requests_fit_and_one_more_does_not(pool: int, shared: int, own: int, count: int, page: int, step: int) -> None:
    most = most_requests(pool, PrefixGroup(requests=1, shared_tokens=shared, own_tokens=own), count, page_size=page, step_tokens=step)

    def slots(requests: int) -> int:
        groups = [PrefixGroup(requests=requests, shared_tokens=shared, own_tokens=own)] * count
        return pattern_slots(groups, page, step)

    assert slots(most) <= pool
    assert slots(most + 1) > pool


def test_most_requests_needs_sizes() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        most_requests(10, PrefixGroup(requests=1, shared_tokens=0, own_tokens=1), page_size=0)
