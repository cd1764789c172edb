"""`torchrun -m kvcanary bench`: the benchmark of every rank at the same moment."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from kvcanary.cli.exit_codes import PASS, VERDICT_EXIT_CODES
from kvcanary.cli.options import wide_console, write_document
from kvcanary.errors import StoreError
from kvcanary.escape import terminal_text
from kvcanary.lab.ranks import RankResult, RankRow, overall, rank_rows, run_rank
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.store.home import data_folder, open_store
from kvcanary.units import format_seconds

SHOWN_RANKS = 8


def run(spec: BenchmarkSpec, home: Path | None, json_target: str | None) -> int:
    """Run this rank; rank 0 prints or writes what all of them measured. The exit code of the worst verdict, 0 on the other ranks.

    The runs of one torchrun share a label, ranks: and the start of rank 0's id, and rank 0's run has the outcome as its note.
    """
    results = run_rank(data_folder(os.environ, home), spec, os.environ)
    if results is None:
        return PASS
    rows = rank_rows(results)
    verdict, sentence = overall(results, rows)
    label = f"ranks:{results[0].run_id}"[:60]
    store = open_store(os.environ, home)
    store.count()
    store.set_note(results[0].run_id, sentence)
    for result in results:
        # Runs of other hosts are in this store only where the hosts share it.
        with suppress(StoreError):
            store.add_label(result.run_id, label)
    if json_target is not None:
        document = {"schema": "kvcanary.ranks", "version": 1, "verdict": verdict.value, "sentence": sentence, "label": label}
        ranks = [{name: value for name, value in asdict(result).items() if name != "points"} for result in results]
        write_document(document | {"ranks": ranks, "operations": [asdict(row) for row in rows]}, json_target)
    else:
        _print(results, rows, sentence)
    return VERDICT_EXIT_CODES[verdict.value]


def _print(results: list[RankResult], rows: list[RankRow], sentence: str) -> None:
    console = wide_console()
    console.print(terminal_text(sentence), style="bold")
    for result in results:
        waited = format_seconds(result.waited_s)
        console.print(
            f"rank {result.rank}: {terminal_text(result.host)} {result.device}, waited {waited} for the others, run {result.run_id}"
        )
    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    shown = [result.rank for result in results[:SHOWN_RANKS]]
    for name in (*(f"rank {rank}" for rank in shown), "slowest", "skew"):
        table.add_column(name, justify="right")
    for row in rows:
        what = f"{row.workload} {row.batch}, prefix {row.prefix}, {row.hash_mode}, {row.layout}: {row.op.replace('_', ' ')}"
        medians = (format_seconds(value) for value in row.p50_s[:SHOWN_RANKS])
        table.add_row(what, *medians, f"rank {row.slowest_rank}", f"{row.skew:.2f}")
    console.print(table)
    if len(results) > SHOWN_RANKS:
        console.print(f"The first {SHOWN_RANKS} of {len(results)} ranks; --json has all.")
