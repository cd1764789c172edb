"""How often the diagnosis is right: logs whose fault is known, read and diagnosed, as a confusion matrix.

Faults that leave the same marks in a log share one cause; which cause that is stands in TRUTH, fault by fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcanary.analysis.causes import Cause
from kvcanary.analysis.diagnosis import diagnose
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.marks import Confidence
from kvcanary.lab.campaign import Fault, RunKey, wilson
from kvcanary.lab.diagnosis_benchmark import KnownLog

TARGET_SHARE = 0.85

TRUTH: Mapping[Fault, Cause] = {
    ("late_write_after_free", "with_records"): Cause.WRONG_MAPPING,
    ("late_write_after_free", "bytes_only"): Cause.KV_BYTES_CHANGED,
    ("slot_alias", "two_requests"): Cause.WRONG_MAPPING,
    ("slot_alias", "wrong_cell"): Cause.WRONG_MAPPING,
    ("slot_alias", "seed_at_slot_0"): Cause.WRONG_MAPPING,
    ("stale_row", "partly_overwritten"): Cause.WRONG_MAPPING,
    ("stale_row", "fully_overwritten"): Cause.WRONG_MAPPING,
    ("page_table_race", "records_and_bytes"): Cause.WRONG_MAPPING,
    ("page_table_race", "bytes_only"): Cause.KV_BYTES_CHANGED,
    ("position_shift", "one_token"): Cause.POSITION_WRONG,
    ("position_shift", "first_token"): Cause.POSITION_WRONG,
    ("padding_slot", "live_slot"): Cause.KV_BYTES_CHANGED,
    ("spec_rollback", "past_the_reservation"): Cause.WRONG_MAPPING,
    ("spec_rollback", "rejected_token_kept"): Cause.TOKEN_WRONG,
    ("swa_eviction", "reused_inside_window"): Cause.WRONG_MAPPING,
    ("pd_transfer", "bytes_late"): Cause.TRANSFER_INCOMPLETE,
    ("pd_transfer", "page_missing"): Cause.TRANSFER_INCOMPLETE,
    ("pd_transfer", "cut_after_k_layers"): Cause.TRANSFER_INCOMPLETE,
    ("pd_transfer", "first_token_swapped"): Cause.TOKEN_WRONG,
    # A page that arrives in another's place brings its records along, which is what a wrong cell looks like.
    ("pd_transfer", "pages_swapped"): Cause.WRONG_MAPPING,
    ("pd_transfer", "other_request"): Cause.WRONG_MAPPING,
    ("tier_reload", "records_left_behind"): Cause.STALE_RECORD,
    ("tier_reload", "wrong_bytes"): Cause.KV_BYTES_CHANGED,
    ("tier_reload", "partial_copy"): Cause.TRANSFER_INCOMPLETE,
    ("storage_visible_garbage", "half_loaded"): Cause.TRANSFER_INCOMPLETE,
    ("stale_prefix_hit", "node_kept_after_free"): Cause.WRONG_MAPPING,
    ("layout_mismatch", "head_of_row"): Cause.KV_BYTES_CHANGED,
    ("layout_mismatch", "tail_of_row"): Cause.KV_BYTES_CHANGED,
    ("address_overflow", "store_wraps"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "bit_flip"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "later_bytes"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "nan"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "zeroed"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "v_row"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "just_written"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "stuck"): Cause.KV_BYTES_CHANGED,
    ("payload_bytes", "cached_only"): Cause.CACHED_BYTES_CHANGED,
    ("token_swap", "sampler_exit"): Cause.TOKEN_WRONG,
    ("canary_memory", "head_record"): Cause.CANARY_OVERWRITTEN,
    ("canary_memory", "tail_record"): Cause.CANARY_OVERWRITTEN,
    ("draft_pool", "position_ahead"): Cause.POSITION_WRONG,
    ("draft_pool", "chunk_end_token"): Cause.TOKEN_WRONG,
    ("draft_pool", "chunk_end_after_retraction"): Cause.TOKEN_WRONG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first cause that the diagnosis gave to one log. named: the true cause is among the causes and alternatives it lists."""

    key: RunKey
    deployment: str
    mode: str
    truth: Cause
    first: Cause
    confidence: Confidence
    named: bool

    @property
    def right(self) -> bool:
        """The true cause came first."""
        return self.first is self.truth

    @property
    def wrong_and_sure(self) -> bool:
        """A wrong cause was stated with high confidence."""
        return not self.right and self.confidence is Confidence.HIGH


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Answers of one reading. silent: runs that printed no report, which no diagnosis can judge."""

    answers: tuple[Answer, ...]
    silent: int

    @property
    def right(self) -> int:
        """Runs whose true cause came first."""
        return sum(answer.right for answer in self.answers)

    @property
    def share(self) -> float:
        """Share of runs whose true cause came first; 0 without runs."""
        return self.right / len(self.answers) if self.answers else 0.0

    @property
    def wrong_and_sure(self) -> tuple[Answer, ...]:
        """Runs whose wrong cause was stated with high confidence."""
        return tuple(answer for answer in self.answers if answer.wrong_and_sure)

    @property
    def holds(self) -> bool:
        """Both targets: the share, and never sure and wrong."""
        return bool(self.answers) and self.share >= TARGET_SHARE and not self.wrong_and_sure

    def matrix(self) -> Counter[tuple[Cause, Cause]]:
        """Runs by (true cause, first cause)."""
        return Counter((answer.truth, answer.first) for answer in self.answers)

    def by_fault(self) -> list[tuple[Fault, int, int]]:
        """Fault, runs that were right, runs; in the catalogue's order."""
        runs, right = Counter(answer.key[:2] for answer in self.answers), Counter(answer.key[:2] for answer in self.answers if answer.right)
        return [(fault, right[fault], runs[fault]) for fault in TRUTH if runs[fault]]

    def to_document(self) -> dict[str, Any]:
        """JSON-ready form; the interval is Wilson's at 95 %."""
        low, high = wilson(self.right, len(self.answers))
        return {
            "runs": len(self.answers),
            "silent": self.silent,
            "right": self.right,
            "share": self.share,
            "share_low": low,
            "share_high": high,
            "named": sum(answer.named for answer in self.answers),
            "wrong_with_high_confidence": [list(answer.key) for answer in self.wrong_and_sure],
            "confidence": {
                level.name.lower(): [
                    sum(answer.right for answer in self.answers if answer.confidence is level),
                    sum(answer.confidence is level for answer in self.answers),
                ]
                for level in Confidence
            },
            "matrix": [[str(truth), str(first), count] for (truth, first), count in sorted(self.matrix().items())],
            "by_fault": [[".".join(fault), right, runs] for fault, right, runs in self.by_fault()],
        }


def answer_of(log: KnownLog, text: str) -> Answer:
    """Read and diagnose one log."""
    diagnosis = diagnose(read_text(text, name="server.log"))
    first = diagnosis.causes[0]
    truth = TRUTH[log.key[:2]]
    named = {cause.cause for cause in diagnosis.causes} | {other for cause in diagnosis.causes for other in cause.others}
    return Answer(
        key=log.key,
        deployment=log.deployment,
        mode=log.mode,
        truth=truth,
        first=first.cause,
        confidence=first.confidence,
        named=truth in named,
    )


def score(logs: Iterable[KnownLog]) -> tuple[Score, Score]:
    """The whole logs, and the same logs cut before their first report so that nothing of the start is known."""
    whole: list[Answer] = []
    cut: list[Answer] = []
    silent = 0
    for log in logs:
        if not log.text:
            silent += 1
            continue
        whole.append(answer_of(log, log.text))
        cut.append(answer_of(log, log.without_start))
    return Score(answers=tuple(whole), silent=silent), Score(answers=tuple(cut), silent=silent)
