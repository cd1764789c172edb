"""Fault campaign: every fault under every canary configuration with every seed, one short served run each.

A run is a cell with a seed. Runs are independent, so a campaign stops between two of them and goes on with those that are missing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find, reach
from kvcanary.faults.injectors import FaultRecord, Injector
from kvcanary.faults.memory import Group
from kvcanary.faults.stage import stage
from kvcanary.kernels.types import Backend
from kvcanary.lab.campaign_load import TraceSample
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.layout import LaunchTag, RealKvHashMode, reason_labels
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.workload import Mix, synthetic

Fault = tuple[str, str]
RunKey = tuple[str, str, str, int]

ALL_FAULTS: tuple[Fault, ...] = tuple((fault.kind, variant.name) for fault in CATALOGUE for variant in fault.variants)
DEFAULT_CONFIGS: Mapping[str, CanaryConfig] = {
    "chain only": CanaryConfig(),
    "partial": CanaryConfig(real_data=RealKvHashMode.PARTIAL),
    "partial, sweep 10": CanaryConfig(real_data=RealKvHashMode.PARTIAL, sweep_interval=10),
    "all, sweep 10": CanaryConfig(real_data=RealKvHashMode.ALL, sweep_interval=10),
    "all, V, token check, sweep 4": CanaryConfig(
        real_data=RealKvHashMode.ALL, verify_v_half=True, verify_token_assert=True, write_input_assert=True, sweep_interval=4
    ),
    "strict": CanaryConfig(
        real_data=RealKvHashMode.ALL,
        verify_v_half=True,
        verify_token_assert=True,
        write_input_assert=True,
        sweep_interval=4,
        strict=True,
    ),
}
_SMALL_POOL = ServingOptions(pool_slot_count=512, req_to_token_pool_size=8, max_seq_len_per_req=160, chunked_prefill_size=64)
_SMALL_MIX = Mix(requests=24, rate_per_s=20.0, prompt_len=(8, 40), output_len=(8, 32), prefixes=2, prefix_len=(16, 40))


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """What to run. A fault strikes from start_step on; a run ends steps_after steps later, or at the end of the workload.

    trace: requests to serve instead of the mix.
    """

    faults: tuple[Fault, ...] = ALL_FAULTS
    configs: Mapping[str, CanaryConfig] = field(default_factory=lambda: DEFAULT_CONFIGS)
    seeds: tuple[int, ...] = tuple(range(10))
    options: ServingOptions = _SMALL_POOL
    mix: Mix = _SMALL_MIX
    trace: TraceSample | None = None
    start_step: int = 12
    steps_after: int = 20

    def __post_init__(self) -> None:
        for kind, variant in self.faults:
            find(kind, variant)
        for name in ("faults", "configs", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must not be empty; a campaign needs at least one of each")

    def run_keys(self) -> list[RunKey]:
        """Every run that has something to inject, in order."""
        injected = [(kind, variant) for kind, variant in self.faults if find(kind, variant).in_memory]
        return [(kind, variant, config, seed) for kind, variant in injected for config in self.configs for seed in self.seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRun:
    """One run. record is None when no victim turned up; latencies are None when nothing was reported.

    latency_steps counts forwards from the fault to the first report on the device. corrupt_tokens: tokens that the victims computed from
    the fault up to and including the forward that reported, or to the end. false_reports: reports before the fault. reports: by
    'LAUNCH reason'. slots_flagged, requests_flagged: blast radius of the reports. canary_s: seconds in plan, verify and stamp.
    """

    key: RunKey
    record: FaultRecord | None
    changed: int
    latency_steps: int | None
    corrupt_tokens: int
    false_reports: int
    reports: Mapping[str, int]
    slots_flagged: int
    requests_flagged: int
    steps: int
    tokens: int
    verified: int
    canary_s: float

    @property
    def detected(self) -> bool:
        """Whether anything was reported at or after the fault."""
        return self.latency_steps is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """Runs of one fault under one configuration. rate with its 95 % Wilson interval, over runs whose fault changed something.

    visible, certain and reason come from the catalogue: a cell that is not visible is out of reach, not missed. unexpected counts
    reports of such a cell: something that the catalogue does not know.
    """

    kind: str
    variant: str
    config: str
    visible: bool
    certain: bool
    reason: str
    injected: int
    detected: int
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    latency_p50: float | None
    latency_p90: float | None
    corrupt_tokens_p50: float | None
    reports: Mapping[str, int]
    false_reports: int
    unexpected: int

    @property
    def outcome(self) -> str:
        """The cell in a word: the rate, 'missed', 'out of reach', or 'no victim' where nothing was injected."""
        if not self.visible and not self.unexpected:
            return "out of reach"
        if self.rate is None:
            return "no victim"
        return f"{self.rate * 100:.0f} %" if self.detected else "missed"


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a rate; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    z = 1.959963984540054
    centre = successes + z * z / 2
    spread = z * math.sqrt(successes * (trials - successes) / trials + z * z / 4)
    return max(0.0, (centre - spread) / (trials + z * z)), min(1.0, (centre + spread) / (trials + z * z))


def run_campaign(plan: CampaignPlan, backend: Backend, done: Collection[RunKey] = ()) -> Iterator[CampaignRun]:
    """The runs of a plan that are not in `done`, one at a time; to stop, stop asking.

    One run goes ahead and is thrown away for each configuration, so that no compile time stands in its seconds.
    """
    finished = set(done)
    missing = [key for key in plan.run_keys() if key not in finished]
    warm: set[str] = set()
    for key in missing:
        if key[2] not in warm:
            warm.add(key[2])
            run_one(plan, key, backend)
        yield run_one(plan, key, backend)


def run_one(plan: CampaignPlan, key: RunKey, backend: Backend) -> CampaignRun:
    """Serve the workload with one fault under one configuration. Equal keys give equal runs but for the seconds."""
    kind, variant, config_name, seed = key
    config, options = plan.configs[config_name], serving_options(plan, kind, seed)
    engine = ServingEngine(options, requests_of(plan, options, seed))
    executor, injector = CanaryExecutor(options, config, backend), Injector(kind, variant, seed=seed, start_step=plan.start_step)
    tally = _Tally()
    for step in engine.steps():
        injector.offer(engine, step)
        record = injector.record
        if record is not None and step.index > record.step + plan.steps_after:
            break
        report = executor.run(step, record.ops if record else (), sweep_due(engine, config, step.index))
        served = dict(zip(step.rids.tolist(), step.extend_seq_lens.tolist(), strict=True))
        tally.add(report, record, len(step.tokens), sum(served.get(rid, 0) for rid in record.rids) if record else 0, engine.owners())
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
    )


def summarise(plan: CampaignPlan, runs: Iterable[CampaignRun]) -> list[CellSummary]:
    """One summary per fault and configuration of the plan, faults that cannot be injected included; cells without runs have no rate."""
    by_cell: dict[tuple[str, str, str], list[CampaignRun]] = defaultdict(list)
    for run in runs:
        by_cell[run.key[:3]].append(run)
    return [
        _summary(kind, variant, name, config, by_cell[kind, variant, name])
        for kind, variant in plan.faults
        for name, config in plan.configs.items()
    ]


def _summary(kind: str, variant: str, name: str, config: CanaryConfig, runs: list[CampaignRun]) -> CellSummary:
    here = reach(find(kind, variant), config)
    injected = [run for run in runs if run.changed]
    found = [run for run in injected if run.detected]
    latencies = [run.latency_steps for run in found if run.latency_steps is not None]
    low, high = wilson(len(found), len(injected))
    reports: Counter[str] = Counter()
    for run in found:
        reports.update(run.reports)
    return CellSummary(
        kind=kind,
        variant=variant,
        config=name,
        visible=here.visible,
        certain=here.certain,
        reason=here.reason,
        injected=len(injected),
        detected=len(found),
        rate=len(found) / len(injected) if injected else None,
        rate_low=low if injected else None,
        rate_high=high if injected else None,
        latency_p50=float(np.percentile(latencies, 50)) if latencies else None,
        latency_p90=float(np.percentile(latencies, 90)) if latencies else None,
        corrupt_tokens_p50=float(np.median([run.corrupt_tokens for run in injected])) if injected else None,
        reports=dict(reports),
        false_reports=sum(run.false_reports for run in runs),
        unexpected=0 if here.visible else len(found),
    )


class _Tally:
    """What one run adds up to."""

    def __init__(self) -> None:
        self.latency_steps: int | None = None
        self.changed = self.corrupt_tokens = self.false_reports = self.steps = self.tokens = self.verified = 0
        self.canary_s = 0.0
        self.reports: Counter[str] = Counter()
        self.slots: set[tuple[str, int]] = set()
        self.requests: set[int] = set()

    def add(self, report: StepReport, record: FaultRecord | None, tokens: int, victim_tokens: int, owners: Int64Array) -> None:
        """One step: its report, its tokens and those of the victims, and who owns each slot of the full pool."""
        self.steps += 1
        self.tokens += tokens
        self.verified += report.verified
        self.canary_s += report.canary_s
        self.changed += sum(report.changed.values())
        if record is None:
            self.false_reports += report.violations
            return
        if self.latency_steps is None:
            self.corrupt_tokens += victim_tokens
        if not report.violations and not report.zero_cells:
            return
        if self.latency_steps is None:
            self.latency_steps = report.index - record.step
        for row in report.rows:
            phase, _, group = LaunchTag(int(row[0])).name.split("_")
            self.reports.update(f"{phase} {label}" for label in reason_labels(int(row[7])))
            self.slots.add((group, int(row[1])))
            if group == "FULL" and owners[row[1]] > 0:
                self.requests.add(int(owners[row[1]]))
        if report.zero_cells:
            self.reports["STRICT zero_cell"] += len(report.zero_cells)
        self.requests.update(rid for rid, _ in report.zero_cells)


def serving_options(plan: CampaignPlan, kind: str, seed: int) -> ServingOptions:
    """What a run of a fault serves: the plan's pool, with the mechanism that the fault belongs to."""
    return stage(replace(plan.options, seed=seed), kind)


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
