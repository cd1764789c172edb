"""Values for fixes of which an error message tells only the direction, taken from what else is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import memory_plan
from kvcanary.config.remedies import fraction_for_one_request
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import format_count

_HALVED = ("cuda_graph_max_bs", "chunked_prefill_size", "max_prefill_tokens", "req_to_token_pool_size", "max_running_requests")
_DOUBLED = ("tp_size",)


def with_amount(fix: Fix, settings: Settings, stated: Mapping[str, Any], missing_fraction: float | None = None) -> Fix:
    """The fix with a value; where none can be told, with what would tell it, or unchanged.

    Only a bare direction ('lower --page-size') gets one; a fix that says what for keeps its words. `stated` holds the fields of the text that
    failed, so that the value does not move when it is taken over into `settings`. SGLang's static fraction goes up to what weights and one
    request of full length need, never to what failed or less, and down by `missing_fraction`, the share (0..1) that an allocation lacked.
    vLLM's utilization pays activations too, which no plan has, so it gets no value upwards. A batch or a chunk is halved and the ranks are
    doubled: the next size to try, not one known to fit.
    """
    verb, _, rest = fix.text.partition(" ")
    if fix.amount_known or rest != fix.flag:
        return fix
    was = stated.get(fix.field)
    if fix.field == "mem_fraction_static":
        was = was if was is not None and 0 < was < 1 else None
        if verb == "lower":
            return _lower_fraction(fix, was, missing_fraction, stated.get("max_total_tokens"))
        return _raise_fraction(fix, was, settings) if fix.flag == "--mem-fraction-static" else fix
    if was is None:
        return fix
    if verb == "lower" and fix.field in _HALVED:
        return _halved(fix, was, stated)
    if verb == "raise" and fix.field in _DOUBLED and was > 0:
        return _valued(fix, was * 2, f"set {fix.flag} to {format_count(was * 2)}, twice {format_count(was)}")
    return fix


def _raise_fraction(fix: Fix, was: float | None, settings: Settings) -> Fix:
    try:
        answer = fraction_for_one_request(memory_plan(settings))
    except ConfigError as error:
        return replace(fix, text=f"{fix.text}: nothing tells to what while {error}")
    if isinstance(answer, Unknown):
        return replace(fix, text=f"{fix.text}: {answer.field} would tell to what ({answer.settle})")
    if answer.fraction is None:
        return replace(fix, text=f"{fix.text} alone does not help: weights and one request do not fit, {answer.text}")
    if was is not None and answer.fraction <= was:
        taken = f"weights and one request alone would do with {answer.fraction}, so something else takes memory"
        return replace(fix, text=f"{fix.text} above {was:g}: {taken}")
    return _valued(fix, answer.fraction, f"set {fix.flag} to {answer.fraction}: weights and one request")


def least_step_down(missing_fraction: float) -> float:
    """By how much a static fraction has to go down for a share (0..1) that was missing, in whole hundredths."""
    return math.ceil(missing_fraction * 100) / 100


def _lower_fraction(fix: Fix, was: float | None, missing_fraction: float | None, cap: int | None) -> Fix:
    if missing_fraction is None:
        return fix
    share = f"{missing_fraction:.3f} of the memory was missing"
    if cap is not None:
        # SGLang takes the smaller of the two; only the one that decides gives memory back.
        share += f"; where --max-total-tokens {cap} holds the pool below the share, lower that instead"
    if was is None:
        return replace(fix, text=f"{fix.text} by at least {least_step_down(missing_fraction)}: {share}")
    value = math.floor((was - missing_fraction) * 100) / 100
    if value <= 0:
        return replace(fix, text=f"{fix.text} from {was:g}; that alone does not help: {share}")
    return _valued(fix, value, f"set {fix.flag} to {value} or less: {share}")


def _halved(fix: Fix, was: int, stated: Mapping[str, Any]) -> Fix:
    """Half of what failed; a chunk in whole pages, as SGLang demands, and its flag over all ranks where limits are global."""
    half, unit, ranks = was // 2, 1, 1
    if fix.field == "chunked_prefill_size":
        unit = max(1, stated.get("page_size") or 1)
        ranks = max(1, stated.get("dp_size") or 1) if stated.get("enable_dp_attention") else 1
    half = half // unit * unit
    if half < 1:
        return fix
    before = (stated.get("global_chunked_prefill_size") if ranks > 1 else None) or was * ranks
    near = "half of" if half * ranks * 2 == before else "at most half of"
    return replace(_valued(fix, half * ranks, f"set {fix.flag} to {format_count(half * ranks)}, {near} {format_count(before)}"), value=half)


def _valued(fix: Fix, value: int | float, text: str) -> Fix:
    return replace(fix, value=value, flag=f"{fix.flag} {value}", text=text, amount_known=True)
