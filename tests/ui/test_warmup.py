"""The warm-up: what every page needs is loaded, and the garbage collector no longer walks over it."""

from __future__ import annotations

import gc
import sys
import threading

from kvcanary.ui import warmup


def test_what_is_loaded_is_passed_over_by_the_collector() -> None:
    try:
        warmup.run(threading.Event())
        assert {"torch", "numba", "kvcanary.ui.inspect_view"} <= set(sys.modules)
        assert gc.get_freeze_count() > 10 * len(gc.get_objects())
    finally:
        gc.unfreeze()


def test_the_server_does_not_wait_for_it() -> None:
    stopping = threading.Event()
    warm = warmup.start(stopping)
    assert warm.is_alive()
    stopping.set()
    warm.join()
    gc.unfreeze()


def test_a_server_that_is_stopped_loads_nothing_more() -> None:
    stopping = threading.Event()
    stopping.set()
    warmup.run(stopping)
    assert gc.get_freeze_count() == 0
