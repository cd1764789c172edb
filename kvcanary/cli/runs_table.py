"""Runs as a table of the command line, and the ages by which they are chosen."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from rich.table import Table

from kvcanary.errors import ConfigError
from kvcanary.escape import terminal_text
from kvcanary.store.rows import RunRow
from kvcanary.units import format_bytes, format_count

_AGE = re.compile(r"([0-9]{1,6})\s*(min|h|d|w)")
_AGE_S = {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_CELL_CHARS = 40


def read_age(text: str) -> float:
    """Seconds since the epoch of '7d' ago or of a date, in UTC as run ids and lists are; ConfigError shows the accepted forms."""
    if match := _AGE.fullmatch(text.strip()):
        return time.time() - int(match[1]) * _AGE_S[match[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"an age must look like 30min, 12h, 7d, 2w or 2026-01-31, got {text[:40]!r}") from None


def how_many(rows: list[RunRow]) -> str:
    """'3 runs (1.2 MiB)'."""
    return f"{format_count(len(rows))} {'run' if len(rows) == 1 else 'runs'} ({format_bytes(sum(row.size_bytes for row in rows))})"


def run_table(rows: list[RunRow]) -> Table:
    """One line per run: id, when it was made, outcome, where it ran, labels, note and size."""
    table = Table(box=None, pad_edge=False)
    for name in ("run", "made (UTC)", "verdict", "state", "model", "machine", "labels", "note"):
        table.add_column(name, overflow="fold" if name == "run" else "ellipsis", no_wrap=name != "run")
    table.add_column("size", justify="right")
    for row in rows:
        made = datetime.fromtimestamp(row.created_s, UTC).strftime("%Y-%m-%d %H:%M")
        words = (row.model, row.machine, ", ".join(row.labels), row.note.replace("\n", " "))
        table.add_row(
            row.id, made, row.verdict.value, row.state.value, *(terminal_text(_cut(word)) for word in words), format_bytes(row.size_bytes)
        )
    return table


def _cut(words: str) -> str:
    return words if len(words) <= _CELL_CHARS else f"{words[: _CELL_CHARS - 1]}…"
