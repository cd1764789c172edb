"""JSON values of others: as dataclasses, where every field has the type that it declares or an error names the first that has not, or
read as far as they go, where they come from another version and are only shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kvcanary.errors import ConfigError

T = TypeVar("T")
_INT64_MAX = (1 << 63) - 1


def typed(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build `kind`, a dataclass, from values as JSON has them; nothing is converted but a list to a tuple and a text to an enum.

    Raises ConfigError with the field, the rule and the value for a field that is missing, unknown or of another type, which is looked for
    inside nested dataclasses as well, and for numbers that JSON does not have.
    """
    hashable: Any = kind
    adapter = _adapter(hashable)
    try:
        built: T = adapter.validate_json(json.dumps(values, allow_nan=False, ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))[:60] or "document"
        got = "" if first["type"] == "missing" else f", got {repr(first['input'])[:60]}"
        raise ConfigError(f"{field}: {_rule(first['msg'])}{got}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"holds what JSON does not have: {str(error)[:100]}") from None
    if (name := next(_dropped(values, adapter.dump_python(built)), None)) is not None:
        raise ConfigError(f"{name[:60]!r} is no field of it")
    return built


class Loose:
    """One JSON object, read as far as it goes: what is missing or of another type than asked for reads as nothing, and nothing raises."""

    def __init__(self, values: Any) -> None:
        self._values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def text(self, name: str) -> str:
        """A text, else ''."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool | None:
        """true or false, else None."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else None

    def integer(self, name: str) -> int | None:
        """A whole number of 64 bits, else None."""
        value = self._values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT64_MAX else None

    def count(self, name: str) -> int | None:
        """A whole number of at least 0, else None."""
        value = self.integer(name)
        return value if value is not None and value >= 0 else None

    def number(self, name: str) -> float | None:
        """A finite number, else None."""
        value = self._values.get(name)
        return value if isinstance(value, float) and math.isfinite(value) else self.integer(name)

    def texts(self, name: str) -> list[str]:
        """The texts of a list."""
        values = self._values.get(name)
        return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []

    def part(self, name: str) -> Loose:
        """The object of that name, else an empty one."""
        return Loose(self._values.get(name))

    def parts(self, name: str) -> list[Loose]:
        """The objects of a list; what is none, or empty, is left out."""
        values = self._values.get(name)
        return [Loose(value) for value in values if isinstance(value, Mapping) and value] if isinstance(values, list) else []

    def named(self, name: str) -> list[tuple[str, Loose]]:
        """The objects of an object, by name."""
        values = self._values.get(name)
        return [(key, Loose(value)) for key, value in values.items() if isinstance(value, Mapping)] if isinstance(values, Mapping) else []


@lru_cache(maxsize=32)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _dropped(given: Any, taken: Any) -> Iterator[str]:
    """Keys that were given and not taken over, at any depth."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if key in taken:
                yield from _dropped(value, taken[key])
            else:
                yield str(key)
    elif isinstance(given, list):
        for one, other in zip(given, taken, strict=True):
            yield from _dropped(one, other)


def _rule(message: str) -> str:
    return "is missing" if message == "Field required" else message.removeprefix("Input ")
