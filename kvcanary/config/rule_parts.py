"""Short forms for writing rules: findings and fixes."""

from __future__ import annotations

from kvcanary.config.findings import Finding, Fix, Severity
from kvcanary.config.settings import FIELDS, Settings, flag_text, format_field
from kvcanary.units import format_count

Value = int | float | str | bool | None

CAPACITIES = "SGLang 0.5.23, CanaryLaunchCapacities.from_args"
SERVER_ARGS = "SGLang 0.5.23, server arguments"
RUN_TIME = "SGLang 0.5.23, checks of each forward"


def canary_on(settings: Settings) -> bool:
    """Whether SGLang installs a canary at all; its rules stop no start without one."""
    return settings.canary.mode != "none"


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below value."""
    return -(-value // multiple) * multiple


def fix(field: str, value: Value, text: str = "") -> Fix:
    """The field's change with its flag; the default label names field and value."""
    shown = format_count(value) if isinstance(value, int) and not isinstance(value, bool) else format_field(field, value) or "empty"
    if FIELDS[field].kind == "switch":
        shown = "on" if value else "off"
    return Fix(field=field, value=value, flag=flag_text(field, value), text=text or f"set {field} to {shown}")


def error(rule: str, fields: tuple[str, ...], message: str, why: str, *fixes: Fix, exact: bool = True, source: str = CAPACITIES) -> Finding:
    """The server does not start."""
    return Finding(rule=rule, severity=Severity.ERROR, fields=fields, message=message, why=why, fixes=fixes, exact=exact, source=source)


def warning(
    rule: str, fields: tuple[str, ...], message: str, why: str, *fixes: Fix, exact: bool = False, source: str = RUN_TIME
) -> Finding:
    """It starts, and fails or misleads later."""
    return Finding(rule=rule, severity=Severity.WARNING, fields=fields, message=message, why=why, fixes=fixes, exact=exact, source=source)


def note(rule: str, fields: tuple[str, ...], message: str, why: str, *fixes: Fix, source: str = RUN_TIME) -> Finding:
    """Worth knowing."""
    return Finding(rule=rule, severity=Severity.NOTE, fields=fields, message=message, why=why, fixes=fixes, source=source)
