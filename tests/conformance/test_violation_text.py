"""Random violation rows through SGLang's own formatter and back through our reader: every field equal."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from kvcanary import layout
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.violations import Violation
from kvcanary.lab.violation_text import violation_text
from tests.conformance.sglang_wheel import WheelUnavailable, load, load_kernel

ROWS = 5000


@pytest.fixture(scope="module")
def reporter() -> ModuleType:
    try:
        load_kernel("verify")  # The reporter takes the tags from it; load_kernel knows what that module needs.
        return load(
            "sglang.srt.kv_canary.runner.violation_reporter",
            {
                "sglang.srt.kv_canary.config": {"CanaryConfig": object, "CanaryMode": object},
                "sglang.srt.kv_canary.state": {"CanaryDeviceState": object},
            },
        )
    except WheelUnavailable as error:
        pytest.skip(str(error))


def random_row(rng: random.Random) -> list[int]:
    """Kernel kinds with and without a name, every reason combination, and numbers from small to the ends of int64."""

    def number() -> int:
        return rng.choice([rng.randrange(-2, 1 << 20), rng.randrange(-(1 << 63), 1 << 63), -(1 << 63), (1 << 63) - 1, 0, -1])

    return [rng.choice([*range(12), 12, 99, -1]), *(number() for _ in range(6)), rng.randrange(64)]


def expected(row: list[int], total: int, overflow: bool, step: int) -> tuple[object, ...]:
    kind, slot, position, token, expected_token, stored, aux, bits = row
    tag = layout.LaunchTag(kind).name if kind in list(layout.LaunchTag) else f"unknown({kind})"
    return (
        tag,
        tuple(layout.reason_labels(bits)),
        *(slot, position, token, expected_token, layout.to_unsigned(stored), layout.to_unsigned(aux)),
        aux if bits & layout.WRITE_REASONS else None,
        *(total, overflow, step),
    )


def found(violation: Violation) -> tuple[object, ...]:
    return (
        violation.launch_tag,
        violation.reasons,
        violation.slot_idx,
        violation.position,
        violation.stored_token,
        violation.expected_token,
        violation.stored_chain_hash,
        violation.expected_aux,
        violation.expected_position,
        violation.total,
        violation.ring_overflow,
        violation.step,
    )


@pytest.mark.parametrize("mode", ["log", "raise"])
def test_round_trip_through_sglangs_formatter(reporter: ModuleType, mode: str) -> None:
    rng = random.Random(20270203)
    wanted, messages = [], []
    for index in range(ROWS):
        row, total, overflow = random_row(rng), index + 1, rng.random() < 0.3
        messages.append(reporter._format_violation(row=row, total=total, ring_overflow=overflow, step_when_pumped=index * 3))
        wanted.append(expected(row, total, overflow, index * 3))
    if mode == "log":
        text = "".join(f"[2027-02-03 04:05:06 TP{index % 4}] {message}\n" for index, message in enumerate(messages))
    else:
        header = "[2027-02-03 04:05:06 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        text = header + "RuntimeError: " + "\n".join(messages) + "\n"
    log = read_text(text)
    assert [found(violation) for violation in log.violations] == wanted
    assert {violation.stream.rank for violation in log.violations} == ({"TP0", "TP1", "TP2", "TP3"} if mode == "log" else {"TP0"})
    assert log.unread == 0


def test_our_reports_are_sglangs_letter_by_letter(reporter: ModuleType) -> None:
    rng = random.Random(20270204)
    for index in range(ROWS):
        row, overflow = random_row(rng), rng.random() < 0.3
        theirs = reporter._format_violation(row=row, total=index, ring_overflow=overflow, step_when_pumped=index * 7)
        assert violation_text(row, total=index, ring_overflow=overflow, step=index * 7) == theirs
