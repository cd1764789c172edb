"""The rows of each public story, derived by hand from the rules of plan, stamp and verify, and the same on every CPU backend."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvcanary.errors import ConfigError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find, reach
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
        for runner, kept in (("", report.rows), ("DRAFT ", report.draft_rows)):
            for row in kept:
                tag = LaunchTag(int(row[0])).name
                if tag.endswith(group):
                    line = f"{runner}{tag.split('_')[0]} {row[1]} {'+'.join(reason_labels(int(row[7])))}"
                    found.setdefault(step.index, []).append(line)
    return {step: sorted(lines) for step, lines in found.items()}


def both(*lines: str, runner: str = "") -> list[str]:
    """The same rows at HEAD and TAIL."""
    return sorted(f"{runner}{launch} {line}" for launch in ("HEAD", "TAIL") for line in lines)


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
        ("one-slot-two-owners", {}, {2: both(f"5 {CHAIN}+{POSITION}", f"6 {CHAIN}")}),
        ("one-slot-two-owners", {"real_data": PARTIAL}, {1: [f"TAIL 5 {BYTES}"], 2: both(f"5 {CHAIN}+{POSITION}", f"6 {CHAIN}")}),
        # Slot 0 was never written, so its position 0 makes the next one 1, not 5.
        ("seed-at-slot-0", {"real_data": ALL, "verify_token_assert": True}, {1: both("14 write_position")}),
        # The foreign cells are a chain of their own from position 0 on; only the first own cell behind them does not fit.
        ("row-rewritten-under-a-forward", {"real_data": ALL}, {1: both(f"6 {CHAIN}")}),
        (
            "row-rewritten-under-a-forward",
            {"verify_token_assert": True},
            {1: both(f"12 {TOKEN}", f"13 {TOKEN}", f"14 {TOKEN}", f"6 {CHAIN}")},
        ),
        ("output-slots-overwritten", {}, {2: both(f"11 {CHAIN}+{POSITION}", f"12 {CHAIN}")}),
        ("output-slots-overwritten", {"real_data": ALL}, {1: [f"TAIL 11 {BYTES}"], 2: both(f"11 {CHAIN}+{POSITION}", f"12 {CHAIN}")}),
        ("store-address-wraps", {}, {}),
        ("store-address-wraps", {"real_data": PARTIAL}, {1: [f"TAIL 10 {BYTES}"]}),
        ("padding-row-hits-a-live-slot", {"verify_token_assert": True}, {}),
        ("padding-row-hits-a-live-slot", {"real_data": PARTIAL}, {1: [f"TAIL 9 {BYTES}"]}),
        ("rejected-draft-token-kept", {"real_data": ALL}, {}),
        ("rejected-draft-token-kept", {"verify_token_assert": True}, {2: both(f"8 {TOKEN}")}),
        ("rejected-draft-token-kept", {"write_input_assert": True}, {1: both("8 write_token")}),
        # The flipped byte is of prev_hash, which is also hashed into the successor's.
        ("stray-write-into-a-record", {"real_data": ALL}, {1: [f"HEAD 4 {CHAIN}", f"HEAD 5 {CHAIN}"]}),
        # A zero record chains to zero, so of the second missing slot only the position is wrong.
        ("decode-starts-before-its-pages", {}, {1: both(f"10 {CHAIN}+{POSITION}", f"11 {POSITION}", f"12 {CHAIN}")}),
        (
            "decode-starts-before-its-pages",
            {"real_data": PARTIAL},
            {
                1: sorted(
                    [
                        *(f"HEAD {line}" for line in (f"10 {CHAIN}+{POSITION}", f"11 {POSITION}", f"12 {CHAIN}")),
                        *(f"TAIL {line}" for line in (f"10 {CHAIN}+{POSITION}+{BYTES}", f"11 {POSITION}+{BYTES}", f"12 {CHAIN}")),
                    ]
                )
            },
        ),
        ("transfer-list-ends-too-early", {}, {1: [f"TAIL 7 {CHAIN}+{POSITION}", f"TAIL 9 {CHAIN}"]}),
        ("first-token-of-another-request", {"real_data": ALL}, {}),
        ("first-token-of-another-request", {"verify_token_assert": True}, {2: both(f"5 {TOKEN}")}),
        ("host-copy-of-somebody-else", {}, {}),
        ("host-copy-of-somebody-else", {"real_data": PARTIAL, "sweep_interval": 1}, {1: [f"SWEEP 8 {BYTES}", f"TAIL 8 {BYTES}"]}),
        # Both readers report both slots.
        ("storage-hit-loaded-half", {"real_data": PARTIAL}, {1: [f"TAIL {slot} {BYTES}" for slot in (6, 6, 7, 7)]}),
        # Slots 12 and 13 are the heir's chain of its own; the hitting request goes on from its position 1.
        ("node-outlives-its-slots", {}, {2: both(f"12 {CHAIN}+{POSITION}", f"13 {POSITION}", "16 write_position")}),
        ("rows-packed-differently", {"real_data": PARTIAL}, {}),
        ("rows-packed-differently", {"real_data": ALL}, {1: [f"TAIL 6 {BYTES}"]}),
        # Slot 11 is the other's position 2, linked to its position 1; slot 4 lost its predecessor.
        ("cell-of-another-request", {}, {1: both(f"11 {CHAIN}+{POSITION}", f"4 {CHAIN}")}),
        ("cell-of-another-request", {"verify_token_assert": True}, {1: both(f"11 {CHAIN}+{POSITION}+{TOKEN}", f"4 {CHAIN}")}),
        # The foreign prefix agrees with itself; slot 6 was chained to it, and does not fit the right prefix a step later.
        ("row-replaced-for-one-forward", {"real_data": ALL}, {2: both(f"6 {CHAIN}")}),
        (
            "row-replaced-for-one-forward",
            {"verify_token_assert": True},
            {1: both(*(f"{slot} {TOKEN}" for slot in (10, 11, 12))), 2: both(f"6 {CHAIN}")},
        ),
        ("window-translation-cleared", {"real_data": ALL, "verify_token_assert": True}, {}),
        # Nothing stands before position 0; slot 3 at position 1 comes after a record at position 64.
        ("first-token-at-position-64", {}, {1: both(f"5 {POSITION}", "3 write_position")}),
        (
            "first-token-at-position-64",
            {"write_input_assert": True},
            {0: both("5 write_position"), 1: both(f"5 {POSITION}", "3 write_position")},
        ),
        ("sampled-tokens-change-places", {"real_data": ALL, "verify_token_assert": True}, {}),
        ("sampled-tokens-change-places", {"write_input_assert": True}, {1: both("4 write_token", "10 write_token")}),
        (
            "draft-model-one-position-ahead",
            {},
            {1: both("4 write_position", runner="DRAFT "), 2: both(f"4 {POSITION}", "3 write_position", runner="DRAFT ")},
        ),
        ("prompt-chunk-ends-with-a-guess", {"real_data": ALL, "write_input_assert": True}, {}),
        ("prompt-chunk-ends-with-a-guess", {"verify_token_assert": True}, {1: both(f"5 {TOKEN}", runner="DRAFT ")}),
        ("chunk-ends-inside-a-reply", {"real_data": ALL}, {}),
        ("chunk-ends-inside-a-reply", {"verify_token_assert": True}, {3: both(f"16 {TOKEN}", runner="DRAFT ")}),
        ("late-copy-knows-no-records", {"verify_token_assert": True}, {}),
        ("late-copy-knows-no-records", {"real_data": PARTIAL}, {1: [f"TAIL 5 {BYTES}"]}),
        ("bit-flips-in-a-slot-in-use", {"real_data": PARTIAL}, {1: [f"TAIL 4 {BYTES}"]}),
        ("burst-behind-the-first-16-bytes", {"real_data": PARTIAL}, {}),
        ("burst-behind-the-first-16-bytes", {"real_data": ALL}, {1: [f"TAIL 6 {BYTES}"]}),
        ("v-row-changes", {"real_data": ALL}, {}),
        ("v-row-changes", {"real_data": PARTIAL, "verify_v_half": True}, {1: [f"TAIL 7 {BYTES}"]}),
        ("changed-behind-tail", {"real_data": PARTIAL}, {2: [f"TAIL 10 {BYTES}"]}),
        ("bit-flips-in-a-cached-prefix", {"verify_token_assert": True, "sweep_interval": 1}, {}),
        ("bit-flips-in-a-cached-prefix", {"real_data": PARTIAL, "sweep_interval": 1}, {1: [f"SWEEP 5 {BYTES}"]}),
        ("model-stores-wrong-bytes", {"real_data": ALL, "verify_v_half": True, "verify_token_assert": True}, {}),
        ("padding-row-hits-slot-0", {"real_data": ALL, "verify_v_half": True}, {}),
        ("bytes-arrive-after-their-records", {}, {}),
        ("bytes-arrive-after-their-records", {"real_data": PARTIAL}, {1: [f"TAIL 10 {BYTES}", f"TAIL 11 {BYTES}"]}),
        ("head-of-row-packed-differently", {"real_data": PARTIAL}, {1: [f"TAIL 12 {BYTES}"]}),
        ("model-alone-follows-the-wrong-slots", {}, {}),
        ("model-alone-follows-the-wrong-slots", {"real_data": PARTIAL}, {1: [f"TAIL 9 {BYTES}"]}),
    ],
)
def test_rows(name: str, config: dict[str, Any], expected: dict[int, list[str]]) -> None:
    canary = CanaryConfig(**config)
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
    known = {"cell-points-at-slot-0": (1, 3), "seed-at-slot-0": (1, 4), "window-translation-cleared": (1, 3)}
    assert cells == ({known[name]: 1} if name in known else {})


def test_every_kind_that_changes_memory_has_a_story() -> None:
    injected = {fault.kind for fault in CATALOGUE if any(variant.in_memory for variant in fault.variants)}
    assert {preset.kind for preset in PRESETS.values()} == injected


def test_no_variant_is_told_twice() -> None:
    named = [(preset.kind, preset.variant) for preset in PRESETS.values()]
    assert len(set(named)) == len(named)


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
