"""Rules about the model's sizes, which no flag states and only the memory plan uses."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary.config.findings import Finding
from kvcanary.config.geometry import Split
from kvcanary.config.memory import draft_cell_bytes
from kvcanary.config.rule_parts import fix, warning
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.config.stated_geometry import geometry_from_settings, rank_from_settings
from kvcanary.errors import ConfigError


def model_sizes(settings: Settings) -> Iterator[Finding]:
    """Sizes that no model has, or that do not fit the ranks: there is no memory plan."""
    try:
        split = Split.from_settings(settings)
    except ConfigError:
        return  # The ranks are no ranks, which is a finding of its own.
    try:
        rank_from_settings(settings, split)
        draft_cell_bytes(settings, geometry_from_settings(settings))
    except ConfigError as error:
        field = str(error).partition(" ")[0]
        why = "Memory cannot be planned with these sizes. The server reads the model's own, and goes by them."
        fixes = (fix(field, None, f"leave {field} empty"),) if FIELDS[field].optional else ()
        yield warning("model_sizes", (field,), str(error), why, *fixes, source="sizes of published models")
