"""What the simulated server prints, against messages written down from the format alone."""

from __future__ import annotations

import numpy as np

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.lab.sglang_log import CanaryPrinter, Deployment, start_lines, violation_message
from kvcanary.layout import LaunchTag, RealKvHashMode
from kvcanary.serving.options import ServingOptions
from tests.analysis.rendering import Row

VERIFY = np.array([LaunchTag.TAIL_K_FULL, 812, 40, 3001, -1, -5, 77, 1 | 2], dtype=np.int64)
TOKEN = np.array([LaunchTag.HEAD_K_FULL, 9, 3, 55, 66, 7, 7, 32], dtype=np.int64)
WRITE = np.array([LaunchTag.HEAD_K_SWA, 4, 640, 9, 9, 1 << 40, -3, 16], dtype=np.int64)
SWEEP = np.array([LaunchTag.SWEEP_K_FULL, 4, 640, 9, -1, 1 << 40, 1 << 40, 4], dtype=np.int64)


def test_messages_of_every_form() -> None:
    expected = (
        Row(reasons=("verify_chain_hash", "verify_position"), stored_hash=2**64 - 5, aux=77).message(total=3, step=8),
        Row("HEAD_K_FULL", ("verify_token",), 9, 3, 55, 66, 7, 7).message(total=3, step=8),
        Row("HEAD_K_SWA", ("write_position",), 4, 640, 9, 9, 1 << 40, -3).message(total=3, step=8),
        Row("SWEEP_K_FULL", ("verify_real_kv_hash",), 4, 640, 9, -1, 1 << 40, 1 << 40).message(total=3, step=8),
    )
    rows = (VERIFY, TOKEN, WRITE, SWEEP)
    assert tuple(violation_message(row, total=3, overflow=False, step=8) for row in rows) == expected


def test_first_report_is_one_forward_late_and_covers_two() -> None:
    printer = CanaryPrinter(mode="log", ring_capacity=2, step_s=1.0)
    printer.step(7, np.array([VERIFY]), 1, swept=False)
    assert printer.lines == []
    printer.step(8, np.array([VERIFY]), 2, swept=True)
    assert [line.split("] ", 1)[1].split(":")[0] for line in printer.lines] == [
        "[canary] sweep succeeded 1 times (last_step=8)", "kv_canary violation", "kv_canary violation",
    ]  # fmt: skip
    assert all(line.endswith("total_violations=3 ring_overflow=True step_when_pumped=9") for line in printer.lines[1:])
    printer.step(9, np.array([SWEEP]), 1, swept=False)
    assert printer.lines[-1].endswith("total_violations=4 ring_overflow=True step_when_pumped=10")


def test_raise_mode_prints_once_in_a_traceback() -> None:
    printer = CanaryPrinter(mode="raise", ring_capacity=1024, step_s=1.0)
    for index in (3, 4):
        printer.step(index, np.array([VERIFY]), 1, swept=False)
    text = "\n".join(printer.lines)
    assert printer.ended
    assert text.count("RuntimeError: kv_canary violation") == 1
    assert text.count("kv_canary violation:") == 2


def test_start_lines_tell_the_settings() -> None:
    config = CanaryConfig(real_data=RealKvHashMode.PARTIAL, sweep_interval=4)
    text = "\n".join(start_lines(ServingOptions(pool_slot_count=700), config, Deployment(name="d", disaggregation="decode"), "raise"))
    for part in (
        "per_forward_verify_capacity=2100",
        "disaggregation_mode=decode",
        "<RealKvHashMode.PARTIAL: 1>",
        "mode=<CanaryMode.RAISE: 'raise'>",
        "sweep_interval=4",
        "read_bytes=16",
    ):
        assert part in text
