"""What a named story says under each configuration, in lines to read."""

from __future__ import annotations

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.presets import PRESETS
from kvcanary.kernels.backends import get_backend
from kvcanary.lab.campaign_preset import PresetResult, tell


def test_lines_name_the_draft_models_canary_and_strict_checks() -> None:
    configs = {"plain": CanaryConfig(), "token": CanaryConfig(verify_token_assert=True), "strict": CanaryConfig(strict=True)}
    plain, token, _ = tell(PRESETS["chunk-ends-inside-a-reply"], configs, get_backend("reference"))
    blind = "the chain follows the token that was written; only the token check knows the right one"
    assert plain == PresetResult("plain", (), blind)
    assert token.lines == tuple(f"step 3: DRAFT_{launch}_K_FULL slot 16 verify_token" for launch in ("HEAD", "TAIL"))
    *_, strict = tell(PRESETS["cell-points-at-slot-0"], configs, get_backend("reference"))
    assert strict.lines == ("step 1: STRICT request 1 position 3 cell at slot 0",)
