"""The rows of each public story, derived by hand from the rules of plan, stamp and verify, and the same on every CPU backend."""

from __future__ import annotations

from collections import Counter

import pytest

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import find, reach
from kvcanary.faults.presets import PRESETS
from kvcanary.faults.scenario import Actor, Scenario, ScriptStep
from kvcanary.kernels.backends import get_backend
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.layout import LaunchTag, RealKvHashMode, reason_labels

NONE, PARTIAL, ALL = RealKvHashMode.NONE, RealKvHashMode.PARTIAL, RealKvHashMode.ALL
CHAIN, POSITION, BYTES, TOKEN = "verify_chain_hash", "verify_position", "verify_real_kv_hash", "verify_token"


def rows(name: str, config: CanaryConfig, backend: str = "reference") -> dict[int, list[str]]:
    """'LAUNCH slot reasons' of each step, sorted; launches of the window group where there is one."""
    scenario = PRESETS[name].scenario
    executor = CanaryExecutor(scenario.options(), config, get_backend(backend))
    group = "SWA" if scenario.window else "FULL"
    found: dict[int, list[str]] = {}
    for step, sweep in scenario.compile():
        report = executor.run(step, scenario.ops, sweep if config.sweep_interval else None)
        for row in report.rows:
            tag = LaunchTag(int(row[0])).name
            if tag.endswith(group):
                found.setdefault(step.index, []).append(f"{tag.split('_')[0]} {row[1]} {'+'.join(reason_labels(int(row[7])))}")
    return {step: sorted(lines) for step, lines in found.items()}


def both(*lines: str) -> list[str]:
    """The same rows at HEAD and TAIL."""
    return sorted(f"{launch} {line}" for launch in ("HEAD", "TAIL") for line in lines)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        # Slots 9 and 10 hold positions 2 and 3 of the dead request, linked to each other; 11 lost its predecessor.
        ("aborted-transfer-writes-late", {}, {1: both(f"9 {CHAIN}+{POSITION}", f"10 {POSITION}", f"11 {CHAIN}")}),
        (
            "aborted-transfer-writes-late",
            {"verify_token_assert": True},
            {1: both(f"9 {CHAIN}+{POSITION}+{TOKEN}", f"10 {POSITION}+{TOKEN}", f"11 {CHAIN}")},
        ),
        ("aborted-transfer-writes-late", {"real_data": PARTIAL}, {1: both(f"9 {CHAIN}+{POSITION}", f"10 {POSITION}", f"11 {CHAIN}")}),
        ("aborted-transfer-writes-late", {"real_data": ALL}, {1: both(f"9 {CHAIN}+{POSITION}", f"10 {POSITION}", f"11 {CHAIN}")}),
        ("cell-points-at-slot-0", {"real_data": ALL, "verify_token_assert": True}, {}),
        # The old owner's records at positions 8, 9 and 10 are a chain of their own, so only the first one is broken. The seed at
        # position 10 makes the next token, at position 3, break the +1 rule.
        (
            "canary-left-behind-by-host-tier",
            {},
            {1: both(f"20 {CHAIN}+{POSITION}", f"21 {POSITION}", f"22 {POSITION}", "23 write_position")},
        ),
        ("zeroed-page", {}, {}),
        ("zeroed-page", {"real_data": PARTIAL}, {1: [f"TAIL 6 {BYTES}", f"TAIL 7 {BYTES}"]}),
        (
            "zeroed-page",
            {"real_data": ALL, "sweep_interval": 1},
            {1: [f"SWEEP 6 {BYTES}", f"SWEEP 7 {BYTES}", f"TAIL 6 {BYTES}", f"TAIL 7 {BYTES}"]},
        ),
        ("draft-past-the-reservation", {}, {2: both(f"13 {CHAIN}+{POSITION}", f"14 {CHAIN}")}),
        (
            "draft-past-the-reservation",
            {"real_data": PARTIAL},
            {1: [f"TAIL 13 {BYTES}"], 2: both(f"13 {CHAIN}+{POSITION}", f"14 {CHAIN}")},
        ),
        # The window of three covers positions 3 to 5, that is slots 4 to 6.
        ("window-slot-reused", {}, {2: both(f"5 {CHAIN}+{POSITION}", f"6 {CHAIN}")}),
        ("draft-position-too-far", {}, {1: both("2 write_position"), 2: both(f"2 {POSITION}", "1 write_position")}),
    ],
)
def test_rows(name: str, config: dict[str, object], expected: dict[int, list[str]]) -> None:
    canary = CanaryConfig(**config)  # type: ignore[arg-type]
    assert rows(name, canary) == expected
    preset = PRESETS[name]
    assert reach(find(preset.kind, preset.variant), canary).visible == bool(expected)


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("name", list(PRESETS))
def test_backends_tell_the_same_story(name: str, backend: str) -> None:
    config = CanaryConfig(real_data=ALL, sweep_interval=1, verify_token_assert=True)
    assert rows(name, config, backend) == rows(name, config)


@pytest.mark.parametrize("name", list(PRESETS))
def test_strict_reports_the_cell_at_slot_0_and_nothing_else_more(name: str) -> None:
    scenario = PRESETS[name].scenario
    executor = CanaryExecutor(scenario.options(), CanaryConfig(strict=True), get_backend("reference"))
    cells = Counter(cell for step, _ in scenario.compile() for cell in executor.run(step, scenario.ops).zero_cells)
    assert cells == ({(1, 3): 1} if name == "cell-points-at-slot-0" else {})


def test_every_operation_of_a_preset_changes_something() -> None:
    for preset in PRESETS.values():
        executor = CanaryExecutor(preset.scenario.options(), CanaryConfig(), get_backend("reference"))
        changed: Counter[int] = Counter()
        for step, _ in preset.scenario.compile():
            changed.update(executor.run(step, preset.scenario.ops).changed)
        assert all(changed[index] > 0 for index in range(len(preset.scenario.ops))), preset.title


def test_a_request_with_more_tokens_than_slots_is_refused() -> None:
    scenario = Scenario(slots=8, actors=(Actor(1, (5, 6, 7), (1, 2)),), steps=(ScriptStep(),))
    with pytest.raises(ConfigError, match="request 1 has 3 tokens, 2 slots up to 2"):
        scenario.compile()
