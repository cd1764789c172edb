"""Logs with a known cause: campaign runs of every fault that SGLang can report, printed as SGLang would print them.

The deployment and the mode are drawn per run from those in which the fault can happen, so that neither gives the fault away: a decode
server also has bad memory, and a host tier also has wrong mappings. `kvcanary.analysis.diagnosis_score` reads the logs and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import find, reach
from kvcanary.faults.injectors import Injector
from kvcanary.faults.stage import RELOAD_KINDS
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign import ALL_FAULTS, DEFAULT_CONFIGS, CampaignPlan, Fault, RunKey, canary_config, serving_options, sweep_due
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.lab.sglang_log import CanaryPrinter, Deployment, Mode, start_lines
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.workload import synthetic

PLAIN, DECODE = Deployment(name="plain"), Deployment(name="decode", disaggregation="decode")
HOST_TIER = Deployment(name="host tier", host_tier=True)
MODES: tuple[Mode, ...] = ("log", "raise")
# SGLang has no strict checks, so nothing would be printed of them.
SGLANG_CONFIGS: Mapping[str, CanaryConfig] = {name: config for name, config in DEFAULT_CONFIGS.items() if not config.strict}
_NEEDS_DECODE = ("pd_transfer",)
# A decode server keeps no prefix tree.
_NEEDS_TREE = (("stale_prefix_hit", "node_kept_after_free"), ("payload_bytes", "cached_only"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """One printed run. text is empty when nothing was reported; without_start is the same log cut before its first report."""

    key: RunKey
    deployment: str
    mode: Mode
    text: str
    without_start: str


def visible_cells(configs: Mapping[str, CanaryConfig] = SGLANG_CONFIGS) -> list[tuple[Fault, str]]:
    """Every fault with each configuration that can see it, by the catalogue."""
    return [
        (fault, name)
        for fault in ALL_FAULTS
        for name, config in configs.items()
        if find(*fault).in_memory and reach(find(*fault), config).visible
    ]


def deployments(fault: Fault) -> tuple[Deployment, ...]:
    """Servers on which a fault can happen."""
    kind = fault[0]
    if kind in RELOAD_KINDS:
        return (HOST_TIER,)
    if kind in _NEEDS_DECODE:
        return (DECODE,)
    if kind == "swa_eviction":
        return (PLAIN,)
    return (PLAIN, HOST_TIER) if fault in _NEEDS_TREE else (PLAIN, DECODE, HOST_TIER)


def known_logs(seeds: Sequence[int], backend: Backend) -> Iterator[KnownLog]:
    """One log for each visible cell and seed; equal seeds give equal logs."""
    plan = CampaignPlan(configs=SGLANG_CONFIGS, seeds=tuple(seeds))
    for fault, config in visible_cells():
        for seed in seeds:
            yield print_run(plan, (*fault, config, seed), backend)


def print_run(plan: CampaignPlan, key: RunKey, backend: Backend) -> KnownLog:
    """Serve the run of a key and print what its canary says."""
    kind, variant, config_name, seed = key
    config, options = canary_config(plan, kind, config_name), serving_options(plan, (kind, variant), seed)
    draw = np.random.default_rng([seed, ALL_FAULTS.index((kind, variant)), list(plan.configs).index(config_name)])
    places = deployments((kind, variant))
    deployment, mode = places[int(draw.integers(len(places)))], MODES[int(draw.integers(len(MODES)))]
    engine = ServingEngine(options, synthetic(replace(plan.mix, seed=seed), options.vocab_size))
    executor, injector = CanaryExecutor(options, config, backend), Injector(kind, variant, seed=seed, start_step=plan.start_step)
    printer = CanaryPrinter(mode=mode, ring_capacity=config.ring_capacity, step_s=options.step_s)
    printer.start(start_lines(options, config, deployment, mode))
    first_report = 0
    for step in engine.steps():
        injector.offer(engine, step)
        record = injector.record
        if printer.ended or (record is not None and step.index > record.step + plan.steps_after):
            break
        sweep = sweep_due(engine, config, step.index)
        report = executor.run(step, record.ops if record else (), sweep)
        if report.violations and not first_report:
            first_report = len(printer.lines)
        printer.step(step.index, report.rows, report.violations, sweep is not None)
    # The host prints a report one step late; one of the very last forward is never printed.
    printed = any("kv_canary violation:" in line for line in printer.lines)
    return KnownLog(
        key=key,
        deployment=deployment.name,
        mode=mode,
        text="\n".join((*printer.lines, "")) if printed else "",
        without_start="\n".join((*printer.lines[first_report:], "")) if printed else "",
    )
