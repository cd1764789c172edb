"""Memory of a control group, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcanary.errors import ConfigError
from kvcanary.lab.usable_memory import container_free_bytes, free_bytes, usable_bytes


def group(path: Path, limit: str, used: int, inactive_file: int) -> Path:
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\nactive_file 9\n")
    return path


def test_cached_pages_count_as_free(tmp_path: Path) -> None:
    assert container_free_bytes(group(tmp_path, "1000", 700, 200)) == 500


def test_nothing_is_left_below_zero(tmp_path: Path) -> None:
    assert container_free_bytes(group(tmp_path, "1000", 1500, 0)) == 0


def test_no_limit_and_no_group(tmp_path: Path) -> None:
    assert container_free_bytes(group(tmp_path, "max", 700, 200)) is None
    assert container_free_bytes(tmp_path / "none") is None


def test_the_host_has_memory_and_an_absent_accelerator_is_named() -> None:
    assert free_bytes("cpu") > 0
    with pytest.raises(ConfigError, match="device cuda:99 is not there"):
        usable_bytes("cuda:99")
