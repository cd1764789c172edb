"""Starts a real server for a test and ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_server(
    home: Path,
    *,
    script: Path = ROOT / "app.py",
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    flags: tuple[str, ...] = (),
) -> Iterator[str]:
    """A server of its own with an empty data folder; its address. What it printed is in home/server.log."""
    port = port or free_port()
    home.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}", "--server.headless=true", *flags],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "KVCANARY_HOME": str(home), **(env or {})},
        )  # fmt: skip
        try:
            wait_until_healthy(url, process, home / "server.log")
            yield url
        finally:
            process.terminate()
            process.wait(timeout=20)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Block until the server answers; RuntimeError with its log when it ends or stays silent."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the dashboard did not start:\n{log.read_text()}")
