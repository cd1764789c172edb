"""How far a start had come when it failed, rank by rank, and what its lines tell about the static fraction it needed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from kvcanary.importers.error_entries import F
from kvcanary.importers.log_records import Record
from kvcanary.importers.server_log import PRINTED_ARGUMENTS

# In the order of a start. `profile` is vLLM's trial forward; a draft model may be loaded when the pool stands already.
STAGES = ("load_weights", "profile", "kv_pool", "draft_weights", "graph_capture", "prefill_graph_capture", "serving")
# Said by the main process when the last rank is ready.
_ALL_SERVE = "all serve"
_ORDER = {stage: index for index, stage in enumerate(("", *STAGES))}
_POOL_STANDS = STAGES[STAGES.index("draft_weights") :]
_REACHED = tuple(
    (re.compile(pattern, re.IGNORECASE), stage)
    for pattern, stage in (
        (r"load weight end|available kv cache memory|gpu kv cache size|# (?:gpu|cuda) blocks", "kv_pool"),
        (r"load weight begin|starting to load model|checkpoint shards", "load_weights"),
        (r"model loading took|model weights take|loading model weights took", "profile"),
        (
            r"captur(?:e|ing)\b[^\n]{0,40}?\bprefill\b|capturing num tokens|captur(?:e|ing)\b[^\n]{0,20}?\bpiecewise\b",
            "prefill_graph_capture",
        ),
        (r"memory pool end|captur(?:e|ing)\b[^\n]{0,60}?(?:cuda ?graph|batches|shapes)", "graph_capture"),
        (r"decode batch|prefill batch|max_total_num_tokens=\d+, chunked|prompt throughput", "serving"),
        (r"fired up and ready|startup complete", _ALL_SERVE),
    )
)
_API_SERVER = "vLLM API server version"
_NEW_START = re.compile(r"LLM engine \(v?[\w.+]+\) with config")
_FRACTION = re.compile(rf"\bmem_fraction_static'?[=:] ?(?P<fraction>{F})")
_BEGIN = re.compile(rf"Load weight begin.{{0,60}}?avail mem=(?P<avail>{F}) ?GB")
_END = re.compile(rf"Load weight end.{{0,300}}?avail mem=(?P<avail>{F}) ?GB, mem usage=(?P<used>{F}) ?GB")
_PROGRESS = re.compile(rf"bs=(\d+) avail_mem=({F}) GB")


@dataclass(slots=True)
class StartProgress:
    """Follows a log. `number` counts the starts in it, and everything else is about the last of them.

    first_line is the line that announced it, last_batch the decode batch of the last line of progress, free_before_gib what was free before
    the weights on the rank that had least.
    """

    number: int = 0
    first_line: int = 0
    last_batch: int | None = None
    free_before_gib: float | None = None
    _rank: str = ""
    _stages: dict[str, str] = field(default_factory=dict)
    _furthest: str = ""
    _before: dict[str, float] = field(default_factory=dict)
    _engines: set[str] = field(default_factory=set)
    _processes: dict[str, set[str]] = field(default_factory=dict)
    _announced: int = 0
    _all_serve: bool = False
    _printed_anew: bool = False
    _weights_share: float | None = None
    _printed: float | None = None

    def see(self, record: Record) -> None:
        """Take in one record, in the order of the log."""
        if record.rank is not None:
            self._rank = record.rank
        text = record.text
        head = text[:400]
        self._engine(record, head)
        if PRINTED_ARGUMENTS.search(head) or _NEW_START.search(head):
            # Another start, or another node of the same one: whether a rank loads its weights again tells.
            self._announced = record.line
            self._stages, self._furthest, self._all_serve, self.last_batch = {}, "", False, None
            self._printed_anew, self._printed = True, float(match["fraction"]) if (match := _FRACTION.search(text)) else None
            return
        number, pool_stands = self.number, self._own_stage() in _POOL_STANDS
        if (stage := next((stage for pattern, stage in _REACHED if pattern.search(head)), None)) is not None:
            self._reach(stage)
        self._weights(text, draft=pool_stands and number == self.number)
        for batch, _ in _PROGRESS.findall(text):
            self.last_batch = int(batch[:9])

    def stage(self) -> str:
        """How far the rank that spoke last had come, '' where no line tells.

        All ranks wait for each other behind the weights, so further on one speaks for all.
        """
        return self._own_stage() or ("load_weights" if self._rank and self._furthest == "kv_pool" else self._furthest)

    def known(self) -> dict[str, str]:
        """As groups of a message: `least`, the static fraction that the weights alone take, and `printed`, the one of the arguments."""
        share = self._weights_share
        least = {} if share is None else {"least": f"{math.floor(share * 1000 + 1) / 1000:.3f}"}
        return {**least, **({} if self._printed is None else {"printed": f"{self._printed:g}"})}

    def _engine(self, record: Record, head: str) -> None:
        """vLLM's start begins with its API server, or an engine begins anew: it says so again, or it is another process of the same name."""
        if _API_SERVER in head:
            self._announced = record.line
            self._engines.clear()
            self._processes.clear()
            self._begin()
            return
        is_new = _NEW_START.search(head) is not None
        name, _, process = record.process.partition(" ")
        known = self._processes.setdefault(name, set())
        another = name.startswith("EngineCore") and bool(known) and process not in known
        if another or (is_new and name in self._engines):
            self._announced = record.line
            self._engines.clear()
            self._begin()
        known.add(process)
        if is_new:
            self._engines.add(name)

    def _begin(self) -> None:
        self.number += 1
        self.first_line = self._announced
        self.last_batch, self.free_before_gib, self._weights_share = None, None, None
        if not self._printed_anew:
            self._printed = None
        self._stages, self._before, self._furthest, self._all_serve = {}, {}, "", False

    def _own_stage(self) -> str:
        return "serving" if self._all_serve else self._stages.get(self._rank, "")

    def _reach(self, stage: str) -> None:
        own = self._own_stage()
        if stage == "load_weights" or (stage == "kv_pool" and self._rank not in self._stages):
            if self._printed_anew and self._rank in self._before:
                self._begin()
            self._printed_anew = False
        if stage in ("load_weights", "kv_pool") and own == "serving":
            self._begin()
        elif stage == "load_weights" and own in _POOL_STANDS:
            stage = "draft_weights"
        elif stage == _ALL_SERVE:
            stage, self._all_serve = "serving", True
        self._stages[self._rank] = stage
        self._furthest = max(self._furthest, stage, key=_ORDER.__getitem__)

    def _weights(self, text: str, draft: bool) -> None:
        """What was free before and behind the weights. A draft model loaded when the pool stands leaves less free, but not because of them."""
        if begin := _BEGIN.search(text):
            self._was_free(float(begin["avail"]))
        if end := _END.search(text):
            after = float(end["avail"])
            before = self._was_free(after + float(end["used"]))
            if not draft and 0 < after < before:
                self._weights_share = max(self._weights_share or 0.0, 1 - after / before)

    def _was_free(self, gib: float) -> float:
        """What a rank had before its first weights, which is this where no line said it before."""
        before = self._before.setdefault(self._rank, gib)
        self.free_before_gib = before if self.free_before_gib is None else min(self.free_before_gib, before)
        return before
