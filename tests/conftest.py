"""Hypothesis profiles: short and the same each time by default, long with --hypothesis-profile=long. Triton runs only where it can.

With -n 2 the browser tests, which take longest, start first and keep to one process; every other module stays whole in one process.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# A change is judged by what it changes: looking for new examples is for the long profile.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what may run side by side, and skip what cannot run here.

    Tests run every backend on CPU tensors, which Triton takes only in its interpreter, in the process that test_triton.py starts.
    """
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)
    for item in items:
        group = "browser" if item.get_closest_marker("browser") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "triton" in callspec.params.values() and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="triton takes CPU tensors only in its interpreter; see tests/kernels/test_triton.py"))
