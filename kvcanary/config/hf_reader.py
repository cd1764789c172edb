"""Typed look-ups in a parsed config.json: the text model's section first, the first of several names, and one clear error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcanary.errors import ConfigError
from kvcanary.units import INT64_MAX

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")


class ConfigReader:
    """Reads keys of a config.json. Keys of a nested text section win over those of the same name outside."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._sections = _sections(config)

    @property
    def architecture(self) -> str | None:
        """First entry of `architectures`, the outermost one: that is what SGLang picks the model class by."""
        for section in reversed(self._sections):
            names = section.get("architectures")
            if isinstance(names, list) and names and isinstance(names[0], str):
                return names[0]
        return None

    @property
    def name(self) -> str:
        """Model name the file carries, or its architecture, or ''; printable and short."""
        outer = self._sections[-1]
        raw = outer.get("_name_or_path") or self.architecture or self.text("model_type") or ""
        return "".join(char for char in str(raw) if char.isprintable())[:120]

    def raw(self, key: str) -> Any:
        """The value under a key, innermost section first; None where it is missing or null."""
        return next((section[key] for section in self._sections if section.get(key) is not None), None)

    def count(self, *keys: str, zero: bool = False, limit: int = INT64_MAX) -> int | None:
        """First of the keys that holds a number; ConfigError if that is no whole number in 1..limit (0..limit with `zero`)."""
        for key in keys:
            value = self.raw(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not (0 if zero else 1) <= value <= limit:
                raise ConfigError(f"config.json: {key} must be a whole number in {0 if zero else 1}..{limit}, got {_shown(value)}")
            return value
        return None

    def flag(self, key: str) -> bool | None:
        """A true/false key; ConfigError for anything else."""
        value = self.raw(key)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"config.json: {key} must be true or false, got {_shown(value)}")
        return value

    def text(self, *keys: str) -> str | None:
        """First of the keys that holds text; ConfigError for another type."""
        for key in keys:
            value = self.raw(key)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"config.json: {key} must be text, got {_shown(value)}")
            if value is not None:
                return value
        return None

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object under a key; ConfigError for another type."""
        value = self.raw(key)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"config.json: {key} must be an object, got {_shown(value)}")
        return value

    def sequence(self, key: str) -> Sequence[Any] | None:
        """A list under a key; ConfigError for another type."""
        value = self.raw(key)
        if value is not None and not isinstance(value, list | tuple):
            raise ConfigError(f"config.json: {key} must be a list, got {_shown(value)}")
        return value


def _sections(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The config and its nested text sections, innermost first."""
    found = [config]
    # Two levels are the deepest any published model nests (thinker_config.text_config); a bound also ends hostile input.
    for _ in range(2):
        inner = next((found[0][key] for key in TEXT_SECTIONS if isinstance(found[0].get(key), Mapping)), None)
        if inner is None:
            break
        found.insert(0, inner)
    return tuple(found)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:40]}{'...' if len(text) > 40 else ''} ({type(value).__name__})"
