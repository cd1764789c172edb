"""Every printed form of a canary message, alone and mixed."""

from __future__ import annotations

import json

import pytest

from kvcanary.analysis.canary_log import CanaryLog, StreamReport
from kvcanary.analysis.log_stream import read_text
from tests.analysis.rendering import Row, install, prefix, stats

CHAIN = Row(tag="HEAD_K_FULL", reasons=("verify_chain_hash", "verify_position"), slot=77, position=9, token=511, aux=0xABCDEF0123456789)
WRITE = Row(tag="HEAD_K_FULL", reasons=("write_position",), slot=640, position=512, token=88, expected_token=88, aux=2560)


def one(log: CanaryLog, rank: str = "TP0") -> StreamReport:
    [report] = [report for report in log.streams if report.stream.rank == rank]
    return report


def test_log_mode_message_is_read_whole() -> None:
    log = read_text(prefix("DP1 TP3 EP3") + CHAIN.message(total=6, step=91) + "\n")
    [violation] = log.violations
    assert (violation.stream.rank, violation.launch_tag, violation.reasons) == ("DP1 TP3 EP3", CHAIN.tag, CHAIN.reasons)
    assert (violation.slot_idx, violation.position, violation.stored_token, violation.expected_token) == (77, 9, 511, -1)
    assert (violation.stored_chain_hash, violation.expected_aux) == (0x1111222233334444, 0xABCDEF0123456789)
    assert (violation.step, violation.total, violation.ring_overflow, violation.truncated) == (91, 6, False, False)
    assert str(violation.time) == "2027-02-03 04:05:06"
    assert log.unread == 0


def test_write_row_holds_a_signed_position() -> None:
    row = Row(tag="TAIL_K_FULL", reasons=("write_token", "write_position"), aux=-1)
    first, second = read_text(f"{prefix()}{WRITE.message()}\n{prefix()}{row.message()}\n").violations
    assert first.expected_position == 2560
    assert second.expected_position == -1
    assert second.expected_aux == (1 << 64) - 1


def test_raised_rows_take_rank_and_time_from_the_traceback() -> None:
    rows = [Row(slot=slot) for slot in (4, 5, 6)]
    body = "\n".join(row.message(total=3, step=20) for row in rows)
    log = read_text(
        f"{prefix('PP1 TP0')}Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/srv/engine/loop.py", line 7, in run\nRuntimeError: {body}\n\n{prefix("")}Received sigquit from a child process.\n'
    )
    assert [violation.slot_idx for violation in log.violations] == [4, 5, 6]
    assert {violation.stream.rank for violation in log.violations} == {"PP1 TP0"}
    assert {violation.step for violation in log.violations} == {20}
    assert one(log, "PP1 TP0").raised
    assert [event.kind for event in log.events_of("sigquit")] == ["sigquit"]


def test_two_tracebacks_that_run_into_each_other_name_no_rank() -> None:
    header = "Scheduler hit an exception: Traceback (most recent call last):"
    log = read_text(f"{prefix('TP0')}{header}\n{prefix('TP1')}{header}\nRuntimeError: {CHAIN.message()}\n")
    assert [violation.stream.rank for violation in log.violations] == ["(none)"]


@pytest.mark.parametrize(
    ("wrap", "source"),
    [
        (lambda text: f"worker-2  | {text}", "worker-2"),
        (lambda text: f"2027-02-03T04:05:06.25Z stderr F {text}", ""),
        (lambda text: f"[pod/decode-7/engine] {text}", "decode-7/engine"),
        (lambda text: f"Feb  3 04:05:06 node9 sglang[71]: {text}", "node9"),
        (lambda text: f"2027-02-03T04:05:06.1234567Z {text}", ""),
        (lambda text: f"\x1b[33m{text}\x1b[0m", ""),
        (lambda text: f"run/server.log:311:{text}", "run/server.log"),
        (lambda text: f"(Scheduler pid=91, ip=10.0.0.4) {text}", "Scheduler"),
        (lambda text: json.dumps({"log": text + "\n", "stream": "stderr", "time": "2027-02-03T04:05:06.1Z"}), ""),
        (lambda text: json.dumps({"textPayload": text, "resource": {"labels": {"pod_name": "p-0"}}}), "p-0"),
        (lambda text: f"Loading 10%\rLoading 90%\r{text}", ""),
        (lambda text: text + "\r", ""),
    ],
)
def test_wrapped_by_a_collector(wrap, source: str) -> None:
    text = "\n".join(wrap(line) for line in (prefix() + CHAIN.message(total=2, step=5)).split("\n"))
    [violation] = read_text(text + "\n").violations
    assert (violation.stream.rank, violation.stream.source, violation.slot_idx) == ("TP0", source, 77)
    assert (violation.step, violation.total) == (5, 2)
    assert str(violation.time) == "2027-02-03 04:05:06"


def test_whole_message_inside_one_json_record_or_repr() -> None:
    message = prefix() + CHAIN.message(total=2, step=5)
    for text in (json.dumps({"message": message}), "worker died: " + repr(f"RuntimeError('{CHAIN.message(total=2, step=5)}')")):
        [violation] = read_text(text + "\n").violations
        assert (violation.slot_idx, violation.step, violation.total) == (77, 5, 2)


def test_partial_lines_of_a_container_runtime_are_joined() -> None:
    line = prefix() + CHAIN.line()
    counted = stats(100, 1)
    pieces = (("P", line[:90]), ("F", line[90:]), ("P", counted[:60]), ("P", counted[60:80]), ("F", counted[80:]))
    log = read_text("".join(f"2027-02-03T04:05:06Z stderr {mark} {piece}\n" for mark, piece in pieces))
    [violation] = log.violations
    assert one(log).last_step == 100
    assert (violation.slot_idx, violation.expected_aux, violation.stream.rank) == (77, CHAIN.aux, "TP0")


def test_two_servers_in_one_stream_keep_their_own_rank_zero() -> None:
    text = f"prefill-1 | {stats(100, 0)}\n" + "".join(f"decode-1  | {line}\n" for line in (prefix() + CHAIN.message(total=4)).split("\n"))
    log = read_text(text)
    assert {(report.stream.source, report.counter) for report in log.streams} == {("prefill-1", 0), ("decode-1", 4)}


@pytest.mark.parametrize("width", [37, 41, 57, 64, 80, 99])
def test_hard_wrap_at_any_column(width: int) -> None:
    line = prefix() + CHAIN.line()
    pieces = [line[at : at + width] for at in range(0, len(line), width)]
    [violation] = read_text("\n".join(pieces) + "\n" + stats(100, 1) + "\n").violations
    assert (violation.slot_idx, violation.position, violation.stored_token, violation.expected_token) == (77, 9, 511, -1)
    assert (violation.stored_chain_hash, violation.expected_aux) == (CHAIN.stored_hash, CHAIN.aux)


def test_word_wrap_with_indent_and_footer_without_step() -> None:
    words = ["RuntimeError: kv_canary violation: launch_tag=TAIL_K_FULL", *CHAIN.line().split(" ")[3:]]
    text = "\n".join(f"      {word}" for word in words) + "\n      total_violations=31 ring_overflow=False\n   ##[endgroup]\n"
    [violation] = read_text(text).violations
    assert (violation.slot_idx, violation.total, violation.step, violation.ring_overflow) == (77, 31, None, False)


@pytest.mark.parametrize("cut", range(95, 266))
def test_cut_record_keeps_only_what_is_certain(cut: int) -> None:
    line = prefix() + CHAIN.line()
    log = read_text(line[:cut])
    for violation in log.violations:
        assert violation.truncated == (cut < len(line))
        for name, value in (("slot_idx", 77), ("position", 9), ("stored_token", 511), ("stored_chain_hash", CHAIN.stored_hash)):
            assert getattr(violation, name) in (value, None)
        assert (violation.stored_chain_hash is None) == (cut < line.index(" expected_aux"))
    assert len(log.violations) + log.unread == 1


def test_line_that_follows_a_cut_record_is_not_swallowed() -> None:
    cut = prefix() + CHAIN.line()[:140]
    for following in (prefix("TP1") + WRITE.line(), WRITE.line(), "404 not a part of it"):
        slots = [violation.slot_idx for violation in read_text(f"{cut}\n{following}\n").violations]
        assert slots == ([77, 640] if "violation" in following else [77])
    glued = read_text(cut + prefix("TP1") + WRITE.line() + "\n").violations
    assert [(violation.slot_idx, violation.truncated) for violation in glued] == [(77, True), (640, False)]


def test_mixed_lines_of_two_ranks_attach_no_footer() -> None:
    first = (prefix("TP0") + Row(slot=1).message(total=8, step=50)).split("\n")
    second = (prefix("TP1") + Row(slot=2).message(total=3, step=52)).split("\n")
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    log = read_text("\n".join(mixed) + "\n")
    assert [(violation.slot_idx, violation.total, violation.step) for violation in log.violations] == [(1, None, None), (2, None, None)]
    assert sorted(total for report in log.streams for total in report.unattached_counters) == [3, 8]
    assert one(log).ring_lost is None


def test_mixed_lines_attach_where_only_one_record_is_open() -> None:
    first = (prefix("TP0") + Row(slot=1).message(total=8, step=50)).split("\n")
    log = read_text("\n".join([*first[:3], prefix("TP1") + "Decode batch, #running-req: 3", *first[3:]]) + "\n")
    assert [(violation.total, violation.step) for violation in log.violations] == [(8, 50)]


def test_footer_of_a_record_whose_line_is_missing_is_not_attached() -> None:
    stray = Row(slot=9).message(total=44, step=7).split("\n")[1:]
    log = read_text("\n".join([prefix() + Row(slot=1).line(), *stray]) + "\n")
    assert [(violation.slot_idx, violation.total) for violation in log.violations] == [(1, None)]


def test_old_labels_are_normalised() -> None:
    row = Row(reasons=("chain_hash", "position", "real_kv_hash"))
    [violation] = read_text(prefix("") + row.line() + "\n").violations
    assert violation.reasons == ("verify_chain_hash", "verify_position", "verify_real_kv_hash")
    assert violation.reasons_raw == row.reasons
    assert violation.stream.rank == "(none)"


def test_rare_values() -> None:
    rows = [
        Row(tag="unknown(63)", reasons=(), slot=3),
        Row(tag="SWEEP_V_SWA", reasons=("verify_position",), slot=2**53 + 1, position=-(2**63), token=2**63 - 1),
    ]
    first, second = read_text("".join(f"{prefix()}{row.message()}\n" for row in rows)).violations
    assert (first.launch_tag, first.reasons, first.reasons_raw) == ("unknown(63)", (), ())
    assert (second.slot_idx, second.position, second.stored_token) == (2**53 + 1, -(2**63), 2**63 - 1)


def test_mentions_are_counted_and_no_records() -> None:
    log = read_text(
        "assert 'kv_canary violation:' not in out\nsearch for kv_canary violation: launch_tag=<TAG> fail_reason=<R>\n"
        "kv_canary violation: launch_tag=... and so on\n"
    )
    assert (len(log.violations), log.unread) == (0, 3)
    assert log.canary_lines == 0


def test_full_ring_hides_the_rest() -> None:
    text = "".join(f"{prefix()}{Row(slot=slot).message(total=5, step=4, overflow=True)}\n" for slot in (1, 2)) + stats(100, 212) + "\n"
    report = one(read_text(text))
    assert (report.listed, report.counter, report.ring_capacity, report.ring_lost) == (2, 212, 2, 210)


def test_rows_cut_from_a_report_are_not_lost_by_the_ring() -> None:
    report = one(read_text(f"{prefix()}{CHAIN.message(total=60)}\n"))
    assert (report.listed, report.counter, report.ring_lost) == (1, 60, 0)
    unknown = one(read_text(f"{prefix()}{CHAIN.message(total=1)}\n{stats(100, 60)}\n"))
    assert unknown.ring_lost is None
    known = one(read_text(f"{install(ring=16)}\n{prefix()}{CHAIN.message(total=1)}\n{stats(100, 60)}\n"))
    assert (known.ring_capacity, known.ring_lost) == (16, 44)


def test_overflow_warnings_are_cumulative_for_each_rank() -> None:
    def warning(rank: str, total: int, capacity: int) -> str:
        return (
            f"{prefix(rank)}kv-canary: per-forward verify skipped this step due to overflow (total={total}, capacity={capacity}); "
            "check ServerArgs / pool sizing\n"
        )

    log = read_text(warning("TP0", 1, 900) + warning("TP1", 1, 1000) + warning("TP0", 31, 900) + stats(200, 0) + "\n")
    first, second = one(log), one(log, "TP1")
    assert (first.overflow_steps, first.pool_slots, first.steps_verified) == (31, 300, 169)
    assert (second.overflow_steps, second.pool_slots, second.steps_verified) == (1, None, None)


def test_sweeps_count_the_larger_number_and_give_the_interval() -> None:
    lines = [f"{prefix()}[canary] sweep succeeded {count} times (last_step={step})\n" for count, step in ((1, 0), (2, 60), (4, 180))]
    report = one(read_text("".join(lines) + stats(200, 0, sweeps=9) + "\n"))
    assert (report.sweep_passes, report.sweep_interval) == (9, 60)


@pytest.mark.parametrize("phrase", ["did not increase since previous check", "is zero after warmup"])
def test_health_error_takes_the_rank_of_its_traceback(phrase: str) -> None:
    log = read_text(
        f"{prefix('TP2')}Scheduler hit an exception: Traceback (most recent call last):\n"
        f"RuntimeError: kv-canary: kernel_run_counter {phrase} for tags=[SWEEP_K_FULL, SWEEP_K_SWA] at step=401; "
        "canary path is not executing\n"
    )
    event = one(log, "TP2").health_error
    assert event is not None
    assert (event.tags, event.values["step"]) == (("SWEEP_K_FULL", "SWEEP_K_SWA"), 401)


def test_perturb_lines_are_ground_truth_and_skipped_ones_are_not() -> None:
    log = read_text(
        f"{prefix()}kv_canary perturb: enabled after warmup window at step=50\n"
        f"{prefix()}kv_canary perturb req_to_token: req_pool_idx=3 position=6 original_slot=70 new_slot=12\n"
        f"{prefix()}kv_canary perturb real_kv_used: skipped because no active slot\n"
        f"{prefix()}kv_canary perturb real_kv_used: group=SWA source_idx=0 slot=5 row=5 col=0 original_byte=0x0F new_byte=0xF0\n"
    )
    real = [dict(event.values) for event in log.events_of("perturb") if "skipped" not in event.values]
    assert real == [
        {"name": "req_to_token", "req_pool_idx": 3, "position": 6, "original_slot": 70, "new_slot": 12},
        {
            "name": "real_kv_used",
            "group": "SWA",
            "source_idx": 0,
            "slot": 5,
            "row": 5,
            "col": 0,
            "original_byte": "0x0F",
            "new_byte": "0xF0",
        },
    ]


def test_divergence_in_both_forms() -> None:
    log = read_text(
        f'{prefix()}kv_canary_swa_divergence={{"forward_ct":9,"verify_full":80,"verify_swa":8,"swa_full_idx_divergence":1,'
        '"swa_out_of_window_tokens":7}\n'
        f"{prefix()}kv_canary swa_divergence: forward_ct=19 verify_full=160 verify_swa=16 mapping_nonidentity=2 swa_pool_wrap=1\n"
    )
    assert [event.values["forward_ct"] for event in log.events_of("divergence")] == [9, 19]
    assert log.unread == 0


def test_install_lines_old_and_new() -> None:
    assert one(read_text(install(ring=64, sweep=4, real="ALL") + "\n")).install["real_kv_hash_mode"] == "all"
    report = one(read_text(install(mode="RAISE", capacity=3 * 4321) + "\n"))
    assert (report.install["mode"], report.pool_slots, report.install["target_group_kind"]) == ("raise", 4321, None)
    old = one(read_text(f"{prefix()}install_canary: mode=log tags=6 sweep_cadence=25\n"))
    assert (old.install["sweep_interval"], old.install["mode"]) == (25, "log")


def test_restart_begins_a_new_counter() -> None:
    text = f"{install()}\n{stats(500, 7)}\n{install()}\n{stats(100, 2)}\n"
    report = one(read_text(text))
    assert (report.starts, report.counter, report.runners) == (2, 9, 1)
    both = one(read_text(f"{install()}\n{install()}\n{stats(500, 7)}\n"))
    assert (both.starts, both.runners) == (1, 2)


def test_batch_size_of_the_nearest_batch_line() -> None:
    log = read_text(f"{prefix()}Decode batch, #running-req: 17, #token: 5\n{prefix()}{CHAIN.message()}\n")
    assert [violation.running_reqs for violation in log.violations] == [17]


def test_errors_near_violations_are_kept() -> None:
    log = read_text(f"{prefix()}{CHAIN.message()}\n{prefix()}NCCL Error: remote process exited\n")
    assert [event.text for event in log.events_of("error")] == ["NCCL Error: remote process exited"]


def test_rank_that_prints_without_a_canary_line_is_known() -> None:
    log = read_text(f"{prefix('TP1')}Load weight end.\n{stats(100, 0)}\n")
    assert {report.stream.rank: report.canary_lines for report in log.streams} == {"TP0": 1, "TP1": 0}
