"""Seeded injectors: each finds a victim in the running forward and writes down what to break.

The record is the list of operations with their steps, so a fault is replayed by applying it again. Whether it changed anything is what
the executor reports for each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvcanary.errors import ConfigError
from kvcanary.faults.catalogue import find
from kvcanary.faults.memory import Group
from kvcanary.faults.ops import FaultOp
from kvcanary.faults.planners import PLANNERS
from kvcanary.faults.scene import Scene
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """Ground truth of one injection: what (kind, variant), when (step), where (ops, slots), who (rids of the batch that use them), seed."""

    kind: str
    variant: str
    seed: int
    step: int
    ops: tuple[FaultOp, ...]
    slots: tuple[int, ...]
    rids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "kind": self.kind,
            "variant": self.variant,
            "seed": self.seed,
            "step": self.step,
            "ops": [op.to_dict() for op in self.ops],
            "slots": list(self.slots),
            "rids": list(self.rids),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The record of a stored run; ConfigError for a field that is missing or unknown."""
        try:
            return cls(
                **{
                    **values,
                    "ops": tuple(FaultOp.from_dict(op) for op in values["ops"]),
                    "slots": tuple(values["slots"]),
                    "rids": tuple(values["rids"]),
                }
            )
        except (TypeError, KeyError) as error:
            raise ConfigError(f"a fault record cannot be read: {error}") from None


class Injector:
    """Breaks one thing, once, at the first forward from `start_step` on that has a victim for it.

    ConfigError for an unknown kind or variant, or one that changes nothing in memory and so has nothing to inject.
    """

    def __init__(self, kind: str, variant: str, *, seed: int, start_step: int = 0) -> None:
        described = find(kind, variant)
        if not described.in_memory:
            raise ConfigError(f"{kind}.{variant} cannot be injected: {described.blind}")
        self.kind, self.variant, self.seed, self.start_step = kind, variant, seed, start_step
        self.record: FaultRecord | None = None
        self._planner = PLANNERS[kind, variant]
        self._rng = np.random.default_rng([seed, 4])

    def offer(self, engine: ServingEngine, step: Step) -> FaultRecord | None:
        """Look at a scheduled step; the record when the fault happens here, else None. Later offers return None."""
        if self.record is not None or step.index < self.start_step:
            return None
        scene = Scene(engine, step, self._rng)
        ops = self._planner(scene)
        if not ops:
            return None
        hit = {op.slot for op in ops if op.slot > 0 and op.group is Group.FULL}
        rids = sorted({op.rid for op in ops if op.rid > 0} | scene.users(hit))
        slots = sorted({op.slot for op in ops if op.slot >= 0})
        self.record = FaultRecord(
            kind=self.kind, variant=self.variant, seed=self.seed, step=step.index, ops=tuple(ops), slots=tuple(slots), rids=tuple(rids)
        )
        return self.record
