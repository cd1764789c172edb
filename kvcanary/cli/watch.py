"""`kvcanary watch`: follow server logs and print violations as they come; optionally serve Prometheus metrics."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, start_http_server
from rich.console import Console

from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.inspection import violation_data
from kvcanary.analysis.metrics import LogMetrics
from kvcanary.analysis.violations import Violation
from kvcanary.cli.exit_codes import BAD_INPUT, FAIL, PASS
from kvcanary.escape import terminal_text, visible


def command(
    logs: Annotated[list[Path], typer.Argument(help="Logs to follow; a file that does not exist yet is waited for.")],
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port (0 = any free one).")
    ] = None,
    metrics_address: Annotated[str, typer.Option(help="Address to serve metrics on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    interval_s: Annotated[float, typer.Option("--interval", min=0.05, max=60.0, help="Seconds between two looks.")] = 1.0,
    from_end: Annotated[bool, typer.Option("--from-end", help="Skip what the logs already hold.")] = False,
    for_s: Annotated[float | None, typer.Option("--for", min=0.0, help="Stop after this many seconds; without it, on Ctrl-C.")] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="One JSON object per violation, with the fields of inspect --json, instead of text.")
    ] = False,
) -> None:
    """Follow server logs through rotation and truncation and print each violation as it comes.

    Exit code 1 when a violation was seen, else 0.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    follower = LogFollower(logs, from_end=from_end)
    metrics = LogMetrics(follower)
    if metrics_port is not None:
        try:
            port = _serve(metrics, metrics_port, metrics_address)
        except OSError as error:
            errors.print(f"--metrics-port {metrics_port} on {metrics_address} cannot be opened: {error.strerror}; choose another port or 0")
            raise typer.Exit(BAD_INPUT) from error
        errors.print(f"metrics on http://{metrics_address}:{port}/metrics")
    for path in follower.missing:
        if not path.exists():
            errors.print(f"waiting for {terminal_text(str(path))}")
    shown = 0
    deadline = None if for_s is None else time.monotonic() + for_s
    try:
        while True:
            metrics.update()
            table = follower.builder.violations
            for row in range(shown, len(table)):
                print(_json_line(table[row]) if json_lines else visible(_line(table[row])), flush=True)
            shown = len(table)
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(interval_s)
    except KeyboardInterrupt:
        pass
    finally:
        follower.close()
    raise typer.Exit(FAIL if len(follower.builder.violations) else PASS)


def _serve(metrics: LogMetrics, port: int, address: str) -> int:
    registry = CollectorRegistry()
    registry.register(metrics)
    server, _ = start_http_server(port, addr=address, registry=registry)
    return int(server.server_address[1])


def _json_line(violation: Violation) -> str:
    # Everything outside of ASCII is written as an escape, so no control or direction character reaches the terminal.
    return json.dumps(violation_data(violation))


def _line(violation: Violation) -> str:
    place = "?" if violation.slot_idx is None else f"{violation.slot_idx}"
    position = "?" if violation.position is None else f"{violation.position}"
    step = "" if violation.step is None else f" step {violation.step}"
    reasons = "+".join(violation.reasons) or "none"
    when = f"{violation.time} " if violation.time else ""
    return f"{when}{violation.stream.label} {violation.launch_tag} {reasons} slot {place} position {position}{step}"
