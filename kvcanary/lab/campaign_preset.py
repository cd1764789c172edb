"""A named preset under the configurations of a campaign: which rows each of them reports, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import find, reach
from kvcanary.faults.preset import Preset
from kvcanary.kernels.types import Backend
from kvcanary.lab.executors import CanaryExecutor, StepReport
from kvcanary.layout import LaunchTag, reason_labels


@dataclass(frozen=True, slots=True)
class PresetResult:
    """What one configuration reports of a preset: lines 'step N: LAUNCH slot S reasons', with DRAFT_ before a launch of the draft model's

    canary; reason says why there are none, where that is known.
    """

    config: str
    lines: tuple[str, ...]
    reason: str


def tell(preset: Preset, configs: Mapping[str, CanaryConfig], backend: Backend) -> list[PresetResult]:
    """One result per configuration; a sweep runs where the story has one and the configuration sweeps at all."""
    variant = find(preset.kind, preset.variant)
    results = []
    for name, config in configs.items():
        executor = CanaryExecutor(preset.scenario.options(), config, backend)
        lines: list[str] = []
        for step, sweep in preset.scenario.compile():
            lines += _lines(executor.run(step, preset.scenario.ops, sweep if config.sweep_interval else None))
        results.append(PresetResult(name, tuple(lines), "" if lines else reach(variant, config).reason))
    return results


def _lines(report: StepReport) -> list[str]:
    found = [
        f"{runner}{LaunchTag(row[0]).name} slot {row[1]} {'+'.join(reason_labels(row[7]))}"
        for runner, rows in (("", report.rows), ("DRAFT_", report.draft_rows))
        for row in rows.tolist()
    ]
    for rule, cells in (("cell", report.zero_cells), ("seed", report.zero_seeds)):
        found += [f"STRICT request {rid} position {position} {rule} at slot 0" for rid, position in cells]
    return [f"step {report.index}: {text}" for text in found]
