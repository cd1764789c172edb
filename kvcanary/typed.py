"""Dataclasses from JSON values of others: every field has the type that it declares, or an error names the first that has not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kvcanary.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def typed(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build `kind`, a dataclass, from values as JSON has them; nothing is converted but a list to a tuple and a text to an enum.

    Raises ConfigError with the field, the rule and the value for a field that is missing, unknown or of another type, which is looked for
    inside nested dataclasses as well, and for numbers that JSON does not have.
    """
    if unknown := set(values) - {field.name for field in fields(kind)}:
        raise ConfigError(f"{str(min(unknown, key=str))[:60]!r} is no field of it")
    try:
        built: T = _adapter(kind).validate_json(json.dumps(values, allow_nan=False, ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "document"
        got = "" if first["type"] == "missing" else f", got {repr(first['input'])[:60]}"
        raise ConfigError(f"{field}: {_rule(first['msg'])}{got}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"holds what JSON does not have: {str(error)[:100]}") from None
    return built


@lru_cache(maxsize=32)
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def _rule(message: str) -> str:
    return "is missing" if message == "Field required" else message.removeprefix("Input ")
