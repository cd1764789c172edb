"""`kvcanary bench`: measure stamp and verify on this machine, and prove that the detector works here."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvcanary.analysis.roofline import roofline_frame, roofline_variant, roofline_variants, sentence
from kvcanary.cli.exit_codes import PASS, VERDICT_EXIT_CODES
from kvcanary.cli.follow import follow_job
from kvcanary.cli.options import VERDICT_STYLES, Home, JsonTarget, fail, read_settings, wide_console, with_settings, write_document
from kvcanary.errors import ConfigError, KvCanaryError
from kvcanary.escape import terminal_text
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec, Point, RunRecord
from kvcanary.lab.tables import forward_text, point_rows, share_text
from kvcanary.lab.workloads import PRESETS, plan_benchmark
from kvcanary.store.database import Store
from kvcanary.store.home import open_store
from kvcanary.units import format_count, format_rate, format_seconds, parse_seconds

_DIAGNOSIS = "diagnosis"
# What torchrun gives to each process that it starts.
_TORCHRUN = "TORCHELASTIC_RUN_ID"


@with_settings
def command(
    given: dict[str, Any],
    preset: Annotated[
        str, typer.Option(help=f"How much to measure: {', '.join(PRESETS)}; or {_DIAGNOSIS}, which scores Inspect.")
    ] = "quick",
    backend: Annotated[str, typer.Option(help="auto, numba, torch, reference or triton; auto says what it chose and why.")] = "auto",
    run_on: Annotated[str, typer.Option(help="Where this benchmark runs: cpu, or an accelerator such as cuda:0.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of slots, tokens and planted faults; the same seed gives the same run.")] = 1,
    faults: Annotated[bool, typer.Option(help="Plant faults before the final sweep, which has to find all of them and no other.")] = True,
    step_time: Annotated[
        str | None, typer.Option(help="Time of one forward of the model, such as '20 ms': shows the canary's share of it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and about how long, and stop.")] = False,
    home: Home = None,
    json_target: JsonTarget = None,
) -> None:
    """Check the backend against the reference and against planted faults, then time stamp and verify beside their bounds.

    Ctrl-C stops the run and keeps what was measured; once more ends it at once. Progress goes to standard error.

    Exit code 0: pass · 1: fail · 2: bad input · 3: partial · 4: not run.

    Examples:

      kvcanary bench --from laptop

      kvcanary bench --pool-slot-count 392920 --req-to-token-pool-size 4096 --real-data partial --preset standard --json run.json

      torchrun --nproc-per-node 8 -m kvcanary bench --from qwen3-8b-h100 --run-on cuda
    """
    if preset == _DIAGNOSIS:
        # It brings pandas along, which no other preset needs.
        from kvcanary.cli import bench_diagnosis

        raise typer.Exit(bench_diagnosis.run(seed, json_target))
    settings, problems = read_settings(given)
    if problems:
        fail("\n".join(problem.message for problem in problems))
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        spec = BenchmarkSpec(
            settings=settings.to_flat(), preset=preset, backend=backend, device=run_on, seed=seed, faults=faults,
            step_time_s=_step_time_s(step_time),
        )  # fmt: skip
        if _TORCHRUN in os.environ and not dry_run:
            # It brings torch along, which the plan does not need.
            from kvcanary.cli import bench_ranks

            raise typer.Exit(bench_ranks.run(spec, home, json_target))
        plan = plan_benchmark(spec)
        errors.print(terminal_text(plan.sentence))
        for reason in plan.skipped:
            errors.print(f"left out: {terminal_text(reason)}")
        if dry_run:
            if json_target is not None:
                write_document(plan.to_document(), json_target)
            raise typer.Exit(PASS)
        store = open_store(os.environ, home)
        record = _run(spec, store, errors)
        if json_target is not None:
            write_document(store.document(record.id), json_target)
        else:
            _print(record, store)
    except (ConfigError, KvCanaryError) as error:
        fail(str(error))
    raise typer.Exit(VERDICT_EXIT_CODES[record.verdict.value])


def _step_time_s(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"--step-time {error}") from None


def _run(spec: BenchmarkSpec, store: Store, errors: Console) -> RunRecord:
    """Start the job and follow it to its end."""
    manager = JobManager(store.root)
    try:
        return follow_job(manager, manager.start(spec), errors)
    finally:
        manager.close()


def _print(record: RunRecord, store: Store) -> None:
    console = wide_console()
    console.print(f"[{VERDICT_STYLES[record.verdict.value]}]{terminal_text(record.sentence)}[/]")
    if record.error:
        console.print(terminal_text(record.error))
    console.print(
        f"backend {terminal_text(record.backend.get('reason', 'not chosen'))}; run {record.id} in {terminal_text(str(store.root))}"
    )
    for check in record.gate:
        console.print(f"  {'held  ' if check.ok else '[red]FAILED[/]'} {terminal_text(check.name)}: {terminal_text(check.detail)}")
    points = store.points(record.id)
    if points:
        console.print(_table(points, record.spec.get("step_time_s")))
        frame = roofline_frame(points, record.limits)
        for variant in roofline_variants(frame)[:1]:
            console.print(f"{', '.join(variant)}: {sentence(roofline_variant(frame, *variant), record.limits)}", markup=False)
    for fault in record.faults:
        where = f"reported at {', '.join(fault['expected'])}" if fault["expected"] else "out of reach"
        console.print(f"  planted {terminal_text(fault['kind'])} at slot {fault['slot']}: {where} ({terminal_text(fault['why'])})")


def _table(points: list[Point], step_time_s: float | None) -> Table:
    table = Table(box=None, pad_edge=False)
    words, numbers = ("workload", "slots", "hash", "op"), ("batch", "rate", "median", "share of bound", "one forward")
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    for row in point_rows(points):
        what = "tokens" if row["op"] == "stamp" else "slots"
        forward = "" if row["forward_s"] is None else forward_text(row["forward_s"], step_time_s)
        table.add_row(
            row["workload"], row["layout"], row["hash_mode"], row["op"], format_count(row["batch"]), format_rate(row["items_per_s"], what),
            format_seconds(row["p50_s"]), share_text(row["share_of_bound"]), forward,
        )  # fmt: skip
    return table
