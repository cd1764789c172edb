"""Comparing campaigns: no difference where there is none, one where there is one, and a limit that is judged by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvcanary.analysis.bootstrap import median_interval
from kvcanary.analysis.compare_campaigns import Rate, compare_campaigns, judge_campaigns
from kvcanary.lab.campaign_plan import CampaignRun
from kvcanary.lab.records import Verdict

VARIANTS = ("one", "two", "three")


def run(variant: str, config: str, seed: int, *, found: bool, canary_s: float = 0.02, kind: str = "bytes", changed: int = 1) -> CampaignRun:
    return CampaignRun(
        key=(kind, variant, config, seed), record=None, changed=changed, latency_steps=1 if found else None, corrupt_tokens=0,
        false_reports=0, reports={}, slots_flagged=0, requests_flagged=0, steps=20, tokens=100, verified=2000, canary_s=canary_s,
    )  # fmt: skip


def campaign(
    rate: float,
    *,
    seed: int = 1,
    seeds: int = 10,
    speed: float = 1.0,
    configs: Sequence[str] = ("partial",),
    kinds: Sequence[str] = ("bytes",),
) -> list[CampaignRun]:
    """Every variant of every kind with every seed; each is found by chance, and costs what its variant costs, with 10 % of noise."""
    rng = np.random.default_rng(seed)
    return [
        run(
            variant, config, number, kind=kind, found=bool(rng.random() < rate),
            canary_s=0.01 * (1 + place) / speed * float(np.exp(0.1 * rng.standard_normal())),
        )
        for kind in kinds for config in configs for place, variant in enumerate(VARIANTS) for number in range(seeds)
    ]  # fmt: skip


@pytest.mark.parametrize("rate", [0.03, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("seeds", [3, 20])
def test_two_campaigns_of_the_same_show_a_difference_in_less_than_5_percent_of_all_comparisons(rate: float, seeds: int) -> None:
    """Four rates and two costs at once, and not one of them may be called a difference."""
    trials, alarms = 100, 0
    for trial in range(trials):
        sides = [campaign(rate, seed=2 * trial + side, seeds=seeds, configs=("a", "b"), kinds=("bytes", "cells")) for side in (0, 1)]
        found = compare_campaigns(*sides)
        assert (len(found.rates), len(found.costs)) == (4, 2)
        outcomes = {row.outcome for row in (*found.rates, *found.costs)}
        alarms += not outcomes <= {"no difference shown", "too few repeats"}
    assert alarms / trials < 0.05


def test_a_difference_is_shown_and_named() -> None:
    before, after = campaign(1.0, seeds=20), campaign(0.4, seed=2, seeds=20, speed=0.7)
    found = compare_campaigns(before, after)
    (rate,), (cost,) = found.rates, found.costs
    assert (rate.outcome, cost.outcome) == ("finds less", "slower")
    assert (rate.before.detected, rate.before.injected, rate.after.injected) == (60, 60, 60)
    assert rate.low < rate.difference < rate.high < 0
    assert cost.interval.low < 0.7 < cost.interval.high < 1
    assert cost.ratio == pytest.approx(0.7, rel=0.06)
    assert (cost.before_verified, cost.after_verified) == (100.0, 100.0)
    assert found.sentence == "1 detection rates compared: 1 finds less. 1 configurations by time per step: 1 slower."
    back = compare_campaigns(after, before)
    assert (back.rates[0].outcome, back.costs[0].outcome) == ("finds more", "faster")


def test_the_cost_of_one_fault_is_compared_with_that_of_the_same_fault() -> None:
    """One variant costs three times as much as another, which would drown a difference of 10 %."""
    before, after = campaign(1.0, seeds=20), campaign(1.0, seed=2, seeds=20, speed=0.9)
    assert compare_campaigns(before, after).costs[0].outcome == "slower"
    reordered = sorted(after, key=lambda one: -one.key[3])
    assert compare_campaigns(before, reordered).costs == compare_campaigns(before, after).costs


def test_only_what_both_ran_is_compared() -> None:
    before = [*campaign(1.0), *(run("four", "partial", seed, found=False) for seed in range(10))]
    after = [*campaign(1.0, seed=2), *(run("one", "all", seed, found=True) for seed in range(10))]
    found = compare_campaigns(before, after)
    assert [(row.kind, row.config, row.before.detected, row.before.injected) for row in found.rates] == [("bytes", "partial", 30, 30)]
    assert (found.only_before, found.only_after) == (1, 1)
    assert found.sentence.endswith("2 more cells ran in one of the two alone.")
    nothing = compare_campaigns(before, [run("five", "partial", 0, found=True)])
    assert nothing.sentence == "The two have no fault and configuration in common, so there is nothing to compare."
    assert judge_campaigns(nothing, 0.9) == (Verdict.NOT_RUN, nothing.sentence)


def test_runs_whose_fault_changed_nothing_are_no_evidence() -> None:
    idle = [replace(one, changed=0, latency_steps=None) for one in campaign(1.0)]
    (row,) = compare_campaigns(campaign(1.0), idle).rates
    assert (row.outcome, row.after.injected, row.after.value) == ("nothing injected", 0, 0.0)


def test_a_rate_without_injected_faults_is_not_passed() -> None:
    idle = [replace(one, changed=0, latency_steps=None) for one in campaign(1.0, seeds=20)]
    verdict, sentence = judge_campaigns(compare_campaigns(campaign(1.0, seeds=20), idle), 0.9)
    assert (verdict, "bytes under partial found 0 of 0, before 60 of 60" in sentence) == (Verdict.PARTIAL, True)
    nothing = [replace(one, key=(*one.key[:3], one.key[3] + 50)) for one in idle]
    assert judge_campaigns(compare_campaigns(idle, nothing), 0.9)[0] is Verdict.NOT_RUN


def test_a_limit_above_1_asks_for_a_higher_speed_and_no_rate_above_1() -> None:
    faster = compare_campaigns(campaign(1.0, seeds=20), campaign(1.0, seed=2, seeds=20, speed=2.0))
    assert judge_campaigns(faster, 1.5)[0] is Verdict.PASS
    assert judge_campaigns(compare_campaigns(campaign(1.0, seeds=20), campaign(1.0, seed=2, seeds=20)), 1.5)[0] is Verdict.FAIL


def test_runs_without_a_like_have_no_cost() -> None:
    after = [replace(one, key=(*one.key[:3], one.key[3] + 50)) for one in campaign(1.0)]
    found = compare_campaigns(campaign(1.0), after)
    assert (len(found.rates), found.costs) == (1, ())
    assert found.sentence == "1 detection rates compared: 1 no difference shown."


@pytest.mark.parametrize(
    ("rate", "speed", "verdict", "words"),
    [
        (1.0, 1.2, Verdict.PASS, "Pass: all 2 rates and speeds keep at least 0.8."),
        (0.4, 1.2, Verdict.FAIL, "Fail: 1 of 2 rates and speeds keep less than 0.8; bytes under partial found"),
        (1.0, 0.5, Verdict.FAIL, "Fail: 1 of 2 rates and speeds keep less than 0.8; partial at 0.4"),
        (0.75, 1.2, Verdict.PARTIAL, "Partial: 1 of 2 rates and speeds may keep less than 0.8 and the repeats cannot tell; bytes under"),
        (1.0, 0.78, Verdict.PARTIAL, "Partial: 1 of 2 rates and speeds may keep less than 0.8 and the repeats cannot tell; partial at 0.7"),
    ],
)
def test_a_limit_fails_by_an_interval_and_not_by_a_figure(rate: float, speed: float, verdict: Verdict, words: str) -> None:
    found = compare_campaigns(campaign(1.0, seeds=20), campaign(rate, seed=4, seeds=20, speed=speed))
    judged, sentence = judge_campaigns(found, 0.8)
    assert (judged, sentence[: len(words)]) == (verdict, words)


def test_half_the_speed_in_three_repeats_is_no_failure_yet() -> None:
    few = compare_campaigns(campaign(1.0, seeds=1), campaign(1.0, seed=4, seeds=1, speed=0.5))
    assert (few.costs[0].ratio < 0.6, judge_campaigns(few, 0.8)[0]) == (True, Verdict.PARTIAL)


@pytest.mark.parametrize(
    ("detected", "injected", "low", "high"),
    [(81, 263, 0.2535, 0.3682), (15, 148, 0.0598, 0.1644), (0, 20, 0.0, 0.2005), (1, 29, 0.0018, 0.1963)],
)
def test_bounds_of_a_rate_are_those_of_newcombe(detected: int, injected: int, low: float, high: float) -> None:
    """Table I of Newcombe (1998), Two-sided confidence intervals for the single proportion: method 4, 95 %."""
    assert Rate(detected=detected, injected=injected).bounds(1.959964) == pytest.approx((low, high), abs=5e-5)


def test_a_median_interval_needs_enough_values() -> None:
    """Of eight all lie above the median or all below in 2 of 256 cases."""
    values = [2.0 + 0.1 * place for place in (3, 0, 5, 1, 7, 2, 6, 4)]
    few, enough = median_interval(values[:7], level=0.99), median_interval(values, level=0.99)
    assert (few.enough, few.excludes_one, enough.enough, enough.excludes_one) == (False, False, True, True)
    assert (enough.low, enough.high) == (2.0, pytest.approx(2.7))
    narrower = median_interval(values, level=0.9)
    assert (narrower.low, narrower.high) == (pytest.approx(2.1), pytest.approx(2.6))
    for wrong, level in (([], 0.9), ([1.0], 1.0)):
        with pytest.raises(ValueError, match=r"must be between 0 and 1|at least one repeat"):
            median_interval(wrong, level=level)


def test_a_median_lies_outside_its_interval_as_often_as_it_may() -> None:
    rng, trials = np.random.default_rng(9), 2000
    for count in (9, 30):
        missed = 0
        for _ in range(trials):
            found = median_interval(rng.exponential(1.0, count).tolist(), level=0.95)
            missed += not found.low <= np.log(2) <= found.high
        assert 0.005 < missed / trials < 0.05
