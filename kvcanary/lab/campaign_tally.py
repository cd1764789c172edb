"""What one run of a campaign adds up to, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvcanary import layout
from kvcanary.faults.injectors import FaultRecord
from kvcanary.faults.memory import Group
from kvcanary.kernels.types import VerifyPlan
from kvcanary.lab.executors import StepReport
from kvcanary.lab.strict_checks import entry_rids
from kvcanary.layout import LaunchTag, reason_labels
from kvcanary.serving.engine import OWNER_CACHED
from kvcanary.serving.events import MoveKind
from kvcanary.serving.pool import EMPTY, Int64Array
from kvcanary.serving.radix_cache import SweepEntries
from kvcanary.serving.step import Step

# Why a report without a fault can be right by SGLang's semantics; everything else is a finding against this program.
RECORDS_LEFT_BEHIND = "KV came back from the host without its records"
RING_WAS_FULL = "found no room in the ring"
UNEXPLAINED = "unexplained"


class Tally:
    """Counts of one run; the attributes are those of CampaignRun."""

    def __init__(self, num_slots: int) -> None:
        self.latency_steps: int | None = None
        self.latency_tokens: int | None = None
        self.changed = self.corrupt_tokens = self.false_reports = self.steps = self.tokens = self.verified = 0
        self.rows_lost = self.skipped = 0
        self.coverage: float | None = None
        self.canary_s = 0.0
        self.reports: Counter[str] = Counter()
        self.false_causes: Counter[str] = Counter()
        self.slots: set[tuple[str, int]] = set()
        self.requests: set[int] = set()
        self._since_fault = 0
        self._looked_at: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        # Slots whose KV came from the host and was not written since.
        self._reloaded: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)

    def add(
        self,
        step: Step,
        report: StepReport,
        record: FaultRecord | None,
        plan: VerifyPlan,
        sweep: Mapping[Group, SweepEntries] | None,
    ) -> None:
        """One step that has run: its report, and what its FULL group verified."""
        self.steps += 1
        self.tokens += len(step.tokens)
        self.verified += report.verified
        self.skipped += report.skipped
        self.canary_s += report.canary_s
        self.changed += sum(report.changed.values())
        self.rows_lost += report.violations - len(report.rows) - len(report.draft_rows)
        self._follow_reloads(step)
        if record is None:
            self._false_alarm(step, report, sweep)
            return
        self._look(plan, sweep)
        if self.latency_steps is None:
            served = dict(zip(step.rids.tolist(), step.extend_seq_lens.tolist(), strict=True))
            self.corrupt_tokens += sum(served.get(rid, 0) for rid in record.rids)
            self._since_fault += len(step.tokens)
        if not report.reported:
            return
        if self.latency_steps is None:
            self.latency_steps, self.latency_tokens = report.index - record.step, self._since_fault
        self._flag(step, report, plan)

    def _flag(self, step: Step, report: StepReport, plan: VerifyPlan) -> None:
        """Blast radius: the slots of the rows, and the requests of this step that read or write one of them."""
        flagged = [_full_slots(row, step) for row in (*report.rows.tolist(), *report.draft_rows.tolist())]
        slots = np.concatenate([EMPTY, *flagged])
        entries = plan.slot_indices[: int(plan.num_valid.item()) if plan.enable.item() else 0].numpy()
        self.requests.update(entry_rids(step)[: len(entries)][np.isin(entries, slots)].tolist())
        real = step.req_pool_indices != layout.PADDING_ROW
        self.requests.update(np.repeat(step.rids[real], step.extend_seq_lens[real])[np.isin(step.out_slots, slots)].tolist())
        for runner, rows in (("", report.rows), ("DRAFT_", report.draft_rows)):
            for row in rows.tolist():
                phase, _, group = LaunchTag(row[0]).name.split("_")
                self.reports.update(f"{runner}{phase} {label}" for label in reason_labels(row[7]))
                self.slots.add((runner + group, row[1]))
        for rule, cells in (("zero_cell", report.zero_cells), ("zero_seed", report.zero_seeds)):
            if cells:
                self.reports[f"STRICT {rule}"] += len(cells)
            self.requests.update(rid for rid, _ in cells)

    def finish(self, owners: Int64Array) -> None:
        """The run is over; owners: who holds each slot of the full pool now."""
        in_use = (owners > 0) | (owners == OWNER_CACHED)
        if self._since_fault and in_use.any():
            self.coverage = float(self._looked_at[in_use].mean())

    def _look(self, plan: VerifyPlan, sweep: Mapping[Group, SweepEntries] | None) -> None:
        if plan.enable.item():
            self._looked_at[plan.slot_indices[: int(plan.num_valid.item())].numpy()] = True
        if sweep is not None:
            self._looked_at[sweep[Group.FULL].slots] = True

    def _follow_reloads(self, step: Step) -> None:
        for move in step.moves:
            self._reloaded[move.device_slots] = move.kind is MoveKind.RELOAD
        self._reloaded[step.out_slots] = False

    def _false_alarm(self, step: Step, report: StepReport, sweep: Mapping[Group, SweepEntries] | None) -> None:
        """Reports before any fault. One about a slot that came from the host, or about the token behind it, is SGLang's own."""
        rows = [*report.rows.tolist(), *report.draft_rows.tolist()]
        explained = sum(self._came_from_host(row, step, sweep) for row in rows)
        strict, lost = len(report.zero_cells) + len(report.zero_seeds), report.violations - len(rows)
        self.false_reports += report.violations + strict
        for cause, reports in ((RECORDS_LEFT_BEHIND, explained), (RING_WAS_FULL, lost), (UNEXPLAINED, len(rows) - explained + strict)):
            if reports:
                self.false_causes[cause] += reports

    def _came_from_host(self, row: list[int], step: Step, sweep: Mapping[Group, SweepEntries] | None) -> bool:
        """Whether the slot of a ring row, or a slot before it in a request or in the tree, holds KV that was reloaded."""
        slots = _full_slots(row, step)
        reach = int((step.prefix_lens + step.extend_seq_lens).max(initial=0))
        rows, positions = np.nonzero(np.isin(step.req_to_token[:, :reach], slots))
        before = [step.req_to_token[rows, np.maximum(positions - 1, 0)]]
        if sweep is not None:
            entries = sweep[Group.FULL]
            before.append(np.maximum(entries.prev_slots[np.isin(entries.slots, slots)], 0))
        return bool(self._reloaded[slots].any() or self._reloaded[np.concatenate(before)].any())


def _full_slots(row: list[int], step: Step) -> Int64Array:
    """The slot of a ring row in the full pool's numbers, int64 [1]; empty for a window slot that nobody maps to any more."""
    if LaunchTag(row[0]).name.endswith("_SWA") and step.full_to_swa is not None:
        return np.flatnonzero(step.full_to_swa == row[1])
    return np.array([row[1]])
