"""What a rule has to say: a finding with its way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """error: the server will not start · warning: it fails or misleads later · note: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One change that settles a finding: the field, its nearest legal value, and the flag that carries it.

    `flag` is the whole command-line text ('--max-total-tokens 16384'), empty where no flag exists; `text` is the button's label.
    value None empties the field, unless amount_known is False: then only a direction is known ('raise --mem-fraction-static'), and there is
    nothing to apply.
    """

    field: str
    value: int | float | str | bool | None
    flag: str
    text: str
    amount_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem with the settings.

    `rule` is a stable identifier, `message` is SGLang's own sentence where `exact` is true, `why` says it in the operator's terms,
    `source` names where the rule comes from, `fixes` are alternatives: one is enough.
    """

    rule: str
    severity: Severity
    fields: tuple[str, ...]
    message: str
    why: str
    fixes: tuple[Fix, ...] = ()
    exact: bool = False
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def count_sentence(severities: Iterable[str]) -> str:
    """'2 errors, 1 warning, 3 notes', leaving out what there is none of."""
    found = list(severities)
    parts = [f"{found.count(kind)} {kind}{'s' if found.count(kind) > 1 else ''}" for kind in Severity if kind in found]
    return ", ".join(parts) or "no findings"


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; inside one severity the order given, which is SGLang's order of checks."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])
