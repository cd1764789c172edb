"""The canary configurations that a campaign compares: six from nothing to everything, and each strict check on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvcanary.faults.canary_config import CanaryConfig, StrictCheck
from kvcanary.layout import RealKvHashMode

_PARTIAL = CanaryConfig(real_data=RealKvHashMode.PARTIAL)
_ALL_CHECKS = CanaryConfig(
    real_data=RealKvHashMode.ALL, verify_v_half=True, verify_token_assert=True, write_input_assert=True, sweep_interval=4
)
DEFAULT_CONFIGS: Mapping[str, CanaryConfig] = {
    "chain only": CanaryConfig(),
    "partial": _PARTIAL,
    "partial, sweep 10": replace(_PARTIAL, sweep_interval=10),
    "all, sweep 10": CanaryConfig(real_data=RealKvHashMode.ALL, sweep_interval=10),
    "all, V, token check, sweep 4": _ALL_CHECKS,
    "strict": replace(_ALL_CHECKS, strict=True),
}
# Beside "partial", so that a column shows what one check adds to SGLang's own.
STRICT_CONFIGS: Mapping[str, CanaryConfig] = {
    f"partial + {check.value.replace('_', ' ')}": replace(_PARTIAL, strict_checks=(check,)) for check in StrictCheck
}
CONFIGS: Mapping[str, CanaryConfig] = {**DEFAULT_CONFIGS, **STRICT_CONFIGS}
