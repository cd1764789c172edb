"""Candidates for settings fields: which source a field is taken from, and what is shown where sources differ.

The engines' own names become fields in sglang_fields and vllm_fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvcanary.config.findings import Finding
from kvcanary.config.settings import parse_field
from kvcanary.errors import ConfigError
from kvcanary.importers.flags import note
from kvcanary.importers.result import RANK_ORDER, Conflict, FieldValue, Rank, Unresolved

Place = Callable[[str], str]


KV_DTYPES = {
    "auto": "auto", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "half": "float16", "float16": "float16", "float32": "float32",
    "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "mxfp8": "mxfp8", "nvfp4": "fp4_e2m1", "fp4_mx_block16": "fp4_e2m1",
    "fp4_e2m1": "fp4_e2m1", "torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.float32": "float32",
    "torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e4m3fnuz": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2",
    "torch.float4_e2m1fn_x2": "fp4_e2m1",
}  # fmt: skip
MODEL_DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}


class FieldSet:
    """Candidates for settings fields; the nearest source wins and the others are kept as conflicts where they differ."""

    def __init__(self) -> None:
        self.candidates: dict[str, list[FieldValue]] = {}
        self.findings: list[Finding] = []

    def put(self, name: str, value: Any, source: str, rank: Rank, derived: str = "") -> None:
        """Offer a value; None and unresolved expressions are no statement, and an illegal one becomes a finding."""
        if value is None or isinstance(value, Unresolved):
            return
        try:
            typed = parse_field(name, value)
        except ConfigError as error:
            self.findings.append(
                note("field-not-set", f"{error} ({source})", "The value has no place in the settings, so it was not taken.")
            )
            return
        self.add(name, FieldValue(value=typed, source=source, rank=rank, derived=derived))

    def add(self, name: str, entry: FieldValue) -> None:
        """Offer a value that was read before."""
        self.candidates.setdefault(name, []).append(entry)

    def settle(self) -> tuple[dict[str, FieldValue], list[Conflict]]:
        """The nearest source of each field; within one kind of source the first."""
        fields: dict[str, FieldValue] = {}
        conflicts: list[Conflict] = []
        for name, entries in self.candidates.items():
            # "auto" leaves the choice to the engine; a line that shows what it chose is no contradiction.
            decided = [entry for entry in entries if entry.value != "auto"] or entries
            ordered = sorted(decided, key=lambda entry: RANK_ORDER.index(entry.rank))
            fields[name] = ordered[0]
            distinct = [entry for index, entry in enumerate(ordered) if entry.value not in [earlier.value for earlier in ordered[:index]]]
            if len(distinct) > 1 and name != "model":  # A path and a class name are both right.
                reason = _reason(name, distinct)
                conflicts.append(Conflict(name=name, candidates=tuple(distinct), chosen=ordered[0], reason=reason))
        return fields, conflicts


def _reason(name: str, entries: list[FieldValue]) -> str:
    first, second = entries[0], entries[1]
    if name == "pool_slot_count" and first.rank is Rank.INSTALL and second.value < first.value:
        return "the canary was installed for the larger pool; it was resized after graph capture"
    if first.rank is second.rank:
        return f"two sources of the same kind ({first.rank}) differ; the first is taken"
    return f"taken from the {first.rank}, which is nearer to what the server does than the {second.rank}"


def merge_fields(entries: Iterable[tuple[Mapping[str, FieldValue], Iterable[Conflict]]]) -> FieldSet:
    """Put the fields of several readings together, with the candidates that lost in one of them."""
    found = FieldSet()
    for fields, conflicts in entries:
        for name, entry in fields.items():
            found.add(name, entry)
        for conflict in conflicts:
            for candidate in conflict.candidates:
                if conflict.chosen is not None and candidate not in found.candidates.get(conflict.name, []):
                    found.add(conflict.name, candidate)
    return found
