"""Real configurations to start from; each says where its numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named set of flat settings: fields it does not name keep their defaults; `source` says where its numbers come from."""

    name: str
    title: str
    source: str
    settings: Mapping[str, Any]

    def to_settings(self) -> Settings:
        """The whole settings object."""
        return Settings.from_flat(self.settings)


@cache
def presets() -> tuple[Preset, ...]:
    """All presets, the friendliest first."""
    document = json.loads(files("kvcanary.config").joinpath("data/presets.json").read_text(encoding="utf-8"))
    if document["schema"] != SCHEMA:
        raise ConfigError(f"presets.json: schema must be {SCHEMA}, got {document['schema']}")
    return tuple(Preset(**entry) for entry in document["presets"])


def find_preset(name: str) -> Preset:
    """A preset by name; ConfigError lists the names there are."""
    for preset in presets():
        if preset.name == name:
            return preset
    raise ConfigError(f"preset must be one of {', '.join(preset.name for preset in presets())}, got {name[:60]!r}")
