"""Dataclasses from JSON values of others: every field has the type that it declares, or an error names the first that has not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kvcanary.errors import ConfigError

T = TypeVar("T")


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
