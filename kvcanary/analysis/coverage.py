"""What a log covers: what ran, what was skipped or lost, and what no line of it can tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcanary.analysis.canary_log import CanaryLog, StreamReport
from kvcanary.analysis.violations import NO_RANK
from kvcanary.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """verdict: pass, fail, partial or 'not run'. reasons: why it is not a plain pass, first the most important.

    counted: violations that the servers counted, listed or not, None when no line tells. lost: those without a record because the ring
    was full, None when the text cannot tell. protected_tokens: checks and writes of slots, and sweep_passes, None when no line counts
    them: many may stand behind a log that holds violations alone. silent_ranks printed lines and none of the canary. cannot_tell: limits
    of this log.
    """

    verdict: str
    reasons: tuple[str, ...]
    listed: int
    counted: int | None
    lost: int | None
    truncated: int
    skipped_steps: int
    protected_tokens: int | None
    sweep_passes: int | None
    silent_ranks: tuple[str, ...]
    cannot_tell: tuple[str, ...]


def coverage_of(log: CanaryLog) -> Coverage:
    """Coverage and verdict of a log."""
    reports = [report for report in log.streams if report.canary_lines]
    counters = [report.counter for report in reports if report.counter is not None]
    lost = [report.ring_lost for report in reports]
    silent = _silent(log)
    reasons = _reasons(log, reports, silent)
    listed, counted = len(log.violations), sum(counters) if counters else None
    protected, sweeps = _total(report.protected_tokens for report in reports), _total(report.sweep_passes for report in reports)
    ran = bool(protected or sweeps) or any(report.overflow_steps or report.health_error for report in reports)
    if listed or counted:
        verdict = "fail"
    elif not ran:
        verdict, reasons = "not run", [_why_not_run(log, reports), *reasons]
    else:
        verdict = "partial" if reasons else "pass"
    return Coverage(
        verdict=verdict,
        reasons=tuple(reasons),
        listed=listed,
        counted=counted,
        lost=None if None in lost else sum(value or 0 for value in lost),
        truncated=sum(report.truncated for report in reports),
        skipped_steps=sum(report.overflow_steps for report in reports),
        protected_tokens=protected,
        sweep_passes=sweeps,
        silent_ranks=silent,
        cannot_tell=_cannot_tell(log, reports),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _silent(log: CanaryLog) -> tuple[str, ...]:
    speaking = {
        (report.stream.server, report.stream.source) for report in log.streams if report.canary_lines and report.stream.rank != NO_RANK
    }
    return tuple(
        report.stream.label
        for report in log.streams
        if not report.canary_lines and report.stream.rank != NO_RANK and (report.stream.server, report.stream.source) in speaking
    )


def _why_not_run(log: CanaryLog, reports: list[StreamReport]) -> str:
    modes = {report.install.get("mode") for report in reports if report.install}
    if modes:
        return f"it was installed (mode {', '.join(sorted(str(mode) for mode in modes))}), and no line shows that a check ran"
    if reports:
        return "its lines hold no counter of a check that ran"
    if not log.lines:
        return "the log is empty"
    unread = f"; {log.unread} line{'' if log.unread == 1 else 's'} about it could not be read" if log.unread else ""
    return f"{_number(log.lines, 'line')} and none of the canary{unread}; start the server with --kv-canary log"


def _reasons(log: CanaryLog, reports: list[StreamReport], silent: tuple[str, ...]) -> list[str]:
    reasons = [reason for report in reports for reason in _rank_reasons(report)]
    if silent:
        reasons.append(f"{_number(len(silent), 'rank')} without canary lines: {', '.join(silent[:8])}")
    if not log.complete:
        reasons.append(log.notes[-1] if log.notes else "the log was not read to its end")
    return reasons


def _rank_reasons(report: StreamReport) -> list[str]:
    where, reasons = report.stream.label, []
    counter, listed = report.counter or 0, report.listed
    if report.health_error:
        reasons.append(f"the health check stopped {where} at step {report.health_error.values['step']}")
    if report.overflow_steps:
        of = f" of {format_count(report.overflow_steps + report.steps_verified)}" if report.steps_verified is not None else ""
        reasons.append(f"{where} verified nothing in {_number(report.overflow_steps, 'step')}{of} (plan overflow)")
    if report.ring_lost:
        row = f"row {format_count(report.ring_capacity or listed)} of {format_count(counter)}"
        reasons.append(f"the ring of {where} was full at {row}, so {_number(report.ring_lost, 'violation')} left no record")
    elif counter > listed:
        why = "" if report.ring_lost == 0 else " or lost to a full ring"
        reasons.append(
            f"{where} counted {_number(counter, 'violation')} and lists {format_count(listed)}: rows are cut from this text{why}"
        )
    if report.truncated:
        reasons.append(f"{_number(report.truncated, 'record')} of {where} cut")
    return reasons


def _number(count: int, what: str) -> str:
    return f"{format_count(count)} {what}{'' if count == 1 else 's'}"


def _cannot_tell(log: CanaryLog, reports: list[StreamReport]) -> tuple[str, ...]:
    limits = []
    installs = [report.install for report in reports if report.install]
    real = {install.get("real_kv_hash_mode") for install in installs if "real_kv_hash_mode" in install}
    if not installs:
        limits.append(
            "The settings of the canary: no install line is in this log, so sweeps, depth of the data hash and ring size are inferred."
        )
    if real == {"none"}:
        limits.append("Whether KV bytes changed: --kv-canary-real-data is none, so records alone were checked.")
    elif "partial" in real:
        limits.append("Whether KV bytes beyond the first 16 of a slot changed: --kv-canary-real-data is partial.")
    limits.append("Other layers than 0: SGLang hashes the K row of layer 0, and V only with SGLANG_KV_CANARY_ENABLE_MHA_V.")
    if any(install.get("sweep_interval") == 0 for install in installs):
        limits.append("Cached slots that no request used: sweeps are off.")
    if any(install.get("enable_verify_token_assert") is False for install in installs):
        limits.append("Wrong tokens in right slots: the token check is off (SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT).")
    if len(log.violations):
        limits.append("Which request owned a slot, the expected position of a verify row and both data hashes: SGLang does not print them.")
    limits.append("A table cell that points at slot 0: verify skips the padding slot and its successor's chain.")
    if not any(report.stats_lines for report in reports) and reports:
        limits.append("How many slots were checked: no stats line is in this log.")
    return tuple(limits)
