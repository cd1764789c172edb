"""Each page test has a data folder of its own, and leaves no job manager and no map of a run of it behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcanary.ui import services


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    # Runs of two tests may have one id.
    services.jobs.clear()
    services._slots.clear()
    yield tmp_path
    services.jobs.clear()
