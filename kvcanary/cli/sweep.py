"""`kvcanary sweep`: every point of a grid or a list, on this host or on a Ray cluster, each once."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.cli.exit_codes import FAIL, NOT_RUN, PARTIAL, PASS
from kvcanary.cli.options import Home, JsonTarget, fail, read_file, wide_console, write_document
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.lab.sweep import TEXT_LIMIT, Sweep, read_sweep
from kvcanary.store.home import DATABASE_VARIABLE, FILES_VARIABLE, data_folder
from kvcanary.store.sweeps import Executor, LocalExecutor, Outcome, Place, RayExecutor, finished, run_sweep
from kvcanary.units import format_bytes, format_count, format_seconds


def command(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The sweep: name, kind, base, grid, points.")],
    executor: Annotated[str, typer.Option(help="local: worker processes, one per device; ray: a Ray cluster.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Of the cluster: auto, ray://host:port; empty starts one on this host.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points with time and memory, and stop.")] = False,
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:
    """Run every point of a sweep. The same call again runs what is missing; a point that fails does not end it; Ctrl-C stops it.
    The page Runs of the same data folder shows how far it is and can stop it too.

    A file such as this one has four points; runs get the label sweep:hash-cost, by which the page Runs and `kvcanary runs list` find them:

      name: hash-cost
      kind: bench
      base: {preset_settings: laptop, preset: quick}
      grid:
        real_data: \\[none, partial]
        backend: \\[numba, torch]

    Exit code 0: every point passed · 1: a point's verdict is fail · 2: bad input · 3: a point is missing or partial · 4: nothing ran.
    """
    try:
        chosen = _executor(executor, ray_address)
        sweep = read_sweep(read_file(spec, 4 * TEXT_LIMIT, "a sweep file"), elsewhere=isinstance(chosen, RayExecutor))
        place = Place(
            home=str(data_folder(os.environ, home).resolve()), database_url=os.environ.get(DATABASE_VARIABLE, ""),
            files_url=os.environ.get(FILES_VARIABLE, ""),
        )  # fmt: skip
        if dry_run:
            _print_plan(sweep, set(finished(sweep, place)), json_target)
            raise typer.Exit(PASS)
        outcomes = _run(sweep, place, chosen)
    except KvCanaryError as error:
        fail(str(error))
    if json_target is not None:
        document = {"schema": "kvcanary.sweep", "version": 1, "name": sweep.name, "kind": sweep.kind}
        write_document(document | {"points": [asdict(outcome) for outcome in outcomes]}, json_target)
    else:
        _print(sweep, outcomes)
    raise typer.Exit(_exit_code(sweep, outcomes))


def _executor(name: str, address: str) -> Executor:
    if name == "local":
        return LocalExecutor()
    if name == "ray":
        return RayExecutor(address)
    raise ConfigError(f"executor must be local or ray, got {name[:40]!r}")


def _run(sweep: Sweep, place: Place, executor: Executor) -> list[Outcome]:
    """All outcomes, or those until an interrupt; each is told on standard error as it comes."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    labels = {point.key: point.label for point in sweep.points}
    outcomes: list[Outcome] = []
    stream = run_sweep(sweep, place, executor)
    try:
        for outcome in stream:
            outcomes.append(outcome)
            what = "found" if outcome.found else outcome.state
            errors.print(
                f"{len(outcomes)} of {len(sweep.points)} {what}: {terminal_text(labels[outcome.key])}: {terminal_text(outcome.sentence)}"
            )
    except KeyboardInterrupt:
        errors.print("stopping; what has run is kept")
    finally:
        stream.close()
    return outcomes


def _print_plan(sweep: Sweep, done: set[str], json_target: str | None) -> None:
    rows = [
        {
            "key": point.key, "point": point.label, "estimate_s": point.estimate_s, "peak_bytes": point.peak_bytes,
            "done": point.key in done, "problem": point.problem,
        }
        for point in sweep.points
    ]  # fmt: skip
    missing = [point for point in sweep.points if point.key not in done and not point.problem]
    seconds, peak = sum(point.estimate_s for point in missing), max((point.peak_bytes for point in missing), default=0)
    if json_target is not None:
        document = {"schema": "kvcanary.sweep_plan", "version": 1, "name": sweep.name, "kind": sweep.kind, "points": rows}
        write_document(document | {"missing": len(missing), "estimate_s": seconds, "peak_bytes": peak}, json_target)
        return
    console = wide_console()
    table = Table(box=None, pad_edge=False)
    for name, side in (("point", "left"), ("time", "right"), ("memory", "right"), ("state", "left")):
        table.add_column(name, justify="right" if side == "right" else "left")
    for point in sweep.points:
        state = f"cannot run: {point.problem}" if point.problem else "done" if point.key in done else "missing"
        memory = format_bytes(point.peak_bytes) if point.peak_bytes else ""
        table.add_row(
            terminal_text(point.label), format_seconds(point.estimate_s) if not point.problem else "", memory, terminal_text(state)
        )
    console.print(table)
    problems = sum(bool(point.problem) for point in sweep.points)
    counts = {"done": len(sweep.points) - len(missing) - problems, "missing": len(missing), "cannot run": problems}
    memory = f", at most {format_bytes(peak)} of memory" if peak else ""
    estimate = f"; about {format_seconds(seconds)} one after another (an estimate){memory}" if missing else ""
    words = ", ".join(f"{format_count(count)} {word}" for word, count in counts.items() if count)
    console.print(f"{_points(sweep)}: {words}{estimate}.")


def _print(sweep: Sweep, outcomes: list[Outcome]) -> None:
    console = wide_console()
    found = {outcome.key: outcome for outcome in outcomes}
    table = Table(box=None, pad_edge=False)
    for name in ("point", "state", "verdict", "run"):
        table.add_column(name)
    for point in sweep.points:
        outcome = found.get(point.key)
        cells = ("missing", "", "") if outcome is None else (outcome.state, outcome.verdict, outcome.run_id)
        table.add_row(terminal_text(point.label), *cells)
    console.print(table)
    done = sum(outcome.done for outcome in outcomes)
    console.print(f"{format_count(done)} of {_points(sweep)} done; label {terminal_text(sweep.label)}.")


def _points(sweep: Sweep) -> str:
    return f"{format_count(len(sweep.points))} point{'' if len(sweep.points) == 1 else 's'}"


def _exit_code(sweep: Sweep, outcomes: list[Outcome]) -> int:
    if any(outcome.verdict == "fail" for outcome in outcomes):
        return FAIL
    if not any(outcome.done for outcome in outcomes):
        return NOT_RUN
    whole = len(outcomes) == len(sweep.points) and all(outcome.done and outcome.verdict == "pass" for outcome in outcomes)
    return PASS if whole else PARTIAL
