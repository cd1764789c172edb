"""What a reading of pasted text gives: one frozen record for every kind of text.

Three things stay apart: a value that was stated (zero, false and null included), a value that the text refers to but does not hold
(`Unresolved`), and a value that the text does not mention (no entry at all).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvcanary.config.findings import Finding, Fix
from kvcanary.importers.amounts import fix_document, with_amounts


class ImportKind(StrEnum):
    """What a piece of text was recognised as."""

    COMMAND = "command"
    LOG = "log"
    SERVER_INFO = "server_info"
    HF_CONFIG = "hf_config"
    WEIGHT_INDEX = "weight_index"
    SETTINGS = "settings"
    RUN = "run"
    ERROR = "error"
    MIXED = "mixed"


class Rank(StrEnum):
    """How near a source is to what the server really does; a field is taken from the first of these that states it.

    SGLang's install line shows what the canary was built with, the ready line and the printed arguments what the engine resolved, a command
    what was asked for. What the operator entered by hand is not a source here.
    """

    INSTALL = "install line"
    READY = "ready line"
    SERVER_ARGS = "server arguments"
    LOG = "log line"
    COMMAND = "command"
    FILE = "file"


RANK_ORDER = tuple(Rank)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A shell or Python expression whose value is not in the text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldValue:
    """Value of a settings field, the place it came from ('--page-size, line 3'), and the arithmetic where it was derived."""

    value: Any
    source: str
    rank: Rank
    derived: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One name with several values, none of which was chosen over the others in silence.

    chosen is the candidate that precedence prefers, None where nothing decides.
    """

    name: str
    candidates: tuple[FieldValue, ...]
    chosen: FieldValue | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFlag:
    """A word that looks like a flag and is none of this engine."""

    flag: str
    reason: str
    suggestion: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorExplanation:
    """An engine's error in the operator's terms.

    label is a stable name, message the engine's sentence as read, causes are in order of likelihood, fixes are flags with values where the
    text gives them and with the direction alone (amount_known False) where it does not.
    """

    label: str
    message: str
    explanation: str
    causes: tuple[str, ...]
    fixes: tuple[Fix, ...]
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One launch command: arguments under the engine's own names, and canary environment variables as text."""

    engine: str
    arguments: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Everything that one text said.

    arguments: a command's flags under the engine's own argument names, typed; an expression without a value is `Unresolved`.
    observed: what a log or a server states; ranks that differ have `..._min` and `..._by_rank`.
    fields: flat settings names to value and source. commands holds every launch command of the text, arguments is the first.
    """

    kind: ImportKind
    name: str
    engine: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    observed: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    explanations: tuple[ErrorExplanation, ...] = ()
    unknown: tuple[UnknownFlag, ...] = ()
    unresolved: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    parts: tuple[ImportKind, ...] = ()

    def settings_values(self) -> dict[str, Any]:
        """Flat settings names to values, ready for `Settings.from_flat` or a form."""
        return {name: entry.value for name, entry in self.fields.items()}

    def to_dict(self) -> dict[str, Any]:
        """The document of `kvcanary import --json`: {'schema': 'kvcanary.import', 'version': 1, ...}, JSON-ready."""
        return {
            "schema": "kvcanary.import",
            "version": 1,
            "kind": str(self.kind),
            "parts": [str(part) for part in self.parts],
            "name": self.name,
            "engine": self.engine,
            "arguments": _plain(self.arguments),
            "env": dict(self.env),
            "commands": [
                {"engine": command.engine, "line": command.line, "arguments": _plain(command.arguments), "env": dict(command.env)}
                for command in self.commands
            ],
            "observed": _plain(self.observed),
            "fields": {name: _field(entry) for name, entry in self.fields.items()},
            "findings": [finding.to_dict() for finding in self.findings],
            "explanations": [self._explanation(entry) for entry in self.explanations],
            "unknown": [entry.flag for entry in self.unknown],
            "suggestions": {entry.flag: entry.suggestion for entry in self.unknown if entry.suggestion},
            "unresolved": list(self.unresolved),
            "conflicts": {entry.name: [_plain(candidate.value) for candidate in entry.candidates] for entry in self.conflicts},
            "conflict_sources": {entry.name: _conflict(entry) for entry in self.conflicts},
        }

    def _explanation(self, entry: ErrorExplanation) -> dict[str, Any]:
        stated = self.settings_values()
        return {
            "label": entry.label,
            "message": entry.message,
            "explanation": entry.explanation,
            "causes": list(entry.causes),
            "fixes": [fix_document(fix, self.observed, stated) for fix in with_amounts(entry.fixes, self.observed, stated)],
            "line": entry.line,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Unresolved):
        return {"unresolved": value.text}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # Python writes Infinity into the config.json of some models, and JSON has no such number.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _field(entry: FieldValue) -> dict[str, Any]:
    shown = {"value": _plain(entry.value), "source": entry.source}
    return {**shown, "derived": entry.derived} if entry.derived else shown


def _conflict(entry: Conflict) -> dict[str, Any]:
    return {
        "candidates": [_field(candidate) for candidate in entry.candidates],
        "chosen": _field(entry.chosen) if entry.chosen else None,
        "reason": entry.reason,
    }
