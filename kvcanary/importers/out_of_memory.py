"""Running out of device memory: what the message says in each wording, and what to change, by engine and by how far the start had come."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix
from kvcanary.importers.amounts import lack_gib
from kvcanary.importers.error_entries import shown, towards
from kvcanary.importers.log_records import Record
from kvcanary.importers.result import ErrorExplanation
from kvcanary.importers.start_progress import StartProgress

_DETAILS_CHARS = 400
_MESSAGE = re.compile(
    r"(?:CUDA|HIP|XPU|NPU|MUSA)(?: driver)?(?: error: out of memory\b| out of memory(?:\.| occurred\b))|"
    # Libraries beside torch allocate too, and say it in their own words.
    r"Cuda failure \d* ?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED"
)
_SIZE = r"(\d+(?:\.\d+)?) ?([TGMK]iB|bytes)"
# torch's wordings: up to 2.0 and on NPUs "(GPU 0; 79.2 GiB total capacity; ...; 5 MiB free; ...)", in 2.1 "capacty", sentences since then.
_DETAILS = tuple(
    (key, unit_gib, re.compile(pattern))
    for key, unit_gib, pattern in (
        ("tried_gib", 1.0, rf"Tried to allocate {_SIZE}"),
        ("total_gib", 1.0, rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity"),
        ("free_mib", 1 / 1024, rf"of which {_SIZE} is free|{_SIZE} free;"),
        ("in_use_gib", 1.0, rf"this process has {_SIZE} memory in use"),
    )
)
_UNITS_GIB = {"TiB": 1024.0, "GiB": 1.0, "MiB": 1 / 1024, "KiB": 1 / (1 << 20), "bytes": 1 / (1 << 30)}


def find_message(text: str) -> tuple[str, dict[str, float]] | None:
    """The sentence, and the figures that it states: tried_gib, total_gib, free_mib, in_use_gib, each only where it is there."""
    message = _MESSAGE.search(text)
    if message is None:
        return None
    end, details = message.end(), {}
    for key, unit_gib, pattern in _DETAILS:
        if match := pattern.search(text, message.end(), message.start() + _DETAILS_CHARS):
            size, unit = (group for group in match.groups() if group is not None)
            # The figure as it is printed, where the unit is ours.
            exact = float(size)
            scale = _UNITS_GIB[unit] / unit_gib
            details[key] = exact if scale == 1 else round(exact * scale, 4)
            end = max(end, match.end())
    return text[message.start() : end], details


Explained = tuple[str, tuple[str, ...], tuple[Fix, ...]]
_LOWER_FRACTION = towards("mem_fraction_static", "--mem-fraction-static", "lower")
_LOWER_UTILIZATION = towards("mem_fraction_static", "--gpu-memory-utilization", "lower")
_FEWER_REQUESTS = towards("req_to_token_pool_size", "--max-num-seqs", "lower")
_FEWER_TOKENS = towards("max_prefill_tokens", "--max-num-batched-tokens", "lower")
_WEIGHTS = "Memory ran out while the weights were loaded."
_WEIGHTS_CAUSES = ("The weights do not fit on this many ranks.", "Another process holds memory on the device.")
_POOL = "Memory ran out while the KV pool was allocated."
_FRACTION_HIGH = "The static fraction is too high: it has to go down."
_UTILIZATION_HIGH = "The utilization is too high: graphs, samplers and forwards need memory beside the KV cache."
_UNKNOWN = "Memory ran out. The text does not show how far the start had come, and what to change depends on that."
_SGLANG: dict[str, Explained] = {
    "": (
        _UNKNOWN,
        (
            "Behind 'Load weight end': the static fraction is too high and leaves too little beside the pool.",
            "Before it: the weights do not fit on this many ranks.",
            "Another process holds memory on the device.",
        ),
        (_LOWER_FRACTION, towards("tp_size", "--tp-size", "raise")),
    ),
    "load_weights": (_WEIGHTS, _WEIGHTS_CAUSES, (towards("tp_size", "--tp-size", "raise"),)),
    "kv_pool": (_POOL, ("The static fraction is too high.", "Another process took memory meanwhile."), (_LOWER_FRACTION,)),
    "draft_weights": (
        "Memory ran out while the draft model's weights were loaded: the KV pool was already allocated, so too little was left beside it.",
        (_FRACTION_HIGH,),
        (_LOWER_FRACTION,),
    ),
    "graph_capture": (
        "Memory ran out while decode graphs were captured: the KV pool was already allocated, so too little was left beside it.",
        (_FRACTION_HIGH, "The largest captured batch is too large."),
        (_LOWER_FRACTION, towards("cuda_graph_max_bs", "--cuda-graph-max-bs-decode", "lower")),
    ),
    "prefill_graph_capture": (
        "Memory ran out while prefill graphs were captured: the KV pool was already allocated, so too little was left beside it.",
        (_FRACTION_HIGH, "Prefill graphs hold the activations of many tokens."),
        (_LOWER_FRACTION, fix("cuda_graph_backend_prefill", "disabled")),
    ),
    "serving": (
        "Memory ran out while serving: activations of one forward did not fit beside the pool.",
        ("The prefill chunk is too large for what is left.", "The static fraction is too high."),
        (towards("chunked_prefill_size", "--chunked-prefill-size", "lower"), _LOWER_FRACTION),
    ),
}
_VLLM: dict[str, Explained] = {
    "": (
        _UNKNOWN,
        (
            "Behind the memory profile: the utilization is too high and leaves too little beside the KV cache.",
            "Before it: the weights, or the trial forward, do not fit on this many ranks.",
            "Another process holds memory on the device.",
        ),
        (_LOWER_UTILIZATION, towards("tp_size", "--tensor-parallel-size", "raise")),
    ),
    "load_weights": (_WEIGHTS, _WEIGHTS_CAUSES, (towards("tp_size", "--tensor-parallel-size", "raise"),)),
    "profile": (
        "Memory ran out in the trial forward that measures activations, before any KV was allocated.",
        ("The trial forward has too many tokens or requests.", "The weights leave too little on this many ranks."),
        (_FEWER_TOKENS, _FEWER_REQUESTS, towards("tp_size", "--tensor-parallel-size", "raise")),
    ),
    "kv_pool": (
        "Memory ran out while the KV cache was allocated, or in the forwards that warm up beside it.",
        (_UTILIZATION_HIGH, "Another process took memory meanwhile."),
        (_LOWER_UTILIZATION, _FEWER_REQUESTS),
    ),
    "graph_capture": (
        "Memory ran out while graphs were captured, or behind that: the KV cache was already allocated, so too little was left beside it.",
        (_UTILIZATION_HIGH, "Graphs are captured for batches that are too large."),
        (_LOWER_UTILIZATION, _FEWER_REQUESTS),
    ),
    "serving": (
        "Memory ran out while serving: activations of one forward did not fit beside the KV cache.",
        (_UTILIZATION_HIGH, "One forward has too many tokens."),
        (_LOWER_UTILIZATION, _FEWER_TOKENS),
    ),
}
_VLLM["prefill_graph_capture"] = _VLLM["draft_weights"] = _VLLM["graph_capture"]
_SGLANG["profile"] = _SGLANG["load_weights"]


@dataclass(slots=True)
class OutOfMemory:
    """Reads a log's messages about device memory.

    The last start of a log counts, as its arguments do; of the messages of several ranks at one point of it the one that lacked most.
    """

    engine: str
    progress: StartProgress = field(default_factory=StartProgress)
    _details: dict[str, Any] = field(default_factory=dict)
    _share_of: float | None = None
    _start: int = -1
    _explained: dict[str, int] = field(default_factory=dict)

    def read(self, record: Record) -> ErrorExplanation | None:
        """The explanation of a record, None if it says nothing about device memory or its kind is explained for this start already."""
        # Of a line that was broken, glued reads right inside a number and spaced between two words.
        readings = [found for text in (record.text, record.spaced) if (found := find_message(text)) is not None]
        if not readings:
            return None
        message, figures = max(readings, key=lambda found: len(found[1]))
        stage, number = self.progress.stage(), self.progress.number
        self._keep({**figures, "phase": stage or None}, number)
        label = "oom_graph_capture" if stage.endswith("graph_capture") else "oom"
        if self._explained.get(label) == number:
            return None
        self._explained[label] = number
        explanation, causes, fixes = self._texts(stage)
        return ErrorExplanation(label=label, message=shown(message), explanation=explanation, causes=causes, fixes=fixes, line=record.line)

    def _keep(self, details: dict[str, Any], number: int) -> None:
        if details["phase"] == "graph_capture" and self.progress.last_batch is not None:
            details["last_bs"] = self.progress.last_batch
        worse = details["phase"] == self._details.get("phase") and (lack_gib(details) or 0) > (lack_gib(self._details) or 0)
        if number == self._start and not worse:
            return
        self._details, self._start = details, number
        # SGLang shares out what was free before the weights, on the rank that had least; vLLM shares out the whole device.
        known = [size for size in (details.get("total_gib"), self.progress.free_before_gib) if size is not None and size > 0]
        self._share_of = min(known, default=None)

    def values(self) -> dict[str, Any]:
        """For ImportResult.observed: the figures of the message that counts, and what the static fraction is a share of."""
        if not self._details:
            return {}
        return {"oom": self._details, **({} if self._share_of is None else {"oom_share_of_gib": self._share_of})}

    def _texts(self, stage: str) -> Explained:
        explanation, causes, fixes = (_VLLM if self.engine == "vllm" else _SGLANG)[stage]
        batch = self.progress.last_batch
        if self.engine != "vllm" and stage == "graph_capture" and batch is not None and batch > 1:
            # The batch that failed is known, so a smaller one is.
            fixes = (fix("cuda_graph_max_bs", batch // 2), _LOWER_FRACTION)
        return explanation, causes, fixes
