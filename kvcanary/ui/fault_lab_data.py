"""A stored campaign, read and summed up once per state of its file; a replay, played once per run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import streamlit as st

from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.campaign import CampaignPlan, CampaignRun, CellSummary, RunKey, summarise
from kvcanary.lab.campaign_job import CampaignSpec, plan_of, read_runs
from kvcanary.lab.frontier import ConfigCost, LatencyCurve, by_cost, config_costs, latency_curves
from kvcanary.lab.records import RunRecord
from kvcanary.lab.replay import Replay, replay
from kvcanary.ui import services


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign as far as it has run; costs and curves, by steps and by tokens, are ordered by cost."""

    run_id: str
    plan: CampaignPlan
    runs: list[CampaignRun]
    cells: list[CellSummary]
    costs: list[ConfigCost]
    curves: list[LatencyCurve]
    token_curves: list[LatencyCurve]

    @property
    def missing(self) -> int:
        """Runs of the plan that have not run."""
        return len(self.plan.run_keys()) - len(self.runs)

    @property
    def alarms(self) -> str:
        """Reports without a fault by cause, and reports of faults that should be out of reach; empty where there are none."""
        causes: Counter[str] = Counter()
        for cell in self.cells:
            causes.update(cell.false_causes)
        said = [f"reported without a fault: {', '.join(f'{count} {cause}' for cause, count in causes.most_common())}"] if causes else []
        unexpected = sum(cell.unexpected for cell in self.cells)
        said += [f"{unexpected} reports of faults that should be out of reach"] if unexpected else []
        text = "; ".join(said)
        return text[:1].upper() + text[1:]

    def seeds(self, cell: tuple[str, str, str]) -> list[int]:
        """Seeds of a cell whose fault changed something, the reported ones first."""
        mine = [run for run in self.runs if run.key[:3] == cell and run.changed]
        return [run.key[3] for run in sorted(mine, key=lambda run: (not run.detected, run.key[3]))]

    def cell(self, cell: tuple[str, str, str]) -> CellSummary | None:
        """The summary of a cell; None where the campaign has no such cell."""
        return next((found for found in self.cells if (found.kind, found.variant, found.config) == cell), None)


def load(record: RunRecord) -> Campaign:
    """The campaign of a record; StoreError or ConfigError when it cannot be read."""
    path = services.runs().folder(record.id).path / "campaign.jsonl"
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _load(record.id, stamp, record)


@st.cache_resource(max_entries=4, show_spinner=False)
def _load(run_id: str, stamp: int, _record: RunRecord) -> Campaign:
    plan = plan_of(CampaignSpec(**_record.spec))
    runs = read_runs(services.runs().folder(run_id).path)
    costs = by_cost(config_costs(plan, runs))
    by_steps, by_tokens = (latency_curves(plan, runs, [cost.config for cost in costs], by_tokens=flag) for flag in (False, True))
    return Campaign(run_id, plan, runs, summarise(plan, runs), costs, by_steps, by_tokens)


@st.cache_resource(max_entries=6, show_spinner="Replaying the run")
def played(_plan: CampaignPlan, run_id: str, key: RunKey) -> Replay:
    """A run of a campaign again."""
    return replay(_plan, key, choose_backend("auto", "cpu")[0])
