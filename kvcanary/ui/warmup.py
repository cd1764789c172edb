"""What a server does once, beside its first pages: the slow imports, and taking what they leave out of the garbage collector's sight."""

from __future__ import annotations

import gc
import threading


def start(stopping: threading.Event) -> threading.Thread:
    """Warm up in a thread of its own, so that the server answers at once; a page that comes first waits only for what it needs itself.

    Setting `stopping` ends it after the step it is at, so that a server that is stopped early does not load what nobody will see.
    """
    thread = threading.Thread(target=run, args=(stopping,), name="warmup")
    thread.start()
    return thread


def run(stopping: threading.Event) -> None:
    """Load the pages' modules, the libraries of the backends and what Plotly loads with a first figure; then freeze all of it.

    A full collection walks every object of the process while all sessions wait. Most of them belong to modules (360 000 objects, 0.2 s)
    and are never garbage; frozen, they are passed over.
    """
    for step in (_libraries, _pages, _figure, gc.collect, gc.freeze):
        if stopping.is_set():
            return
        step()


# Imported here and not above, because the server has to listen before they are there.


def _libraries() -> None:
    from kvcanary.kernels.backends import choose_backend

    choose_backend("auto", "cpu")


def _pages() -> None:
    from kvcanary.ui import benchmark_view, fault_lab_view, inspect_view, plan_view, runs_view  # noqa: F401


def _figure() -> None:
    from kvcanary.charts import plan as charts
    from kvcanary.config.memory import memory_plan
    from kvcanary.config.settings import Settings

    charts.memory_bar(memory_plan(Settings()), "light").to_dict()
