"""What planners share: a planner looks at a scheduled step and writes down the operations of one fault, or none where it finds no victim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcanary.faults.ops import FaultOp, Hook, OpKind
from kvcanary.faults.scene import Cell, Scene

Planner = Callable[[Scene], list[FaultOp]]

FOREVER = 1 << 30
"""Until when a lasting fault lasts: a wrong cell stays wrong as long as anybody reads the row."""


def op(scene: Scene, hook: Hook, kind: OpKind, *, lasting: bool = False, **fields: Any) -> FaultOp:
    """An operation of this step, or of this and all later ones."""
    step = scene.step.index
    return FaultOp(hook=hook, kind=kind, step=step, until=FOREVER if lasting else step + 1, **fields)


def foreign(scene: Scene, cell: Cell) -> dict[str, Any]:
    """The record of a token that never was here: other id, other position, other history."""
    return {
        "token": int(scene.rng.integers(scene.engine.options.vocab_size)),
        "position": cell.position + 3,
        "prev_hash": int(scene.rng.integers(1 << 63)),
    }
