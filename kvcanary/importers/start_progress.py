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
_POOL_STANDS = STAGES[STAGES.index("draft_weights") :]
_REACHED = tuple(
    (re.compile(pattern, re.IGNORECASE), stage)
    for pattern, stage in (
        (r"load weight begin|starting to load model|checkpoint shards", "load_weights"),
        (r"model loading took|model weights take|loading model weights took", "profile"),
        (r"load weight end|available kv cache memory|gpu kv cache size|# (?:gpu|cuda) blocks", "kv_pool"),
        (
            r"captur(?:e|ing)\b[^\n]{0,40}?\bprefill\b|capturing num tokens|captur(?:e|ing)\b[^\n]{0,20}?\bpiecewise\b",
            "prefill_graph_capture",
        ),
        (r"memory pool end|captur(?:e|ing)\b[^\n]{0,60}?(?:cuda ?graph|batches|shapes)", "graph_capture"),
        (r"fired up and ready|decode batch|prefill batch|max_total_num_tokens=\d+, chunked|startup complete|prompt throughput", "serving"),
    )
)
_NEW_START = re.compile(r"LLM engine \(v?[\w.+]+\) with config")
_FRACTION = re.compile(rf"\bmem_fraction_static'?[=:] ?(?P<fraction>{F})")
_BEGIN = re.compile(rf"Load weight begin.{{0,60}}?avail mem=(?P<avail>{F}) ?GB")
_END = re.compile(rf"Load weight end.{{0,300}}?avail mem=(?P<avail>{F}) ?GB, mem usage=(?P<used>{F}) ?GB")
_PROGRESS = re.compile(rf"bs=(\d+) avail_mem=({F}) GB")


@dataclass(slots=True)
class StartProgress:
    """Follows a log. `number` counts the starts in it, and everything else is about the last of them; memory is GiB by rank."""

    number: int = 0
    last_batch: int | None = None
    _rank: str = ""
    _stages: dict[str, str] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)
    _after: dict[str, float] = field(default_factory=dict)
    _asked: float | None = None

    def see(self, record: Record) -> None:
        """Take in one record, in the order of the log."""
        if record.rank is not None:
            self._rank = record.rank
        text = record.text
        head = text[:400]
        if PRINTED_ARGUMENTS.search(head) or _NEW_START.search(head):
            self._begin()
            self._asked = float(match["fraction"]) if (match := _FRACTION.search(text)) else None
            return
        number, pool_stands = self.number, self._stages.get(self._rank) in _POOL_STANDS
        if (stage := next((stage for pattern, stage in _REACHED if pattern.search(head)), None)) is not None:
            self._reach(stage)
        self._weights(text, draft=pool_stands and number == self.number)
        for batch, _ in _PROGRESS.findall(text):
            self.last_batch = int(batch[:9])

    def stage(self) -> str:
        """How far the rank that spoke last had come, '' where no line tells.

        All ranks wait for each other behind the weights, so further on one speaks for all.
        """
        if (own := self._stages.get(self._rank)) is not None:
            return own
        furthest = max(self._stages.values(), key=STAGES.index, default="")
        return "load_weights" if self._rank and furthest == "kv_pool" else furthest

    def free_before_gib(self) -> float | None:
        """What was free before the weights were loaded, on the rank that had least; None where no line tells."""
        return min(self._before.values(), default=None)

    def known(self) -> dict[str, str]:
        """As groups of a message: `least`, the static fraction that the weights alone take, and `asked`, the one that the start had."""
        shares = [1 - after / before for rank, after in self._after.items() if 0 < after < (before := self._before[rank])]
        least = {"least": f"{min(0.999, math.floor(max(shares) * 1000 + 1) / 1000):.3f}"} if shares else {}
        return {**least, **({} if self._asked is None else {"asked": f"{self._asked:g}"})}

    def _begin(self) -> None:
        self.number += 1
        self.last_batch, self._asked = None, None
        self._stages, self._before, self._after = {}, {}, {}

    def _reach(self, stage: str) -> None:
        own = self._stages.get(self._rank)
        if stage == "serving":
            self._stages = dict.fromkeys(self._stages, stage)
        elif stage in ("load_weights", "kv_pool") and own == "serving":
            self._begin()
        elif stage == "load_weights" and own in _POOL_STANDS:
            stage = "draft_weights"
        self._stages[self._rank] = stage

    def _weights(self, text: str, draft: bool) -> None:
        """What was free before and behind the weights. A draft model loaded when the pool stands leaves less free, but not because of them."""
        if begin := _BEGIN.search(text):
            self._before.setdefault(self._rank, float(begin["avail"]))
        if end := _END.search(text):
            after = float(end["avail"])
            self._before.setdefault(self._rank, after + float(end["used"]))
            if not draft:
                self._after[self._rank] = after
