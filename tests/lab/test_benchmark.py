"""What the sentence of a benchmark says of its rates."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.lab.benchmark import best_rates
from kvcanary.units import format_rate
from tests.stored_runs import points


def test_the_best_rates_of_decode_are_named_with_what_they_count() -> None:
    measured = points()
    last = measured[-1]
    assert last.verify is not None
    assert last.stamp is not None
    fast = replace(last, workload="prefill", stamp=replace(last.stamp, p50_s=last.stamp.p50_s / 1000))
    verify = max(point.verify.items_per_s for point in measured if point.verify is not None)
    stamp = max(point.stamp.items_per_s for point in measured if point.stamp is not None)
    text = best_rates([*measured, fast])
    assert text == best_rates(measured), "prefill and sweep have rates of their own"
    assert text == f"verify {format_rate(verify, 'slots')} and stamp {format_rate(stamp, 'tokens')} at best in decode; "


def test_without_a_decode_point_no_rate_is_claimed() -> None:
    assert best_rates([]) == ""
    assert best_rates([replace(point, workload="sweep") for point in points()]) == ""
