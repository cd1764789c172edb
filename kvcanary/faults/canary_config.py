"""The canary configuration that an experiment runs under, and that decides what a fault can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kvcanary import layout
from kvcanary.errors import ConfigError
from kvcanary.layout import RealKvHashMode


class StrictCheck(StrEnum):
    """What SGLang's canary does not do, each on its own.

    ZERO_CELL: a cell of a live prefix must not point at slot 0. ZERO_SEED: a request must not go on from slot 0. MORE_LAYERS: layer 1 is
    hashed beside layer 0. MORE_BYTES: with real data partial a second range of 16 bytes is hashed. DETAILS: each violation keeps the
    expected position, both real-KV hashes and the request that reads the slot. FAIR_RING: the ring keeps a fair sample of every launch tag
    instead of the first rows.
    """

    ZERO_CELL = "zero_cell"
    ZERO_SEED = "zero_seed"
    MORE_LAYERS = "more_layers"
    MORE_BYTES = "more_bytes"
    DETAILS = "details"
    FAIR_RING = "fair_ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """One canary configuration. strict: whether any strict check is on; given as True without strict_checks it turns all of them on.

    write_input_assert compares the tokens and positions fed with those the scheduler meant. records_follow: records travel with KV that
    goes to the host and back; false is what SGLang does.
    """

    real_data: RealKvHashMode = RealKvHashMode.NONE
    verify_v_half: bool = False
    sweep_interval: int = 0
    verify_token_assert: bool = False
    write_input_assert: bool = False
    strict: bool = False
    strict_checks: tuple[StrictCheck, ...] = ()
    records_follow: bool = False
    ring_capacity: int = layout.DEFAULT_RING_CAPACITY

    def __post_init__(self) -> None:
        try:
            checks = tuple(StrictCheck(check) for check in self.strict_checks)
        except ValueError as error:
            raise ConfigError(f"strict_checks must be among {', '.join(StrictCheck)}: {error}") from None
        object.__setattr__(self, "strict_checks", checks or (tuple(StrictCheck) if self.strict else ()))
        object.__setattr__(self, "strict", bool(self.strict_checks))

    def has(self, check: StrictCheck) -> bool:
        """Whether a strict check is on."""
        return check in self.strict_checks

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "real_data": self.real_data.name.lower(), "strict_checks": [str(check) for check in self.strict_checks]}
