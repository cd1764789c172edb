"""What a preset is: a scenario after a public report, with its place in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Preset:
    """A scenario with its place in the catalogue and the sentence that introduces it."""

    kind: str
    variant: str
    title: str
    story: str
    scenario: Scenario


def at(hook: Hook, step: int, kind: OpKind, **fields: Any) -> FaultOp:
    """An operation at a hook of one step."""
    return FaultOp(hook=hook, kind=kind, step=step, until=step + 1, **fields)


def before(step: int, kind: OpKind, **fields: Any) -> FaultOp:
    """An operation before the plan of one step."""
    return at(Hook.BEFORE_PLAN, step, kind, **fields)
