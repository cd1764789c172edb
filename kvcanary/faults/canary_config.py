"""The canary configuration that an experiment runs under, and that decides what a fault can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvcanary import layout
from kvcanary.layout import RealKvHashMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """One canary configuration. strict adds what SGLang does not have: a second layer in the real-KV hash, and the zero-cell check.

    write_input_assert compares the tokens and positions fed with those the scheduler meant. records_follow: records travel with KV that
    goes to the host and back; false is what SGLang does.
    """

    real_data: RealKvHashMode = RealKvHashMode.NONE
    verify_v_half: bool = False
    sweep_interval: int = 0
    verify_token_assert: bool = False
    write_input_assert: bool = False
    strict: bool = False
    records_follow: bool = False
    ring_capacity: int = layout.DEFAULT_RING_CAPACITY

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "real_data": self.real_data.name.lower()}
