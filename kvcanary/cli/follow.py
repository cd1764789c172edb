"""Waiting for a job on the command line: a bar, and Ctrl-C as the way to stop."""

from __future__ import annotations

import contextlib
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvcanary.errors import JobError
from kvcanary.lab.jobs import JobManager, JobStatus
from kvcanary.lab.records import RunRecord
from kvcanary.units import format_seconds

_POLL_S = 0.1


def follow_job(manager: JobManager, run_id: str, console: Console) -> RunRecord:
    """Show progress until the run is over, and return its record.

    The first interrupt asks the job to stop, the next one ends its worker; either way what it has measured is kept.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    interrupts = 0
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the worker", total=None)
        while True:
            try:
                status = manager.status(run_id)
                if not status.record.state.active:
                    return status.record
                if not interrupts:
                    _show(bar, task, status)
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                interrupts += 1
                bar.update(task, description="stopping; Ctrl-C again ends it at once")
                # The run may be over by now, which is what was asked for.
                with contextlib.suppress(JobError):
                    if interrupts == 1:
                        manager.stop(run_id)
                    else:
                        manager.kill(run_id)


def _show(bar: Progress, task: TaskID, status: JobStatus) -> None:
    if status.place:
        bar.update(task, description=f"queued, place {status.place}")
    elif status.progress is not None:
        told = status.progress
        left = f", about {format_seconds(told.eta_s)} left" if told.eta_s is not None else ""
        bar.update(task, description=f"{told.stage}: {told.message}{left}", completed=told.done, total=told.total)
