"""Fault campaign: every fault under every canary configuration with every seed, one short served run each.

A run is a cell with a seed. Runs are independent, so a campaign stops between two of them and goes on with those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import replace

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.injectors import Injector
from kvcanary.faults.memory import Group
from kvcanary.faults.stage import RELOAD_KINDS, stage
from kvcanary.kernels.backends import get_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign_configs import CONFIGS, DEFAULT_CONFIGS, STRICT_CONFIGS
from kvcanary.lab.campaign_plan import ALL_FAULTS, CampaignPlan, CampaignRun, Fault, RunKey
from kvcanary.lab.campaign_pool import processes_for, run_in_processes
from kvcanary.lab.campaign_summary import CellSummary, summarise, wilson
from kvcanary.lab.campaign_tally import Tally
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.workload import synthetic

__all__ = [
    "ALL_FAULTS",
    "CONFIGS",
    "DEFAULT_CONFIGS",
    "STRICT_CONFIGS",
    "CampaignPlan",
    "CampaignRun",
    "CellSummary",
    "Fault",
    "RunKey",
    "canary_config",
    "requests_of",
    "run_campaign",
    "run_one",
    "serving_options",
    "summarise",
    "sweep_due",
    "wilson",
]


def run_campaign(
    plan: CampaignPlan, backend_name: str, done: Collection[RunKey] = (), processes: int | None = None
) -> Generator[CampaignRun]:
    """The runs of a plan that are not in `done`, in order; to stop, close the generator.

    backend_name: as `get_backend`, because each process makes its own. processes: over how many they are spread, None for what pays on this
    host; over several the first run of each configuration comes ahead. Raises JobError when one is lost.
    """
    finished = set(done)
    missing = [key for key in plan.run_keys() if key not in finished]
    processes = processes_for(len(missing)) if processes is None else processes
    here = runner(plan, backend_name)
    if processes == 1:
        yield from map(here, missing)
        return
    # The first of each configuration runs here: what is compiled is compiled before several processes want it.
    firsts = list({key[2]: key for key in reversed(missing)}.values())
    yield from map(here, firsts)
    yield from run_in_processes(runner, (plan, backend_name), [key for key in missing if key not in firsts], processes)


def runner(plan: CampaignPlan, backend_name: str) -> Callable[[RunKey], CampaignRun]:
    """`run_one` of a plan in this process.

    One run goes ahead and is thrown away for each configuration, so that no compile time stands in its seconds.
    """
    backend, warm = get_backend(backend_name), set[str]()

    def run(key: RunKey) -> CampaignRun:
        if key[2] not in warm:
            warm.add(key[2])
            run_one(plan, key, backend)
        return run_one(plan, key, backend)

    return run


def run_one(plan: CampaignPlan, key: RunKey, backend: Backend) -> CampaignRun:
    """Serve the workload with one fault under one configuration. Equal keys give equal runs but for the seconds."""
    kind, variant, config_name, seed = key
    config, options = canary_config(plan, kind, config_name), serving_options(plan, (kind, variant), seed)
    engine = ServingEngine(options, requests_of(plan, options, seed))
    executor, injector = CanaryExecutor(options, config, backend), Injector(kind, variant, seed=seed, start_step=plan.start_step)
    tally = Tally(options.pool_slot_count + options.page_size)
    for step in engine.steps():
        injector.offer(engine, step)
        record = injector.record
        if record is not None and step.index > record.step + plan.steps_after:
            break
        sweep = sweep_due(engine, config, step.index)
        report = executor.run(step, record.ops if record else (), sweep)
        tally.add(step, report, record, executor.verify_plans[Group.FULL], sweep)
    tally.finish(engine.owners())
    return CampaignRun(
        key=key,
        record=injector.record,
        changed=tally.changed,
        latency_steps=tally.latency_steps,
        corrupt_tokens=tally.corrupt_tokens,
        false_reports=tally.false_reports,
        reports=dict(tally.reports),
        slots_flagged=len(tally.slots),
        requests_flagged=len(tally.requests),
        steps=tally.steps,
        tokens=tally.tokens,
        verified=tally.verified,
        canary_s=tally.canary_s,
        latency_tokens=tally.latency_tokens,
        false_causes=dict(tally.false_causes),
        rows_lost=tally.rows_lost,
        skipped=tally.skipped,
        coverage=tally.coverage,
    )


def serving_options(plan: CampaignPlan, fault: Fault, seed: int) -> ServingOptions:
    """What a run of a fault serves: the plan's pool, with the mechanism that the fault belongs to."""
    return stage(replace(plan.options, seed=seed), *fault)


def canary_config(plan: CampaignPlan, kind: str, name: str) -> CanaryConfig:
    """The configuration a run is made under. Where KV comes back from the host its records come along.

    SGLang leaves them behind: an alarm at every reload, with damage or without. That is a variant of its own; with it in every run of
    the kind, no other variant would show.
    """
    config = plan.configs[name]
    return replace(config, records_follow=True) if kind in RELOAD_KINDS else config


def requests_of(plan: CampaignPlan, options: ServingOptions, seed: int) -> Iterator[RequestSpec]:
    """The requests that a run with this seed serves."""
    if plan.trace is not None:
        return plan.trace.requests(options.vocab_size, seed)
    return synthetic(replace(plan.mix, seed=seed), options.vocab_size)


def sweep_due(engine: ServingEngine, config: CanaryConfig, index: int) -> dict[Group, SweepEntries] | None:
    """The entries to sweep at a step, per group; None where no sweep is due."""
    tree = engine.memory.tree
    if tree is None or not config.sweep_interval or index % config.sweep_interval:
        return None
    return {Group.FULL: tree.walk(), Group.SWA: tree.walk(resident_only=True)}
