"""Prometheus metrics of followed logs. SGLang itself has none for the canary; these come from what it prints."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.violations import Stream

_STREAM_LABELS = ("server", "source", "rank")


class LogMetrics(Collector):
    """Collects the metrics of a follower; update() reads the logs, a scrape only formats.

    Register it with a CollectorRegistry and call update() in a loop. Labels: server (log name), source (service or pod), rank as
    printed or '(none)'; violations also carry launch_tag and reason, the reasons of one record joined with '+'.
    """

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._rows = 0
        self._violations: Counter[tuple[Stream, str, str]] = Counter()
        self._last_steps: dict[Stream, tuple[int, float]] = {}

    def update(self) -> int:
        """Read what was appended to the logs; bytes read."""
        with self._lock:
            done = self._follower.poll()
            table = self._follower.builder.violations
            for row in range(self._rows, len(table)):
                violation = table[row]
                self._violations[violation.stream, violation.launch_tag, "+".join(violation.reasons) or "none"] += 1
            self._rows = len(table)
            now = time.time()
            for stream, state in self._follower.builder.states.items():
                step = state.now.last_step
                if step is not None and self._last_steps.get(stream, (None, 0.0))[0] != step:
                    self._last_steps[stream] = (step, now)
            return done

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        with self._lock:
            yield from self._collect()

    def _collect(self) -> Iterator[Metric]:
        violations = CounterMetricFamily(
            "kvcanary_violations", "Violation records listed in the logs", labels=(*_STREAM_LABELS, "launch_tag", "reason")
        )
        for (stream, tag, reason), count in self._violations.items():
            violations.add_metric((stream.server, stream.source, stream.rank, tag, reason), count)
        yield violations
        reports = [state.report() for state in self._follower.builder.states.values() if state.canary_lines]
        for name, help_text, values in (
            ("kvcanary_counted_violations", "Violations counted by the server, listed or not", [report.counter for report in reports]),
            ("kvcanary_lost_records", "Violations without a record because the ring was full", [report.ring_lost for report in reports]),
            (
                "kvcanary_skipped_steps",
                "Steps whose verification was skipped by plan overflow",
                [report.overflow_steps for report in reports],
            ),
            ("kvcanary_protected_tokens", "Slot checks and writes so far", [report.protected_tokens for report in reports]),
            ("kvcanary_sweep_passes", "Sweeps over cached slots so far", [report.sweep_passes for report in reports]),
        ):
            metric = CounterMetricFamily(name, help_text, labels=_STREAM_LABELS)
            for report, value in zip(reports, values, strict=True):
                if value is not None:
                    metric.add_metric((report.stream.server, report.stream.source, report.stream.rank), value)
            yield metric
        yield from self._step_metrics()
        unread = CounterMetricFamily("kvcanary_unread_lines", "Lines that speak of the canary and could not be read")
        unread.add_metric((), self._follower.builder.unread)
        yield unread
        missing = GaugeMetricFamily("kvcanary_missing_logs", "Followed logs that are not there")
        missing.add_metric((), len(self._follower.missing))
        yield missing

    def _step_metrics(self) -> Iterator[Metric]:
        step_metric = GaugeMetricFamily("kvcanary_last_step", "Last forward step named in the log", labels=_STREAM_LABELS)
        age_metric = GaugeMetricFamily(
            "kvcanary_last_step_age_seconds", "Seconds since the log named a new step, by this machine's clock", labels=_STREAM_LABELS
        )
        now = time.time()
        for stream, (step, seen) in self._last_steps.items():
            labels = (stream.server, stream.source, stream.rank)
            step_metric.add_metric(labels, step)
            age_metric.add_metric(labels, max(0.0, now - seen))
        yield step_metric
        yield age_metric
