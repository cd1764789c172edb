"""The worker process of one job: python -m kvcanary.lab.worker RUN_FOLDER"""

from __future__ import annotations

import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

from kvcanary.errors import KvCanaryError
from kvcanary.lab import leases
from kvcanary.lab.jobs import BUSY, NOT_MINE, device_of
from kvcanary.lab.machine import accelerator, machine, versions
from kvcanary.lab.records import BenchmarkSpec, RunFolder, RunState


def main(path: str) -> int:
    """Run the spec in the folder; the exit code is 0 when the record is final.

    NOT_MINE: the run is somebody else's. BUSY: another job has the device; the run stays in the queue.
    """
    folder = RunFolder(Path(path))
    device = device_of(folder.read_record())
    # Both are given back by the system when this process ends, whatever ends it.
    device_lease = leases.take(leases.device_lock(folder.path.parents[1], device))
    if device_lease is None:
        return BUSY
    if not folder.claim():
        return NOT_MINE
    worker_lease = leases.take(folder.worker_lock)
    try:
        return run_claimed(folder, device)
    finally:
        for lease in (worker_lease, device_lease):
            if lease is not None:
                lease.release()


def run_claimed(folder: RunFolder, device: str, before_point: Callable[[], None] | None = None) -> int:
    """Run a spec that this process has claimed, to a final record; before_point as in `run_benchmark`. Returns 0."""
    signal.signal(signal.SIGTERM, lambda *_: _request_stop(folder))
    signal.signal(signal.SIGINT, lambda *_: _request_stop(folder))
    own = psutil.Process()
    folder.update_record(
        state=RunState.RUNNING,
        started_s=time.time(),
        host=platform.node(),
        pid=own.pid,
        pid_started_s=own.create_time(),
        machine=machine(),
        versions=versions(),
    )
    # Imported here so that the record says "running" during the seconds that torch takes to load.
    from kvcanary.lab.benchmark import StopRequested, finish, run_benchmark
    from kvcanary.lab.campaign_job import CampaignSpec, run_campaign_job

    if device.startswith("cuda"):
        folder.update_record(machine={**machine(), "accelerator": accelerator(device)})
    record = folder.read_record()
    try:
        if record.kind == "campaign":
            run_campaign_job(folder, CampaignSpec(**record.spec))
        else:
            run_benchmark(folder, BenchmarkSpec(**record.spec), before_point)
    except StopRequested:
        finish(folder, RunState.STOPPED)
    except KvCanaryError as error:
        finish(folder, RunState.FAILED, str(error))
    except MemoryError:
        finish(folder, RunState.FAILED, "out of memory: lower pool_slot_count, or choose real_data none")
    except OSError as error:
        finish(folder, RunState.FAILED, f"the run could not be stored: {error}; free space under {folder.path.parent}")
    else:
        finish(folder, RunState.DONE)
    return 0


def _request_stop(folder: RunFolder, _frame: FrameType | None = None) -> None:
    folder.stop_file.touch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
