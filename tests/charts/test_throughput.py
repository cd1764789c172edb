"""The throughput chart in words."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.analysis.frames import decode_variant, points_frame
from kvcanary.charts import throughput
from tests.stored_runs import points


def test_a_rate_above_its_bound_is_called_what_it_is() -> None:
    slow_bound = [replace(point, verify_bound=replace(point.verify, p50_s=3 * point.verify.p50_s)) for point in points() if point.verify]
    said = throughput.summary(decode_variant(points_frame(slow_bound), "none", "contiguous"))
    assert "verify reaches" in said
    assert "(share of its bound: above it, so no limit)" in said
    assert "(share of its bound: 10 %)" in said.replace("\u202f", " "), said
