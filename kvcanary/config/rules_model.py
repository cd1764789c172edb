"""Rules about the model's sizes, which no flag states and only the memory plan uses."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary.config.findings import Finding
from kvcanary.config.geometry import Split
from kvcanary.config.memory import draft_cell_bytes
from kvcanary.config.rule_parts import fix, warning
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.config.stated_geometry import geometry_from_settings
from kvcanary.errors import ConfigError


def model_sizes(settings: Settings) -> Iterator[Finding]:
    """Sizes that no model has: the server reads its own, so it starts, but there is no memory plan."""
    try:
        Split.from_settings(settings)
    except ConfigError:
        return  # The ranks are no ranks, which is a finding of its own.
    try:
        draft_cell_bytes(settings, geometry_from_settings(settings))
    except ConfigError as error:
        field = str(error).partition(" ")[0]
        why = "The server reads the model's own sizes and starts all the same. Memory cannot be planned with these."
        fixes = (fix(field, None, f"leave {field} empty"),) if FIELDS[field].optional else ()
        yield warning("model_sizes", (field,), str(error), why, *fixes, source="sizes of published models")
