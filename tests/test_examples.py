"""The examples run as they stand, and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPECTED = {
    "plan_a_pool.py": ("the canary takes", "largest pool:"),
    "verify_a_buffer.py": ("'slot_idx': 6", "'verified': 10"),
    "read_a_log.py": ("fail: 1 violation", "812"),
}


def test_every_example_is_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    for part in EXPECTED[name]:
        assert part in result.stdout
