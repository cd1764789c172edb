"""A fault campaign as a job: runs are appended to campaign.jsonl in the run folder as they finish, so that a stop keeps them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcanary.errors import ConfigError, StoreError
from kvcanary.faults.injectors import FaultRecord
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.benchmark import Reporter, StopRequested
from kvcanary.lab.campaign import ALL_FAULTS, CONFIGS, DEFAULT_CONFIGS, CampaignPlan, CampaignRun, Fault, run_campaign, summarise
from kvcanary.lab.campaign_load import LOAD_WORDS, LOADS, MEDIUM_POOL, SMALL, TraceSample
from kvcanary.lab.campaign_tally import UNEXPLAINED
from kvcanary.lab.frontier import config_costs, sentence
from kvcanary.lab.lifecycle import RUN_ID
from kvcanary.lab.records import RunFolder, Verdict
from kvcanary.units import format_count

SEED_LIMIT = 100
QUICK_FAULTS: tuple[Fault, ...] = (
    ("late_write_after_free", "with_records"),
    ("slot_alias", "wrong_cell"),
    ("slot_alias", "cell_to_slot_0"),
    ("position_shift", "one_token"),
    ("tier_reload", "wrong_bytes"),
    ("payload_bytes", "bit_flip"),
    ("payload_bytes", "later_bytes"),
    ("payload_bytes", "v_row"),
    ("payload_bytes", "other_layer"),
    ("payload_bytes", "bad_before_hash"),
    ("token_swap", "sampler_exit"),
    ("slot_leak", "never_freed"),
)
_PROGRESS_S = 0.2
# What may be written instead of a list, on the command line and in a sweep file.
NAMED_FAULTS: Mapping[str, list[str]] = {
    "quick": [".".join(fault) for fault in QUICK_FAULTS],
    "all": [".".join(fault) for fault in ALL_FAULTS],
}
NAMED_CONFIGS: Mapping[str, list[str]] = {"default": list(DEFAULT_CONFIGS), "all": list(CONFIGS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec:
    """What to run, JSON-ready: faults as 'kind.variant', configurations by name, seeds 0 to seeds - 1, on the host.

    workload: a name of campaign_load.LOAD_WORDS; trace: TraceSample.to_dict, served instead of it. continues: id of an earlier campaign
    under the same data folder whose finished runs are taken over, so that only what is missing is run.
    """

    faults: list[str] = field(default_factory=lambda: list(NAMED_FAULTS["quick"]))
    configs: list[str] = field(default_factory=lambda: list(DEFAULT_CONFIGS))
    seeds: int = 3
    device: str = "cpu"
    workload: str = SMALL
    trace: dict[str, Any] | None = None
    continues: str = ""


def plan_of(spec: CampaignSpec) -> CampaignPlan:
    """The plan of a spec; ConfigError names what is unknown, empty or out of range."""
    unknown = [name for name in spec.configs if name not in CONFIGS]
    if unknown:
        raise ConfigError(f"configs must be among {'; '.join(CONFIGS)}, got {unknown[0][:60]!r}")
    if not 1 <= spec.seeds <= SEED_LIMIT:
        raise ConfigError(f"seeds must be between 1 and {SEED_LIMIT}, got {spec.seeds}")
    if spec.continues and not RUN_ID.fullmatch(spec.continues):
        raise ConfigError(f"continues must be the id of a campaign, got {spec.continues[:60]!r}")
    faults = []
    for name in spec.faults:
        kind, dot, variant = name.partition(".")
        if not dot:
            raise ConfigError(f"a fault must be written kind.variant, got {name[:60]!r}")
        faults.append((kind, variant))
    plan = CampaignPlan(faults=tuple(faults), configs={name: CONFIGS[name] for name in spec.configs}, seeds=tuple(range(spec.seeds)))
    if spec.trace is not None:
        return replace(plan, options=MEDIUM_POOL, trace=TraceSample.from_dict(spec.trace))
    if spec.workload == SMALL:
        return plan
    if spec.workload not in LOADS:
        raise ConfigError(f"workload must be among {'; '.join(LOAD_WORDS)}, got {spec.workload[:60]!r}")
    return replace(plan, options=MEDIUM_POOL, mix=LOADS[spec.workload])


def run_campaign_job(folder: RunFolder, spec: CampaignSpec) -> None:
    """Run what is missing and write the verdict; StopRequested when asked to stop, what ran is kept."""
    plan = plan_of(spec)
    backend, reason = choose_backend("auto", "cpu")
    folder.update_record(backend={"name": backend.name, "reason": reason})
    runs = _taken_over(folder, spec, plan)
    keys = [run.key for run in runs]
    reporter = Reporter(folder, time.monotonic(), steps=len(plan.run_keys()), done=len(runs))
    reporter.step("campaign", f"{format_count(reporter.steps)} runs")
    told_s = time.monotonic()
    with (folder.path / "campaign.jsonl").open("a", encoding="utf-8") as file, closing(run_campaign(plan, backend.name, keys)) as found:
        for run in found:
            runs.append(run)
            file.write(json.dumps(_to_dict(run)) + "\n")
            file.flush()
            reporter.done += 1
            try:
                if time.monotonic() - told_s >= _PROGRESS_S:
                    told_s = time.monotonic()
                    reporter.step("campaign", f"run {format_count(len(runs))} of {format_count(reporter.steps)}")
            except StopRequested:
                _write_conclusion(folder, plan, runs)
                raise
    _write_conclusion(folder, plan, runs)


def _write_conclusion(folder: RunFolder, plan: CampaignPlan, runs: Sequence[CampaignRun]) -> None:
    verdict, text = conclude(plan, runs)
    folder.update_record(verdict=verdict, sentence=text)


def _taken_over(folder: RunFolder, spec: CampaignSpec, plan: CampaignPlan) -> list[CampaignRun]:
    """Finished runs of this folder, or those of the campaign that it goes on with; the latter are written here first."""
    own = read_runs(folder.path)
    if own or not spec.continues:
        return own
    source = RunFolder(folder.path.parent / spec.continues)
    served, here = (CampaignSpec(**source.read_record().spec), spec)
    if (served.workload, served.trace) != (here.workload, here.trace):
        raise ConfigError(
            f"run {spec.continues} served another workload than {here.workload!r}, so its runs cannot be taken over; start anew without it"
        )
    keys = set(plan.run_keys())
    earlier = [run for run in read_runs(source.path) if run.key in keys]
    (folder.path / "campaign.jsonl").write_text("".join(json.dumps(_to_dict(run)) + "\n" for run in earlier), encoding="utf-8")
    return earlier


def read_runs(path: Path) -> list[CampaignRun]:
    """The finished runs in a run folder; a last line that was cut off is left out. StoreError for damage anywhere else."""
    try:
        lines = (path / "campaign.jsonl").read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    try:
        return [_from_dict(json.loads(line)) for line in lines[:-1]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
        raise StoreError(f"campaign {path.name} cannot be read: {error}") from error


def conclude(plan: CampaignPlan, runs: Sequence[CampaignRun]) -> tuple[Verdict, str]:
    """The outcome of the runs so far: fail when something was reported that neither the catalogue nor SGLang's semantics explain."""
    cells = summarise(plan, runs)
    causes: Counter[str] = Counter()
    for cell in cells:
        causes.update(cell.false_causes)
    unexpected, missing = sum(cell.unexpected for cell in cells), len(plan.run_keys()) - len(runs)
    text = sentence(plan, config_costs(plan, runs), cells)
    if causes:
        named = ", ".join(f"{format_count(count)} {cause}" for cause, count in causes.most_common())
        text = f"Reported without a fault: {named}. {text}"
    if unexpected:
        text = f"{format_count(unexpected)} reports of faults that should be out of reach. {text}"
    if missing:
        text = f"Stopped after {format_count(len(runs))} of {format_count(len(plan.run_keys()))} runs. {text}"
    if unexpected or causes[UNEXPLAINED]:
        return Verdict.FAIL, text
    return Verdict.PARTIAL if missing else Verdict.PASS, text


def _to_dict(run: CampaignRun) -> dict[str, Any]:
    return {**asdict(run), "key": list(run.key), "record": run.record.to_dict() if run.record else None}


def _from_dict(values: dict[str, Any]) -> CampaignRun:
    kind, variant, config, seed = values["key"]
    record = values["record"]
    return CampaignRun(**{**values, "key": (kind, variant, config, seed), "record": FaultRecord.from_dict(record) if record else None})
