"""What an engine's errors mean: explanation, likely causes in order, and what to change, for each message that concerns KV memory or the canary.

The texts are ours; the patterns match the engines' sentences, also where a terminal broke them. Values named in a message become values of the
fixes. Labels are stable. The messages themselves are in canary_errors and memory_errors; running out of device memory is here, because what to
do about it depends on how far the start had come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix
from kvcanary.importers.canary_errors import CANARY
from kvcanary.importers.error_entries import Entry, F, Groups, towards
from kvcanary.importers.log_records import Record
from kvcanary.importers.memory_errors import MEMORY, NEGATIVE
from kvcanary.importers.result import ErrorExplanation

MAX_SHOWN_CHARS = 300
TELLING = re.compile(
    r"kv-canary|kv_canary|kernel_run_counter|[Oo]ut ?[Oo]f ?[Mm]emory|runs out of memory|Not enough memory|leave no GPU memory|"
    r"is larger than the profiled value -|exceeds the maximum allowed length|Mem Leak|memory leak|already freed|sweep-interval requires|"
    r"No available memory for the cache|max seq len|ree memory on device|cannot hold even one request|walk_radix_cache_for_canary|"
    r"full_to_swa_index_mapping|supports at most bs="
)


_OOM = re.compile(
    rf"(?:CUDA|HIP|XPU) out of memory\.(?: Tried to allocate (?P<tried>{F}) ?(?P<tried_unit>[GMK]iB))?"
    rf"(?:.{{0,40}}?total capacity of (?P<total>{F}) ?(?P<total_unit>[GM]iB))?(?: of which (?P<free>{F}) ?(?P<free_unit>[GMK]iB|bytes) is free)?"
    rf"(?:.{{0,160}}?this process has (?P<used>{F}) ?(?P<used_unit>[GM]iB) memory in use)?",
    re.DOTALL,
)
_WEIGHTS = re.compile(rf"Load weight end.{{0,300}}?avail mem=(?P<avail>{F}) ?GB, mem usage=(?P<used>{F}) ?GB")
_PROGRESS = re.compile(rf"bs=(\d+) avail_mem=({F}) GB")
_UNITS_GIB = {"GiB": 1.0, "MiB": 1 / 1024, "KiB": 1 / (1 << 20), "bytes": 1 / (1 << 30)}


def explain(records: Iterable[Record]) -> tuple[list[ErrorExplanation], dict[str, Any]]:
    """Explanations in the order of the text, one per kind, and the values that the messages state."""
    found: list[ErrorExplanation] = []
    values: dict[str, Any] = {}
    stage = _Stage()
    for record in records:
        stage.see(record.text)
        if not (TELLING.search(record.text) or TELLING.search(record.spaced)):
            continue
        for entry in (*CANARY, *MEMORY):
            match = entry.pattern.search(record.text) or entry.pattern.search(record.spaced)
            if match is None:
                continue
            groups = {**stage.known(), **match.groupdict(default="")}
            for name, value in entry.values(groups).items():
                values.setdefault(name, value)
            _add(found, entry, match[0], groups, record.line)
        if match := NEGATIVE.pattern.search(record.text):
            _add(found, NEGATIVE, match[0], {**stage.known(), **match.groupdict()}, record.line)
        if match := _OOM.search(record.text):
            _out_of_memory(found, values, match, record.line, stage)
    if any(entry.label == "negative_pool" for entry in found):
        # The engine's own sentence about the same thing, printed behind it.
        found = [entry for entry in found if entry.label != "no_kv_memory"]
    return found, values


@dataclass(slots=True)
class _Stage:
    """How far the start had come, which decides what to do about running out of memory."""

    name: str = "load_weights"
    last_batch: int | None = None
    least_fraction: float | None = None

    def known(self) -> dict[str, str]:
        """The least static fraction that the weights need, where the text states their size."""
        return {} if self.least_fraction is None else {"least": f"{self.least_fraction:.3f}"}

    def see(self, text: str) -> None:
        if self.least_fraction is None and (match := _WEIGHTS.search(text)):
            free, used = float(match["avail"]), float(match["used"])
            if free > 0 and used > 0:
                self.least_fraction = min(0.999, math.floor(used / (free + used) * 1000 + 1) / 1000)
        lowered = text[:400].lower()
        if "capture cuda graph" in lowered or "capturing batches" in lowered or ("capture" in lowered and "cuda graph" in lowered):
            self.name = "graph_capture"
        elif "load weight end" in lowered:
            self.name = "kv_pool"
        elif "memory pool end" in lowered:
            self.name = "graph_capture"
        elif "fired up" in lowered or "decode batch" in lowered or "prefill batch" in lowered:
            self.name = "serving"
        for batch, _ in _PROGRESS.findall(text):
            self.last_batch = int(batch[:9])


_LOWER_FRACTION = towards("mem_fraction_static", "--mem-fraction-static", "lower")
_MORE_RANKS = towards("tp_size", "--tp-size", "raise")
_OOM_TEXTS: dict[str, tuple[str, tuple[str, ...], tuple[Fix, ...]]] = {
    "graph_capture": (
        "Memory ran out while decode graphs were captured: the KV pool was already allocated, so too little was left beside it.",
        ("The static fraction is too high: it has to go down.", "The largest captured batch is too large."),
        (_LOWER_FRACTION, towards("cuda_graph_max_bs", "--cuda-graph-max-bs-decode", "lower")),
    ),
    "load_weights": (
        "Memory ran out while the weights were loaded.",
        ("The weights do not fit on this many ranks.", "Another process holds memory on the device."),
        (_MORE_RANKS,),
    ),
    "kv_pool": (
        "Memory ran out while the KV pool was allocated.",
        ("The static fraction is too high.", "Another process took memory meanwhile."),
        (_LOWER_FRACTION,),
    ),
    "serving": (
        "Memory ran out while serving: activations of one forward did not fit beside the pool.",
        ("The prefill chunk is too large for what is left.", "The static fraction is too high."),
        (towards("chunked_prefill_size", "--chunked-prefill-size", "lower"), _LOWER_FRACTION),
    ),
}


def _out_of_memory(found: list[ErrorExplanation], values: dict[str, Any], match: re.Match[str], line: int, stage: _Stage) -> None:
    groups = match.groupdict(default="")
    details: dict[str, Any] = dict(values.get("oom", {}))
    for name, key, scale in (("tried", "tried_gib", 1), ("total", "total_gib", 1), ("free", "free_mib", 1024), ("used", "in_use_gib", 1)):
        if groups[name]:
            unit = _UNITS_GIB[groups[f"{name}_unit"]]
            exact = float(groups[name])
            details.setdefault(key, exact if unit * scale == 1 else round(exact * unit * scale, 4))
    details.setdefault("phase", stage.name)
    if stage.name == "graph_capture" and stage.last_batch is not None:
        details.setdefault("last_bs", stage.last_batch)
    values["oom"] = details
    label = "oom_graph_capture" if stage.name == "graph_capture" else "oom"
    if any(entry.label == label for entry in found):
        return
    explanation, causes, fixes = _OOM_TEXTS[stage.name]
    batch = stage.last_batch
    if stage.name == "graph_capture" and batch is not None and batch > 1:
        # The batch that failed is known, so a smaller one is.
        fixes = (fix("cuda_graph_max_bs", batch // 2), _LOWER_FRACTION)
    found.append(ErrorExplanation(label=label, message=_shown(match[0]), explanation=explanation, causes=causes, fixes=fixes, line=line))


def missing_fraction(observed: Mapping[str, Any]) -> float | None:
    """The share of the device (0..1) that the failed allocation of a text lacked; None where its message does not say, or enough was free."""
    oom = observed.get("oom", {})
    if not {"tried_gib", "free_mib", "total_gib"} <= oom.keys() or not oom["total_gib"]:
        return None
    missing_gib = oom["tried_gib"] - oom["free_mib"] / 1024
    return missing_gib / oom["total_gib"] if missing_gib > 0 else None


def _add(found: list[ErrorExplanation], entry: Entry, message: str, groups: Groups, line: int) -> None:
    if any(earlier.label == entry.label for earlier in found):
        return
    found.append(
        ErrorExplanation(
            label=entry.label,
            message=_shown(message),
            explanation=entry.explanation.format(**groups),
            causes=entry.causes,
            fixes=tuple(entry.fixes(groups)),
            line=line,
        )
    )


def _shown(message: str) -> str:
    plain = " ".join(message.split())
    return plain if len(plain) <= MAX_SHOWN_CHARS else plain[: MAX_SHOWN_CHARS - 3] + "..."
