"""What numba kept on disk is used again while it is right, and no longer once any source that it was made of has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvcanary

WALK = """
from kvcanary.lab.bounds_numba import walk
print(walk(3), sum(walk.stats.cache_hits.values()))
"""


def walked(root: Path) -> tuple[int, int]:
    """The end of a chain of three, and how often code from the disk was used."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", WALK]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=120)
    end, hits = done.stdout.split()
    return int(end), int(hits)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("kernels/numba_ops/hashing.py", "return value ^ (value >> _SHIFT_3)", "return value ^ (value >> _SHIFT_1)"),
        ("layout.py", "MIX_SHIFTS = (30,", "MIX_SHIFTS = (29,"),
    ],
)
def test_code_kept_on_disk_is_that_of_the_sources(tmp_path: Path, path: str, before: str, after: str) -> None:
    package = tmp_path / "kvcanary"
    shutil.copytree(Path(kvcanary.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    first, again = walked(tmp_path), walked(tmp_path)
    assert (first[1], again) == (0, (first[0], 1))
    source = package / path
    text = source.read_text()
    assert before in text
    source.write_text(text.replace(before, after))
    changed = walked(tmp_path)
    assert changed[1] == 0
    assert changed[0] != first[0]
