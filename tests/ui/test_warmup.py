"""The warm-up: what every page needs is loaded, and the garbage collector no longer walks over it."""

from __future__ import annotations

import gc
import sys

from kvcanary.ui import warmup


def test_what_is_loaded_is_passed_over_by_the_collector() -> None:
    try:
        warmup.run()
        assert {"torch", "numba", "kvcanary.ui.inspect_view"} <= set(sys.modules)
        assert gc.get_freeze_count() > 10 * len(gc.get_objects())
    finally:
        gc.unfreeze()


def test_the_server_does_not_wait_for_it() -> None:
    warm = warmup.start()
    assert warm.is_alive()
    warm.join()
    gc.unfreeze()
