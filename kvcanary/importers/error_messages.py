"""What an engine's errors mean: explanation, likely causes in order, and what to change, for each message that concerns KV memory or the canary.

The texts are ours; the patterns match the engines' sentences, also where a terminal broke them. Values named in a message become values of the
fixes. Labels are stable. The messages themselves are in canary_errors, memory_errors, sizing_errors,
refused_arguments and out_of_memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvcanary.importers.canary_errors import CANARY
from kvcanary.importers.error_entries import Entry, Groups, shown
from kvcanary.importers.log_records import Record
from kvcanary.importers.memory_errors import MEMORY, NEGATIVE
from kvcanary.importers.out_of_memory import OutOfMemory
from kvcanary.importers.refused_arguments import REFUSED
from kvcanary.importers.result import ErrorExplanation
from kvcanary.importers.sizing_errors import SIZING

TELLING = re.compile(
    r"kv-canary|kv_canary|kernel_run_counter|[Oo]ut ?[Oo]f ?[Mm]emory|runs out of memory|Not enough (?:GPU )?memory|leave no GPU memory|"
    r"is larger than the profiled value -|exceeds the maximum allowed length|Mem Leak|memory leak|already freed|sweep-interval requires|"
    r"No available memory for the cache|max seq len|ree memory on device|cannot hold even one request|walk_radix_cache_for_canary|"
    r"full_to_swa_index_mapping|supports at most bs=|state cache is too small|leaves no room for the full|cannot fit\s*ONE worst-case|"
    r"pool exhausted|memory capacity is unbalanced|CUBLAS_STATUS_ALLOC_FAILED|"
    r"error: (?:unrecognized arguments|argument)"
)


def explain(records: Iterable[Record], engine: str) -> tuple[list[ErrorExplanation], dict[str, Any]]:
    """Explanations in the order of the text, one per kind, and the values that the messages state."""
    found: list[ErrorExplanation] = []
    values: dict[str, Any] = {}
    memory = OutOfMemory(engine)
    for record in records:
        memory.progress.see(record)
        if not (TELLING.search(record.text) or TELLING.search(record.spaced)):
            continue
        for entry in (*CANARY, *MEMORY, *SIZING, *REFUSED):
            match = entry.pattern.search(record.text) or entry.pattern.search(record.spaced)
            if match is None:
                continue
            groups = {**memory.progress.known(), **match.groupdict(default="")}
            for name, value in entry.values(groups).items():
                values.setdefault(name, value)
            _add(found, entry, match[0], groups, record.line)
        if match := NEGATIVE.pattern.search(record.text):
            _add(found, NEGATIVE, match[0], {**memory.progress.known(), **match.groupdict()}, record.line)
        if (explained := memory.read(record)) is not None:
            found = [*(earlier for earlier in found if earlier.label != explained.label), explained]
    values.update(memory.values())
    if any(entry.label == "negative_pool" for entry in found):
        # The engine's own sentence about the same thing, printed behind it.
        found = [entry for entry in found if entry.label != "no_kv_memory"]
    return found, values


def _add(found: list[ErrorExplanation], entry: Entry, message: str, groups: Groups, line: int) -> None:
    if any(earlier.label == entry.label for earlier in found):
        return
    found.append(
        ErrorExplanation(
            label=entry.label,
            message=shown(message),
            explanation=entry.explanation.format(**groups),
            causes=entry.causes,
            fixes=tuple(entry.fixes(groups)),
            line=line,
        )
    )
