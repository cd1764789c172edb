"""What configurations cost and find: order, frontier, latency shares, and the sentences with their flags."""

from __future__ import annotations

from dataclasses import replace

from kvcanary.faults.injectors import FaultRecord
from kvcanary.lab.campaign import DEFAULT_CONFIGS, CampaignPlan, CampaignRun, summarise
from kvcanary.lab.frontier import answer, best_cost, by_cost, config_costs, headline, latency_curves, launch_settings

FAULT = ("payload_bytes", "bit_flip")
NAMES = ("partial", "chain only", "strict")
PLAN = CampaignPlan(faults=(FAULT,), configs={name: DEFAULT_CONFIGS[name] for name in NAMES}, seeds=(0, 1, 2, 3), steps_after=5)


def run(config: str, seed: int, latency: int | None, canary_s: float) -> CampaignRun:
    record = FaultRecord(kind=FAULT[0], variant=FAULT[1], seed=seed, step=12, ops=(), slots=(7,), rids=(1,))
    return CampaignRun(
        key=(*FAULT, config, seed), record=record, changed=1, latency_steps=latency, corrupt_tokens=3, false_reports=0, reports={},
        slots_flagged=1, requests_flagged=1, steps=10, tokens=100, verified=500, canary_s=canary_s,
        latency_tokens=None if latency is None else 30 * (latency + 1),
    )  # fmt: skip


RUNS = [
    *(run("partial", seed, latency, 0.02) for seed, latency in enumerate([0, 2, 5, None])),
    *(run("chain only", seed, None, 0.01) for seed in range(4)),
    *(run("strict", seed, 0, 0.04) for seed in range(4)),
]
COSTS = config_costs(PLAN, RUNS)
CELLS = summarise(PLAN, RUNS)


def test_latency_shares_count_a_report_from_its_own_step_on() -> None:
    partial, chain = latency_curves(PLAN, RUNS, ["partial", "chain only"])
    assert (partial.injected, partial.within, partial.shares) == (4, (0, 1, 2, 3, 4, 5), (0.25, 0.25, 0.5, 0.5, 0.5, 0.75))
    assert (partial.p50, partial.p90) == (2.0, 4.4)
    assert (chain.injected, set(chain.shares), chain.p50, chain.p90) == (4, {0.0}, None, None)


def test_latency_in_tokens_has_a_point_for_each_report_and_ends_where_all_curves_do() -> None:
    partial, strict = latency_curves(PLAN, RUNS, ["partial", "strict"], by_tokens=True)
    assert (partial.within, partial.shares) == ((0, 30, 90, 180), (0.0, 0.25, 0.5, 0.75))
    assert (partial.p50, partial.p90) == (90.0, 162.0)
    assert (strict.within, strict.shares, strict.p50) == ((0, 30, 180), (0.0, 1.0, 1.0), 30.0)
    assert [partial.share_at(value) for value in (0, 29.9, 30, 162, 1000)] == [0.0, 0.0, 0.25, 0.5, 0.75]


def test_a_run_that_had_to_wait_changes_no_cost() -> None:
    waited = [*RUNS[:3], run("partial", 3, None, 9.0), *RUNS[4:]]
    assert config_costs(PLAN, waited) == COSTS
    assert summarise(PLAN, waited) == CELLS
    assert config_costs(PLAN, [replace(RUNS[0], steps=0, canary_s=0.0)])[0].canary_s_per_step == 0.0


def test_costs_are_per_step_and_ordered() -> None:
    ordered = by_cost(COSTS)
    assert [row.config for row in ordered] == ["chain only", "partial", "strict"]
    assert [row.canary_s_per_step for row in ordered] == [0.001, 0.002, 0.004]
    assert [row.on_frontier for row in ordered] == [True, True, True]
    assert [(row.latency_p50, row.latency_tokens_p50, row.latency_tokens_p90) for row in ordered] == [
        (None, None, None),
        (2.0, 90.0, 162.0),
        (0.0, 30.0, 30.0),
    ]


def test_the_best_is_one_that_sglang_can_be_started_with() -> None:
    best = best_cost(PLAN, COSTS)
    assert best is not None
    assert (best.config, best.rate) == ("partial", 0.75)
    assert best_cost(PLAN, []) is None


def test_settings_are_sglangs_own_and_complete() -> None:
    assert launch_settings(DEFAULT_CONFIGS["partial, sweep 10"]) == (
        "--kv-canary log --kv-canary-real-data partial --kv-canary-sweep-interval 10"
    )
    words = launch_settings(DEFAULT_CONFIGS["all, V, token check, sweep 4"]).split()
    assert {"SGLANG_KV_CANARY_ENABLE_MHA_V=1", "SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1", "--kv-canary-real-data", "all"} <= set(words)


def test_the_sentences_name_flags_share_steps_and_price() -> None:
    best = best_cost(PLAN, COSTS)
    assert best is not None
    text = answer(PLAN, best, CELLS).replace("\u202f", " ")
    assert "--kv-canary-real-data partial finds 75 % of 4 injected" in text
    assert "at 2 ms of canary per step, 10 % of a step of 20 ms; no fault is out of its reach." in text
    head = headline(PLAN, COSTS, CELLS).replace("\u202f", " ")
    assert head.startswith(
        "The canary reports from 0 % (chain only) to 75 % (partial) of the injected faults, kvcanary's strict checks 100 %."
    )
    assert "0 of 1 faults are out of reach" in head


def test_a_cell_that_has_not_run_yet_is_no_cell_without_a_victim() -> None:
    idle = [replace(one, changed=0, latency_steps=None) for one in RUNS if one.key[2] == "partial"]
    cells = {cell.config: cell for cell in summarise(PLAN, idle)}
    assert [(cells[name].outcome, cells[name].runs) for name in ("partial", "strict")] == [("no victim", 4), ("not run", 0)]
