"""The engines' arguments: which names exist, what an abbreviation stands for, and how a value is read.

The tables in data/ hold names, aliases, kinds and choices of the engines' own parsers: SGLang 0.5.23 with a few older names, and vLLM 0.33.0 with
what 0.6.6, 0.8.5, 0.11.0 and 0.18.0 took besides, marked as gone. Resolution and conversion follow Python's argparse as
those parsers use it: an exact name, else the only argument that starts so; SGLang takes dashes only, vLLM underscores too.
"""

from __future__ import annotations

import bisect
import difflib
import functools
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_SCALED = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|[a-zA-Z])")
_SGLANG_SCALES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_VLLM_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BINARY = ("Ki", "Mi", "Gi", "Ti")
_MAX_VALUE_CHARS = 100_000
_LONGEST_FLAG = 100
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of an engine.

    kind: switch (no value), toggle (also --no-...), word (a value that means true), str, int, float,
    number (either), human (integer with k, M, Ki, ...), json;
    `many` is argparse's '+' or '*' and '?' an optional value. gone: a name of older releases that current ones refuse.
    """

    name: str
    flags: tuple[str, ...]
    kind: str
    many: str = ""
    choices: tuple[str | int, ...] = ()
    gone: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return self.kind not in ("switch", "toggle")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a flag word stands for. Without an argument, `reason` says why and `candidates` are the flags that it could stand for."""

    argument: Argument | None
    negated: bool = False
    reason: str = ""
    candidates: tuple[str, ...] = ()
    key: str = ""


class BadValue(ValueError):
    """A value that the engine's parser refuses; the text says what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All arguments of one engine; `ordered` are the flags in alphabetical order, in which those that begin alike stand together."""

    engine: str
    release: str
    arguments: Mapping[str, Argument]
    flags: Mapping[str, Argument]
    ordered: tuple[str, ...]
    underscores: bool

    def resolve(self, word: str) -> Resolved:
        """The argument that a flag word such as --tp or --max_model_len stands for."""
        flag, key = self._spelling(word)
        if (argument := self.flags.get(flag)) is not None:
            return Resolved(argument, negated=flag.startswith("--no-") and argument.kind == "toggle", key=key)
        matching = self._beginning(flag) if flag.startswith("--") and len(flag) >= 4 else []
        for gone in (False, True):
            names = [name for name in matching if self.flags[name].gone is gone]
            if len({self.flags[name].name for name in names}) == 1:
                argument = self.flags[names[0]]
                return Resolved(argument, negated=names[0].startswith("--no-") and argument.kind == "toggle", key=key)
            if names:
                return Resolved(None, reason="ambiguous or cut", candidates=tuple(names))
        return Resolved(None, reason="no such flag")

    def _beginning(self, start: str) -> list[str]:
        """All flags that begin so, in order."""
        at = bisect.bisect_left(self.ordered, start)
        return list(itertools.takewhile(lambda name: name.startswith(start), itertools.islice(self.ordered, at, None)))

    def named(self, key: str) -> Argument | None:
        """The argument behind a key of a config file, with or without dashes: an argument name or a whole flag."""
        plain = key.strip().lstrip("-")
        return self.arguments.get(plain.replace("-", "_")) or self.flags.get("--" + plain.replace("_", "-"))

    def _spelling(self, word: str) -> tuple[str, str]:
        flag, key = word, ""
        if self.underscores and word.startswith("--"):
            head, dot, key = word.partition(".")
            flag = "--" + head[2:].replace("_", "-") if dot else "--" + word[2:].replace("_", "-")
        return flag, key

    def suggest(self, word: str) -> str:
        """The flag that an unknown word was probably meant to be, or ''. Compares with every flag, so ask for a few words only."""
        flag, _ = self._spelling(word)
        plain = "--" + flag.lstrip("-").replace("_", "-")
        if plain != flag and plain in self.flags:
            return plain
        if plain != flag and (argument := self.resolve(plain).argument) is not None:
            # The operator's own short form, with the dashes this parser wants.
            return plain if flag.count("-") == 1 else argument.flags[0]
        close = difflib.get_close_matches(plain[:_LONGEST_FLAG], self.flags, n=1, cutoff=0.85)
        return close[0] if close else ""

    def convert(self, argument: Argument, text: str) -> Any:
        """One value from text as the engine's parser reads it; BadValue says what it takes."""
        if len(text) > _MAX_VALUE_CHARS:
            raise BadValue("the value is longer than any that the engine takes")
        value = self._convert(argument, text)
        if argument.choices and (text if argument.kind == "word" else value) not in argument.choices:
            raise BadValue(f"one of {', '.join(map(str, argument.choices))}")
        return value

    def _convert(self, argument: Argument, text: str) -> Any:
        if argument.kind == "int":
            return _integer(text, "a plain whole number such as 8192 or 8_192")
        if argument.kind == "human":
            return self._human(argument, text)
        if argument.kind == "float":
            return _real(text)
        if argument.kind == "number":
            return int(text) if text.isdecimal() and len(text) < 19 else _real(text)
        if argument.kind == "word":
            return True
        if argument.kind == "json" or text.lstrip()[:1] == "{":
            return _json(text, strict=argument.kind == "json" and self.engine == "sglang")
        if argument.kind in ("switch", "toggle"):
            return boolean(text)
        return text

    def _human(self, argument: Argument, text: str) -> int:
        stripped = text.strip()
        if argument.name == "max_model_len" and stripped.lower() in ("auto", "-1"):
            return -1
        scales = _VLLM_SCALES if self.engine == "vllm" else _SGLANG_SCALES
        forms = "8192, 8k (= 8000), 8K (= 8192), 1.5k" if self.engine == "vllm" else "8192, 8k (= 8000), 8Ki (= 8192), 1.5k, case matters"
        match = _SCALED.fullmatch(stripped)
        if match is None or match[2] not in scales:
            return _integer(stripped, forms)
        binary = match[2] in _BINARY if self.engine == "sglang" else match[2].isupper()
        if binary and "." in match[1]:
            raise BadValue(f"no decimals with {match[2]}; accepted forms: {forms}")
        whole, _, fraction = match[1].partition(".")
        if len(whole) + len(fraction) > 30:
            raise BadValue(forms)
        scaled: int = int(whole + fraction) * scales[match[2]]
        return scaled // int("1" + "0" * len(fraction))

    def from_native(self, argument: Argument, value: Any) -> Any:
        """A value of a YAML, JSON or Python file, which is typed already; BadValue where the engine would refuse it."""
        if value is None:
            return None
        if isinstance(value, list):
            if not argument.many:
                raise BadValue("one value, not a list")
            return [self.convert(argument, str(item)) for item in value]
        if isinstance(value, dict):
            return value
        if argument.kind in ("switch", "toggle"):
            return value if isinstance(value, bool) else boolean(str(value))
        if isinstance(value, bool):
            raise BadValue("a value, not true or false")
        converted = self.convert(argument, str(value))
        return [converted] if argument.many in ("+", "*") else converted


def boolean(text: str) -> bool:
    """true/false, yes/no, on/off, 1/0; BadValue otherwise."""
    lowered = text.strip().lower()
    if lowered not in _TRUE + _FALSE:
        raise BadValue("true or false")
    return lowered in _TRUE


def _integer(text: str, forms: str) -> int:
    try:
        value = int(text) if len(text) <= 40 else None
    except ValueError:
        value = None
    if value is None or abs(value) >= 1 << 63:
        raise BadValue(forms)
    return value


def _real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadValue("a number such as 0.85")
    return value


def _json(text: str, *, strict: bool) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        if strict or text.lstrip()[:1] in ("{", "["):
            raise BadValue("JSON text in one word, such as '{\"key\": 1}'") from None
        return text


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


@functools.cache
def table(engine: str) -> Table:
    """The arguments of 'sglang' or 'vllm'."""
    document = json.loads(files("kvcanary.importers").joinpath(f"data/{engine}_arguments.json").read_text(encoding="utf-8"))
    arguments: dict[str, Argument] = {}
    flags: dict[str, Argument] = {}
    for row in document["arguments"]:
        kind, many = (row["kind"][:-1], row["kind"][-1]) if row["kind"][-1] in "+*?" else (row["kind"], "")
        argument = Argument(
            name=row["name"],
            flags=tuple(row["flags"]),
            kind=kind,
            many=many,
            choices=tuple(row.get("choices", ())),
            gone=row.get("gone", False),
        )
        # Two flags of different kinds may set one argument; the first is the one that a config file means.
        arguments.setdefault(argument.name, argument)
        flags.update(dict.fromkeys(argument.flags, argument))
    return Table(
        engine=engine,
        release=document["release"],
        arguments=arguments,
        flags=flags,
        ordered=tuple(sorted(flags)),
        underscores=engine == "vllm",
    )
