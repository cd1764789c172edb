"""What a campaign runs and what one run of it leaves: plain data, the same in memory, in a run folder and on a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find
from kvcanary.faults.injectors import FaultRecord
from kvcanary.lab.campaign_configs import DEFAULT_CONFIGS
from kvcanary.lab.campaign_load import TraceSample
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.workload import Mix

Fault = tuple[str, str]
RunKey = tuple[str, str, str, int]

ALL_FAULTS: tuple[Fault, ...] = tuple((fault.kind, variant.name) for fault in CATALOGUE for variant in fault.variants)
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

    latency_steps counts forwards from the fault to the first report on the device, latency_tokens the tokens that all requests computed in
    them, that forward included. corrupt_tokens: those of the victims, to the report or to the end. false_reports: reports before the fault,
    by cause in false_causes. reports: by 'LAUNCH reason', DRAFT_ before it for the draft runner. slots_flagged, requests_flagged: blast
    radius of the reports. rows_lost: violations that found no room in the ring. skipped: verify entries that were not checked (slot 0, or a
    plan that overflowed). coverage: share of the slots in use at the end that were verified since the fault. canary_s: seconds in plan,
    verify and stamp.
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
    latency_tokens: int | None = None
    false_causes: Mapping[str, int] = field(default_factory=dict)
    rows_lost: int = 0
    skipped: int = 0
    coverage: float | None = None

    @property
    def detected(self) -> bool:
        """Whether anything was reported at or after the fault."""
        return self.latency_steps is not None


def canary_s_per_step(runs: Iterable[CampaignRun]) -> float:
    """Seconds of the canary per step: the median of the runs, so that one that had to wait for a processor counts as one. 0 without any."""
    return statistics.median([run.canary_s / run.steps for run in runs if run.steps] or [0.0])
