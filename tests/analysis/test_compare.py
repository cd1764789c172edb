"""Comparing runs: no difference where there is none, a difference where there is one, and what settings differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvcanary.analysis import bootstrap
from kvcanary.analysis.bootstrap import effective_count, ratio_interval
from kvcanary.analysis.compare import Comparison, compare, differences, judge
from kvcanary.errors import ConfigError
from kvcanary.lab.records import Point, RunRecord, RunState, Timing, Verdict

Draw = Callable[[np.random.Generator, int], np.ndarray]
DISTRIBUTIONS: dict[str, Draw] = {
    "lognormal": lambda rng, n: np.exp(0.1 * rng.standard_normal(n)),
    "exponential tail": lambda rng, n: 1 + rng.exponential(0.2, n),
    "cauchy tail": lambda rng, n: 1 + 0.02 * np.abs(rng.standard_cauchy(n)),
    "few values": lambda rng, n: 1 + 0.01 * rng.integers(0, 4, n),
    "two modes": lambda rng, n: np.where(rng.random(n) < 0.5, 1.0, 1.3) + 0.01 * rng.random(n),
}


def slow_waves(rng: np.random.Generator, n: int, memory: float = 0.6) -> np.ndarray:
    """Repeats that each carry `memory` of the one before."""
    values, state = np.empty(n), 0.0
    for index in range(-50, n):
        state = memory * state + rng.standard_normal()
        if index >= 0:
            values[index] = np.exp(0.05 * state)
    return values


def point(times: Sequence[float], *, scale: float = 1.0, batch: int = 16, **changes: object) -> Point:
    stamp = Timing.of([1e-4 * scale * value for value in times], items=batch, bytes_moved=batch * 56)
    return replace(Point(workload="decode", layout="contiguous", hash_mode="none", batch=batch, prefix=512, stamp=stamp), **changes)


def steady(scale: float = 1.0, *, repeats: int = 40, seed: int = 3, batch: int = 16, **changes: object) -> Point:
    noise = np.random.default_rng(seed).standard_normal(repeats)
    return point(np.exp(0.02 * noise).tolist(), scale=scale, batch=batch, **changes)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "DRAWS", 4000)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("repeats", [6, 40])
def test_two_runs_of_the_same_show_a_difference_in_less_than_5_percent_of_all_comparisons(name: str, repeats: int) -> None:
    """Six operations at once, and not one of them may be called faster or slower."""
    rng, draw, trials = np.random.default_rng(11), DISTRIBUTIONS[name], 150
    alarms = 0
    for _ in range(trials):
        sides = [[point(draw(rng, repeats), batch=batch) for batch in range(1, 7)] for _ in range(2)]
        found = compare(sides[:1], sides[1:])
        assert len(found.rows) == 6
        alarms += any(row.outcome in ("faster", "slower") for row in found.rows)
    assert alarms / trials < 0.05


@pytest.mark.usefixtures("few_draws")
def test_repeats_that_follow_each_other_count_for_less() -> None:
    """With memory 0.6 every fourth comparison would be a false alarm if each repeat counted in full."""
    rng, trials = np.random.default_rng(5), 250
    plain = waves = 0
    for _ in range(trials):
        above, below = slow_waves(rng, 128), slow_waves(rng, 128)
        waves += ratio_interval(above, below, level=0.95, rng=rng).excludes_one
        rng.shuffle(above)
        rng.shuffle(below)
        plain += ratio_interval(above, below, level=0.95, rng=rng).excludes_one
    assert waves / trials < 0.09
    assert plain / trials > 0.15


def test_independent_repeats_count_in_full_and_equal_ones_too() -> None:
    rng = np.random.default_rng(8)
    assert np.mean([effective_count(rng.standard_normal(128)) for _ in range(50)]) > 100
    assert 20 < np.mean([effective_count(slow_waves(rng, 128)) for _ in range(50)]) < 70
    assert effective_count(np.ones(9)) == 9
    assert 1 <= effective_count(np.arange(30.0)) < 4


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    rng, trials = np.random.default_rng(2), 300
    held = 0
    for _ in range(trials):
        above, below = 1.25 * np.exp(0.1 * rng.standard_normal(60)), np.exp(0.1 * rng.standard_normal(60))
        found = ratio_interval(above, below, level=0.95, rng=rng)
        held += found.low <= 1.25 <= found.high
    assert 0.92 < held / trials < 0.995


@pytest.mark.parametrize(("scale", "outcome"), [(1.25, "slower"), (0.8, "faster"), (1.0, "no difference shown")])
def test_a_fifth_is_found_and_has_a_direction(scale: float, outcome: str) -> None:
    (row,) = compare([[steady()]], [[steady(scale, seed=4)]]).rows
    assert row.outcome == outcome
    assert row.ratio == pytest.approx(1 / scale, rel=0.02)
    assert row.interval is not None
    assert row.interval.low < 1 / scale < row.interval.high


def test_the_same_comparison_gives_the_same_intervals() -> None:
    first, second = compare([[steady()]], [[steady(seed=9)]]), compare([[steady()]], [[steady(seed=9)]])
    assert first == second


@pytest.mark.parametrize(("repeats", "outcome"), [(3, "too few repeats"), (6, "slower")])
def test_few_repeats_show_nothing_however_far_apart(repeats: int, outcome: str) -> None:
    (row,) = compare([[steady(repeats=repeats)]], [[steady(5.0, repeats=repeats)]]).rows
    assert row.outcome == outcome


def test_a_run_of_before_samples_has_a_ratio_and_no_interval() -> None:
    old = steady()
    assert old.stamp is not None
    old = replace(old, stamp=replace(old.stamp, samples_s=()))
    found = compare([[old]], [[steady(2.0)]])
    assert (found.rows[0].outcome, found.rows[0].interval) == ("no repeats stored", None)
    assert judge(found, 0.1)[0] is Verdict.PARTIAL


def test_several_runs_a_side_are_compared_by_the_medians_of_the_runs() -> None:
    """Within each run the repeats agree to a thousandth; the runs of one side lie a tenth apart."""
    shifts = (0.95, 1.05, 1.0, 0.97, 1.02)
    side = [[steady(shift, seed=seed)] for seed, shift in enumerate(shifts)]
    same = [[steady(shift * 1.02, seed=seed + 50)] for seed, shift in enumerate(shifts)]
    apart = [[steady(shift * 1.5, seed=seed + 50)] for seed, shift in enumerate(shifts)]
    assert compare(side[:1], same[:1]).rows[0].outcome == "slower"
    assert compare(side, same).rows[0].outcome == "no difference shown"
    assert compare(side, apart).rows[0].outcome == "slower"


def test_only_the_same_work_is_compared() -> None:
    before = [steady(batch=4), steady(batch=8), steady(batch=16, layout="shuffled")]
    after = [steady(batch=8), steady(batch=16), steady(batch=8, prefix=256)]
    found = compare([before], [after])
    assert [(row.batch, row.layout) for row in found.rows] == [(8, "contiguous")]
    assert (found.only_before, found.only_after) == (2, 2)
    assert "4 more were measured in one of the two alone" in found.sentence


def test_one_hash_mode_against_another_is_what_the_hash_costs() -> None:
    found = compare([[steady()]], [[steady(1.5, hash_mode="partial")]])
    assert [(row.hash_mode, row.outcome) for row in found.rows] == [("none to partial", "slower")]
    both = [steady(), steady(1.5, hash_mode="partial")]
    assert [row.hash_mode for row in compare([both], [[steady(1.5, hash_mode="partial")]]).rows] == ["partial"]


def test_bounds_that_differ_are_the_machine() -> None:
    bound = steady().stamp
    slower = steady(1.6).stamp
    found = compare([[steady(stamp_bound=bound)]], [[steady(1.6, stamp_bound=slower)]])
    assert [row.op for row in found.rows] == ["stamp"]
    assert [row.op for row in found.bounds] == ["stamp_bound"]
    assert "that much is the machine" in found.sentence


def verdict(*scales: float, limit: float = 0.9, repeats: int = 40) -> Verdict:
    before = [steady(batch=batch, repeats=repeats) for batch in range(len(scales))]
    after = [steady(scale, batch=batch, seed=7, repeats=repeats) for batch, scale in enumerate(scales)]
    return judge(compare([before], [after]), limit)[0]


def test_the_judgement_at_a_limit() -> None:
    assert verdict(1.0, 1.05) is Verdict.PASS
    assert verdict(1.0, 1.3) is Verdict.FAIL
    assert verdict(1.0, 1.12) is Verdict.PARTIAL
    assert verdict(1.3, repeats=3) is Verdict.PARTIAL
    assert verdict() is Verdict.NOT_RUN
    assert verdict(1.3, limit=0.7) is Verdict.PASS


@pytest.mark.parametrize(
    ("op", "bound", "found"),
    [
        # The whole machine at half its speed, or at nearly half.
        (2.0, 2.0, Verdict.PARTIAL), (2.0, 1.9, Verdict.PARTIAL), (1.3, 1.0, Verdict.FAIL),
        # More than the machine lost, and slower on a faster machine.
        (4.0, 2.0, Verdict.FAIL), (1.3, 0.5, Verdict.FAIL),
    ],
)  # fmt: skip
def test_what_the_machine_lost_is_no_failure_of_the_canary(op: float, bound: float, found: Verdict) -> None:
    def both(op: float, bound: float, seed: int) -> list[Point]:
        return [replace(steady(op, batch=3, seed=seed), stamp_bound=steady(bound, seed=seed + 1).stamp)]

    verdict, sentence = judge(compare([both(1.0, 1.0, 1)], [both(op, bound, 5)]), 0.9)
    assert verdict is found
    assert ("Of the 1, 1 fell with the bounds of the machine" in sentence) == (found is Verdict.PARTIAL)


def test_a_noisy_bound_of_another_point_excuses_nothing() -> None:
    def both(slower: float, noisy: float, seed: int) -> list[Point]:
        here, there = steady(slower, batch=3, seed=seed), steady(batch=7, seed=seed + 1)
        return [replace(here, stamp_bound=steady(seed=seed + 2).stamp), replace(there, stamp_bound=steady(noisy, seed=seed + 3).stamp)]

    verdict, sentence = judge(compare([both(1.0, 1.0, 1)], [both(2.0, 2.5, 11)]), 0.9)
    assert (verdict, "the machine" in sentence) == (Verdict.FAIL, False)


def test_a_pass_says_how_sure_it_is() -> None:
    before = [steady(batch=1), steady(batch=2)]
    after = [steady(0.5, batch=1, seed=7), steady(1.1, batch=2, seed=9)]
    verdict, sentence = judge(compare([before], [after]), 0.9)
    assert (verdict, sentence) == (Verdict.PASS, "Pass: all 2 operations keep at least 0.9, 1 of them with their whole interval.")


def test_points_in_one_run_alone_make_a_pass_partial_and_leave_a_fail() -> None:
    base = [steady(batch=1), steady(batch=2)]
    assert judge(compare([base], [[steady(batch=1)]]), 0.9)[0] is Verdict.PARTIAL
    assert judge(compare([base], [[steady(1.4, batch=1)]]), 0.9)[0] is Verdict.FAIL


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), 1e6])
def test_a_limit_that_is_no_ratio_is_refused(limit: float) -> None:
    empty = Comparison(rows=(), bounds=(), only_before=0, only_after=0, level=0.95)
    with pytest.raises(ConfigError, match="fail-below must be a ratio"):
        judge(empty, limit)


def record(**spec: object) -> RunRecord:
    return RunRecord(
        id="20260101-000000-benchmark", kind="benchmark", state=RunState.DONE, spec={"settings": {}, "seed": 1, **spec}, created_s=1.0,
        backend={"name": "numba", "reason": "fastest"}, machine={"cores": 2}, versions={"torch": "2.9"},
    )  # fmt: skip


def test_only_what_differs_is_listed_and_a_written_default_is_no_difference() -> None:
    base = record()
    other = replace(
        record(settings={"page_size": "1", "pool_slot_count": "8192"}, seed=4), machine={"cores": 8, "processor": "new"},
        backend={"name": "torch", "reason": "asked for"},
    )  # fmt: skip
    found = {(item.group, item.name): item.values for item in differences([base, other])}
    assert found.pop(("settings", "pool_slot_count"))[1] == "8192"
    assert found == {
        ("run", "seed"): ("1", "4"), ("run", "backend that ran"): ("numba", "torch"), ("machine", "cores"): ("2", "8"),
        ("machine", "processor"): ("none", "new"),
    }  # fmt: skip
    assert differences([base, base]) == []


def test_what_one_run_alone_can_have_is_no_difference() -> None:
    campaign = replace(record(), kind="campaign", spec={"seed": 1, "configs": ["chain only", "partial, sweep 10"]})
    [configs] = [item for item in differences([record(), campaign]) if item.name == "configs"]
    assert configs.values == ("none", "chain only; partial, sweep 10")
    assert "settings" not in {item.group for item in differences([record(), campaign])}
    # Two that have settings are compared beside one that has none.
    names = [item.name for item in differences([record(), campaign, record(settings={"pool_slot_count": "8192"})])]
    assert "pool_slot_count" in names


def test_an_empty_text_and_nothing_are_the_same() -> None:
    assert differences([record(), replace(record(), spec={**record().spec, "continues": ""})]) == []


def test_settings_of_another_version_are_compared_as_they_stand() -> None:
    found = differences([record(), record(settings={"number_of_canaries": "12"})])
    assert ("settings", "number_of_canaries", ("none", "12")) in [(item.group, item.name, item.values) for item in found]
