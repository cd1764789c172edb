"""One kind of error message: how to know it, what it means, and what to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.rule_parts import fix

Groups = Mapping[str, str]
MAX_SHOWN_CHARS = 300
# A whole number and a decimal one, as parts of patterns.
N, F = r"-?\d+", r"-?\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of message. Text may name the pattern's groups in braces; `fixes` and `values` get them as text."""

    label: str
    pattern: re.Pattern[str]
    explanation: str
    causes: tuple[str, ...]
    fixes: Callable[[Groups], Iterable[Fix]] = lambda groups: ()
    values: Callable[[Groups], Mapping[str, Any]] = lambda groups: {}


def towards(field: str, flag: str, verb: str, purpose: str = "") -> Fix:
    """Raise or lower a flag where nothing tells by how much; with a purpose no amount can be worked out later either."""
    return Fix(field=field, value=None, flag=flag, text=f"{verb} {flag} {purpose}".rstrip(), amount_known=False)


def raised(groups: Groups) -> Iterable[Fix]:
    """The fraction that the message names, else the least one that the weights of the same text need, else only the direction.

    A fraction that is not above the one that failed is no way up: something that it does not count took memory too. And there is none above 1.
    """
    wanted, failed = groups.get("suggested") or groups.get("least"), groups.get("current") or groups.get("printed")
    if wanted and float(wanted) >= 1:
        yield towards("tp_size", "--tp-size", "raise")
    elif wanted and (not failed or float(wanted) > float(failed)):
        text = f"set --mem-fraction-static to {float(wanted):g} or more: less does not even hold the weights"
        yield fix("mem_fraction_static", float(wanted), text)
    else:
        yield towards("mem_fraction_static", "--mem-fraction-static", "raise")


def shown(message: str) -> str:
    """A message on one line, cut where it is very long."""
    plain = " ".join(message.split())
    return plain if len(plain) <= MAX_SHOWN_CHARS else plain[: MAX_SHOWN_CHARS - 3] + "..."
