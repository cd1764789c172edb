"""Values for fixes of which an error message tells only the direction, taken from what else is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.memory import memory_plan
from kvcanary.config.remedies import fraction_for_one_request
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import format_count

_HALVED, _DOUBLED = ("cuda_graph_max_bs", "chunked_prefill_size"), ("tp_size",)


def with_amount(fix: Fix, settings: Settings, stated: Mapping[str, Any], missing_fraction: float | None = None) -> Fix:
    """The fix with a value; where none can be told, with what would tell it, or unchanged.

    `stated` holds the fields of the text that failed, so that the value does not move when it is taken over into `settings`. The static
    fraction goes up to what weights and one request of full length need, and down by `missing_fraction`, the share of the device (0..1) that
    an allocation lacked. A batch or a chunk is halved and the ranks are doubled: the next size to try, not one known to fit.
    """
    if fix.amount_known:
        return fix
    down, was = fix.text.startswith("lower"), stated.get(fix.field)
    if fix.field == "mem_fraction_static":
        return _lower_fraction(fix, was, missing_fraction) if down else _raise_fraction(fix, settings)
    if down and fix.field in _HALVED and was is not None and was > 1:
        return _valued(fix, was // 2, f"set {fix.flag} to {format_count(was // 2)}, half of {format_count(was)}")
    if not down and fix.field in _DOUBLED and was is not None:
        return _valued(fix, was * 2, f"set {fix.flag} to {format_count(was * 2)}, twice {format_count(was)}")
    return fix


def _raise_fraction(fix: Fix, settings: Settings) -> Fix:
    try:
        value = fraction_for_one_request(memory_plan(settings))
    except ConfigError:
        value = None
    if value is None:
        return replace(fix, text=f"{fix.text}: fill in Model and Memory below and the value stands here")
    return _valued(fix, value, f"set {fix.flag} to {value}: weights and one request")


def _lower_fraction(fix: Fix, was: float | None, missing_fraction: float | None) -> Fix:
    if missing_fraction is None:
        return fix
    value = 0.0 if was is None else math.floor((was - missing_fraction) * 100) / 100
    if value <= 0:
        return replace(fix, text=f"{fix.text} by at least {math.ceil(missing_fraction * 100) / 100}: that much of the device was missing")
    return _valued(fix, value, f"set {fix.flag} to {value} or less: {missing_fraction:.3f} of the device was missing")


def _valued(fix: Fix, value: int | float, text: str) -> Fix:
    return replace(fix, value=value, flag=f"{fix.flag} {value}", text=text, amount_known=True)
