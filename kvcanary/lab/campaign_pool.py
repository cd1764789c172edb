"""A campaign's runs over several processes of one host, each with one thread, in the order in which they were asked for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from kvcanary.errors import JobError
from kvcanary.lab.campaign_plan import CampaignRun, RunKey
from kvcanary.lab.usable_memory import free_bytes

RunKeyed = Callable[[RunKey], CampaignRun]
# A process needs 2 to 4 s to begin and 400 to 500 MiB; so many runs (of 30 to 60 ms) make up for that.
_RUNS_EACH = 200
_PROCESS_BYTES = 1 << 30
_MOST = 8
# Runs that a process takes at once: a stop waits for them.
_CHUNK = 4


def processes_for(runs: int) -> int:
    """How many processes so many runs are worth on this host: 1 stands for none beside the caller's own."""
    return max(1, min(torch.get_num_threads(), runs // _RUNS_EACH, free_bytes("cpu") // _PROCESS_BYTES, _MOST))


def run_in_processes(
    make: Callable[..., RunKeyed], args: tuple[Any, ...], keys: Sequence[RunKey], processes: int
) -> Generator[CampaignRun]:
    """What `make(*args)`, which each process calls once, gives for each key. To stop, close the generator.

    make: a function of a module, with arguments that can be sent to another process. Raises JobError when a process is lost.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(make, args)) as pool:
        try:
            # Closed, it takes back what no process has begun.
            yield from pool.map(_run, keys, chunksize=_CHUNK)
        except BrokenProcessPool as error:
            raise JobError(
                f"one of the {processes} processes of the campaign was ended from outside, often by the system for its memory; "
                "what ran is kept, and the same campaign again runs what is missing"
            ) from error


_run_keyed: RunKeyed | None = None


def _begin(make: Callable[..., RunKeyed], args: tuple[Any, ...]) -> None:
    global _run_keyed
    # The campaign's own process hears of a wish to stop and ends the others; when it is killed they end by themselves.
    for wish in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wish, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _run_keyed = make(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(key: RunKey) -> CampaignRun:
    assert _run_keyed is not None
    return _run_keyed(key)
