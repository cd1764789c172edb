"""Evidence that does not decide between causes and still tells where to look: shapes, bursts, and what else happened at that time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from kvcanary.analysis.canary_log import CanaryLog, LogEvent
from kvcanary.analysis.incidents import Incident
from kvcanary.units import format_count

# Fewer incidents agree by chance.
_ENOUGH = 3
_NEAR = timedelta(seconds=60)
_ERRORS = 3
_ERROR_CHARS = 160


def shape_evidence(incident: Incident, page_size: int | None) -> list[str]:
    """Strides and runs of the slots, how long it lasted, and the batch it came with."""
    pattern, evidence = incident.pattern, []
    if pattern.stride and pattern.stride > 1:
        evidence.append(f"The {len(pattern.slots)} slots stand {pattern.stride} apart{_stride_words(pattern.stride, page_size)}.")
    if incident.first_step is not None and incident.last_step is not None and incident.last_step > incident.first_step + 1:
        evidence.append(f"It is reported from step {incident.first_step} to step {incident.last_step}.")
    if incident.running_reqs is not None:
        evidence.append(f"The last batch line before it had {incident.running_reqs} running requests.")
    return evidence


def _stride_words(stride: int, page_size: int | None) -> str:
    if page_size and page_size > 1 and stride % page_size == 0:
        pages = stride // page_size
        return f", {'one page' if pages == 1 else f'{pages} pages'} of {page_size}: one slot of each page, so an offset inside the page is wrong"
    return ", a power of two: index arithmetic" if stride & (stride - 1) == 0 else ""


def burst_evidence(members: Sequence[Incident]) -> list[str]:
    """What several incidents of one cause have in common: batch size, step, distance in steps, a burst in one step."""
    if len(members) < 2:
        return []
    evidence = [f"{format_count(len(members))} incidents have these marks."]
    sizes = Counter(incident.running_reqs for incident in members if incident.running_reqs is not None)
    if sizes and len(members) >= _ENOUGH:
        size, count = sizes.most_common(1)[0]
        if count == len(members):
            evidence.append(f"All of them came with {size} running requests: look at what is captured or padded for that batch size.")
    steps = sorted({incident.first_step for incident in members if incident.first_step is not None})
    if len(steps) == 1 and len(members) >= _ENOUGH:
        evidence.append(f"All of them begin at step {steps[0]}: one event, not a rate.")
    period = math.gcd(*(after - before for before, after in pairwise(steps))) if len(steps) >= _ENOUGH else 0
    if period > 1:
        evidence.append(f"They begin a multiple of {period} steps apart: look for what runs every {period} steps.")
    return evidence


def nearby_notes(log: CanaryLog) -> list[str]:
    """Other errors within a minute of the violations, and what the window pool's translation says of itself."""
    reports = [report for report in log.streams if report.listed]
    times = [time for time in (log.violations[row].time for row in _ends(log)) if time is not None]
    errors = [event for event in log.events_of("error", "sigquit") if _near(event, times)] if reports else []
    notes = [f"{_when(event, times)}: {event.text[:_ERROR_CHARS]}" for event in errors[:_ERRORS]]
    if len(errors) > _ERRORS:
        notes.append(f"{format_count(len(errors) - _ERRORS)} more errors stand within a minute of the violations.")
    return notes + _divergence(log)


def _ends(log: CanaryLog) -> Sequence[int]:
    count = len(log.violations)
    return sorted({0, count - 1}) if count else ()


def _near(event: LogEvent, times: Sequence[datetime]) -> bool:
    if event.time is None or not times:
        return True  # Without a clock, the same log is as near as can be told.
    return min(times) - _NEAR <= event.time <= max(times) + _NEAR


def _when(event: LogEvent, times: Sequence[datetime]) -> str:
    if event.time is None or not times:
        return "Another error in this log"
    seconds = (event.time - min(times)).total_seconds()
    if seconds == 0:
        return "Another error in the same second as the first violation"
    return f"Another error {abs(seconds):.0f} s {'after' if seconds > 0 else 'before'} the first violation"


def _divergence(log: CanaryLog) -> list[str]:
    """The last divergence line of the log, in words; both spellings of its fields are known."""
    events = log.events_of("divergence")
    if not events:
        return []
    values = events[-1].values
    elsewhere = values.get("swa_full_idx_divergence", values.get("mapping_nonidentity"))
    outside = values.get("swa_out_of_window_tokens")
    parts = []
    if isinstance(elsewhere, int):
        parts.append(f"{format_count(elsewhere)} live positions have another number in the window pool than in the full pool")
    if isinstance(outside, int):
        parts.append(f"{format_count(outside)} map to slot 0, as those behind the window do")
    if not parts:
        return []
    return [f"Window translation at forward {values.get('forward_ct', 'unknown')}: {'; '.join(parts)}."]
