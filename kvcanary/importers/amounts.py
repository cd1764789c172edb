"""Amounts for the fixes of an error: what the text itself tells about how far a flag has to go, in words and as numbers with their units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.fix_amounts import least_step_down, with_amount
from kvcanary.config.settings import read_flat

# What one of a field's number is; a field that is not here has words for values.
_UNITS = {
    "mem_fraction_static": "fraction",
    "swa_full_tokens_ratio": "fraction",
    "cuda_graph_max_bs": "requests",
    "req_to_token_pool_size": "requests",
    "max_running_requests": "requests",
    "max_seq_len_per_req": "tokens",
    "max_prefill_tokens": "tokens",
    "chunked_prefill_size": "tokens",
    "pool_slot_count": "slots",
    "ring_capacity": "rows",
    "sweep_interval": "forwards",
    "tp_size": "ranks",
}


def lack_gib(details: Mapping[str, Any]) -> float | None:
    """How much of an allocation that failed was not free, in GiB; None where its message does not say, or enough was free."""
    if not {"tried_gib", "free_mib"} <= details.keys():
        return None
    lack: float = details["tried_gib"] - details["free_mib"] / 1024
    return lack if lack > 0 else None


def missing_fraction(observed: Mapping[str, Any]) -> float | None:
    """The share (0..1) that the failed allocation of a text lacked of what the static fraction is a share of; None where nothing tells."""
    lack, whole = lack_gib(observed.get("oom", {})), observed.get("oom_share_of_gib")
    return min(1.0, lack / whole) if lack is not None and whole else None


def with_amounts(fixes: Iterable[Fix], observed: Mapping[str, Any], stated: Mapping[str, Any]) -> list[Fix]:
    """The fixes of an error with the values that its text allows; `stated` are the settings fields of that text."""
    settings, missing = read_flat(stated)[0], missing_fraction(observed)
    return [with_amount(fix, settings, stated, missing) for fix in fixes]


def fix_document(fix: Fix, observed: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """A fix, JSON-ready. Its amounts are numbers whose keys end in their unit; fractions are 0..1.

    value_...: for the field. flag_...: for the flag, where it counts otherwise (over all ranks, or without the spare tokens of a row).
    lower_by_...: the least step where the value before it is not known. missing_fraction: what the allocation lacked of the memory.
    """
    amounts: dict[str, int | float] = {}
    unit, number = _UNITS.get(fix.field, ""), fix.flag.rpartition(" ")[2]
    if unit and fix.amount_known and isinstance(fix.value, int | float):
        amounts[f"value_{unit}"] = fix.value
        if number.isdecimal() and int(number) != fix.value:
            amounts[f"flag_{unit}"] = int(number)
    missing = missing_fraction(observed)
    if missing is not None and fix.field == "mem_fraction_static" and (fix.amount_known or fix.text.startswith("lower ")):
        amounts["missing_fraction"] = round(missing, 6)
        if not fix.amount_known and "mem_fraction_static" not in stated:
            amounts["lower_by_fraction"] = least_step_down(missing)
    plain = {"field": fix.field, "value": fix.value, "flag": fix.flag, "text": fix.text, "amount_known": fix.amount_known}
    return {**plain, "amounts": amounts}
