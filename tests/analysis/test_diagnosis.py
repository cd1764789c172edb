"""The cause of each kind of damage, its confidence, and what the log does not cover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcanary.analysis.causes import CAUSE_TEXTS, Cause
from kvcanary.analysis.diagnosis import Diagnosis, diagnose
from kvcanary.analysis.log_stream import read_text
from kvcanary.analysis.marks import Confidence
from kvcanary.layout import CHAIN_START
from tests.analysis.pools import Pool, chain
from tests.analysis.rendering import Row, install, prefix, stats


def diagnosed(
    rows: list[Row], *, before: str = "", step: int = 300, rank: str = "TP0", after: str = "", total: int | None = None
) -> Diagnosis:
    total = len(rows) if total is None else total
    text = before + "".join(f"{prefix(rank)}{row.message(total=total, step=step)}\n" for row in rows) + after
    return diagnose(read_text(text))


def first(diagnosis: Diagnosis) -> tuple[Cause, Confidence]:
    return diagnosis.causes[0].cause, diagnosis.causes[0].confidence


def pool_of_two() -> Pool:
    pool = Pool()
    pool.stamp([11, 12, 13, 14, 15], [501, 502, 503, 504, 505])
    pool.stamp([31, 32, 33, 34], [701, 702, 703, 704])
    return pool


def test_replaced_cell_is_a_wrong_mapping() -> None:
    diagnosis = diagnosed(pool_of_two().verify([11, 12, 34, 14, 15]))
    assert first(diagnosis) == (Cause.WRONG_MAPPING, Confidence.HIGH)
    assert any("slot 14 fails only as successor" in line for line in diagnosis.causes[0].evidence)
    assert "slot 34: token 704 at position 3" in diagnosis.causes[0].evidence[0]


def test_lone_intruder_is_sure_and_several_or_a_host_tier_are_not() -> None:
    pool = pool_of_two()
    for slots in ([33, 12, 13, 34, 15], [33, 12, 13, 31, 15]):
        assert first(diagnosed(pool.verify(slots))) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)
    tier = f"{prefix()}Tree cache initialized: source=default impl=HiRadixCache hicache_attached=True\n"
    assert first(diagnosed(pool.verify([11, 12, 34, 14, 15]), before=tier)) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)


def test_record_written_to_another_slot_is_a_wrong_mapping() -> None:
    pool = pool_of_two()
    stray = pool.tail[14]
    for buffer in (pool.head, pool.tail):
        buffer[14], buffer[32] = (0, 0, 0), stray
    diagnosis = diagnosed(pool.verify([11, 12, 13, 14]) + pool.verify([31, 32, 33, 34]))
    assert first(diagnosis)[0] is Cause.WRONG_MAPPING
    assert any("slot 14 holds only zeros" in line for line in diagnosis.causes[0].evidence)


def test_overwritten_front_of_a_row_is_a_wrong_mapping() -> None:
    pool = pool_of_two()
    assert first(diagnosed(pool.verify([31, 32, 33, 14, 15])))[0] is Cause.WRONG_MAPPING


def test_changed_bytes() -> None:
    pool = pool_of_two()
    pool.bad_bytes = {12, 15}
    diagnosis = diagnosed(pool.verify([11, 12, 13, 14, 15]))
    assert first(diagnosis) == (Cause.KV_BYTES_CHANGED, Confidence.MEDIUM)
    pool.bad_bytes = {13}
    swept = pool.verify([11, 12, 13, 14, 15], places=("SWEEP",))
    diagnosis = diagnosed(swept)
    assert first(diagnosis) == (Cause.CACHED_BYTES_CHANGED, Confidence.MEDIUM)
    # They may have changed in the last step of the request that left them there.
    assert diagnosis.causes[0].others == (Cause.KV_BYTES_CHANGED,)
    again = "".join(f"{prefix()}{row.message(total=2, step=step)}\n" for step in (100, 108) for row in swept)
    repeated = diagnose(read_text(again))
    assert first(repeated) == (Cause.CACHED_BYTES_CHANGED, Confidence.MEDIUM)
    assert any("with each sweep" in line for line in repeated.causes[0].evidence)


def test_run_of_changed_bytes_on_the_decode_side_is_the_transfer() -> None:
    pool = pool_of_two()
    pool.bad_bytes = {12, 13, 14, 15}
    rows = pool.verify([11, 12, 13, 14, 15])
    decode = install().replace("disaggregation_mode=null", "disaggregation_mode=decode") + "\n"
    assert first(diagnosed(rows, before=decode)) == (Cause.TRANSFER_INCOMPLETE, Confidence.MEDIUM)
    assert first(diagnosed(rows, before=install() + "\n")) == (Cause.KV_BYTES_CHANGED, Confidence.MEDIUM)
    assert first(diagnosed(rows, step=2))[0] is Cause.TRANSFER_INCOMPLETE


def test_zero_records_are_missing_and_the_server_tells_why() -> None:
    pool = pool_of_two()
    for slot in (13, 14):
        pool.head[slot] = pool.tail[slot] = (0, 0, 0)
    rows = pool.verify([11, 12, 13, 14, 15])
    decode = install().replace("disaggregation_mode=null", "disaggregation_mode=decode") + "\n"
    tier = f"{prefix()}Tree cache initialized: source=default impl=HiRadixCache hicache_attached=True\n"
    assert first(diagnosed(rows, before=decode)) == (Cause.TRANSFER_INCOMPLETE, Confidence.MEDIUM)
    assert first(diagnosed(rows, before=tier)) == (Cause.STALE_RECORD, Confidence.MEDIUM)
    assert first(diagnosed(rows)) == (Cause.TRANSFER_INCOMPLETE, Confidence.LOW)


def test_tail_records_that_never_came_are_a_cut_transfer() -> None:
    pool = pool_of_two()
    for slot in (11, 12):
        pool.tail[slot] = (0, 0, 0)
    assert first(diagnosed(pool.verify([11, 12])))[0] is Cause.TRANSFER_INCOMPLETE


def test_records_of_a_previous_owner_with_other_bytes_are_stale() -> None:
    pool = Pool()
    pool.stamp([21, 22, 23], [801, 802, 803], first_position=9)
    pool.bad_bytes = {21, 22, 23}
    assert first(diagnosed(pool.verify([21, 22, 23]))) == (Cause.STALE_RECORD, Confidence.MEDIUM)


def test_run_of_a_previous_owner_is_never_stated_surely() -> None:
    pool = pool_of_two()
    pool.stamp([13, 14], [901, 902])
    diagnosis = diagnosed(pool.verify([11, 12, 13, 14]))
    assert first(diagnosis) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)
    assert Cause.STALE_RECORD in diagnosis.causes[0].others


@pytest.mark.parametrize("buffer", ["head", "tail"])
def test_one_buffer_alone_is_a_stray_write(buffer: str) -> None:
    pool = pool_of_two()
    getattr(pool, buffer)[13] = (0x5151515151515151, 77, 4000)
    assert first(diagnosed(pool.verify([11, 12, 13, 14, 15]))) == (Cause.CANARY_OVERWRITTEN, Confidence.MEDIUM)


def test_one_buffer_of_a_cut_log_is_no_proof() -> None:
    pool = pool_of_two()
    rows = [row for row in pool.verify([11, 12, 34, 14]) if row.tag.startswith("HEAD")]
    assert first(diagnosed(rows, total=4)) == (Cause.WRONG_MAPPING, Confidence.LOW)


@pytest.mark.parametrize("field", [0, 1, 2])
def test_flipped_bit_of_a_record_is_found_in_any_field(field: int) -> None:
    pool = pool_of_two()
    record = list(pool.tail[13])
    record[field] ^= 1 << 9
    pool.tail[13] = (record[0], record[1], record[2])
    rows = [row for row in pool.verify([11, 12, 13, 14, 15]) if field != 2 or row.slot == 14]
    diagnosis = diagnosed(rows)
    assert first(diagnosis) == (Cause.RECORD_BIT_FLIP, Confidence.HIGH)
    assert "bit 9" in diagnosis.causes[0].evidence[0]


def test_same_difference_in_both_buffers_is_no_flip() -> None:
    pool = pool_of_two()
    prev_hash, token, position = pool.tail[13]
    pool.head[13] = pool.tail[13] = (prev_hash ^ 1, token, position)
    assert first(diagnosed(pool.verify([11, 12, 13, 14, 15])))[0] is not Cause.RECORD_BIT_FLIP


def write_rows(reason: str, *pairs: tuple[int, int, int, int, int], group: str = "FULL") -> list[Row]:
    return [
        Row(tag=f"{place}_K_{group}", reasons=(reason,), slot=slot, position=position, token=token, expected_token=expected, aux=aux)
        for place in ("HEAD", "TAIL")
        for slot, position, token, expected, aux in pairs
    ]


def test_position_one_too_high() -> None:
    assert first(diagnosed(write_rows("write_position", (5, 31, 9, 9, 30)))) == (Cause.POSITION_WRONG, Confidence.MEDIUM)
    alone = [
        Row(tag=f"{place}_K_FULL", reasons=("verify_position",), slot=3, position=1, stored_hash=CHAIN_START) for place in ("HEAD", "TAIL")
    ]
    assert first(diagnosed(alone)) == (Cause.POSITION_WRONG, Confidence.MEDIUM)


def test_position_off_by_pages_in_a_window_group_stays_open() -> None:
    diagnosis = diagnosed(write_rows("write_position", (768, 640, 9, 9, 2432), group="SWA"))
    cause, confidence = first(diagnosis)
    assert (cause, confidence) == (Cause.STALE_RECORD, Confidence.LOW)
    assert Cause.POSITION_WRONG in diagnosis.causes[0].others
    assert any("7 times 256" in line for line in diagnosis.causes[0].evidence)


TIER = f"{prefix()}Tree cache initialized: source=default impl=HiRadixCache hicache_attached=True\n"


def seeded(stored_hash: int, aux: int, *, group: str = "FULL") -> list[Row]:
    return [replace(row, stored_hash=stored_hash) for row in write_rows("write_position", (91, 26, 9, 9, aux), group=group)]


def test_a_write_after_a_record_of_zeros_follows_slot_0() -> None:
    diagnosis = diagnosed(seeded(0, 1))
    assert first(diagnosis) == (Cause.WRONG_MAPPING, Confidence.HIGH)
    assert any("passes over" in line for line in diagnosis.causes[0].evidence)
    # The same with a position that is close, where the distance alone would say off by one.
    assert first(diagnosed([replace(row, position=3) for row in seeded(0, 1)])) == (Cause.WRONG_MAPPING, Confidence.HIGH)
    assert first(diagnosed(seeded(0, 1), before=TIER)) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)
    assert first(diagnosed(seeded(0, 1), total=9)) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)
    assert first(diagnosed(seeded(0, 1)[:1])) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)
    assert first(diagnosed(seeded(0, 1, group="SWA"))) == (Cause.STALE_RECORD, Confidence.MEDIUM)


def test_a_write_after_another_record_says_nothing_of_slot_0() -> None:
    assert first(diagnosed(seeded(0, 7)))[0] is Cause.POSITION_WRONG
    assert first(diagnosed(seeded(5, 1)))[0] is Cause.POSITION_WRONG


def test_slots_of_one_stretch_are_known_by_their_chain() -> None:
    pool = pool_of_two()
    pool.stamp([41, 17, 93, 60], [801, 802, 803, 804])
    pool.bad_bytes = {17, 93}
    diagnosis = diagnosed(pool.verify([41, 17, 93, 60]), before=TIER)
    assert first(diagnosis) == (Cause.TRANSFER_INCOMPLETE, Confidence.MEDIUM)
    assert any("in one chain, at positions 1 to 2" in line for line in diagnosis.causes[0].evidence)
    for others in ({41, 60}, {17, 93, 34}):
        pool.bad_bytes = others
        rows = pool.verify([41, 17, 93, 60]) + pool.verify([31, 32, 33, 34])
        assert first(diagnosed(rows, before=TIER))[0] is Cause.KV_BYTES_CHANGED


def test_scattered_records_of_a_previous_owner_and_whether_the_bytes_fit_them() -> None:
    pool = pool_of_two()
    pool.stamp([91, 47], [901, 902])
    rows = pool.verify([11, 12, 91, 47])
    assert first(diagnosed(rows, before=TIER)) == (Cause.STALE_RECORD, Confidence.MEDIUM)
    assert first(diagnosed(rows, before=install(real="NONE") + "\n" + TIER))[0] is Cause.STALE_RECORD
    # TAIL hashed the bytes and found them right, so records and bytes came together.
    assert first(diagnosed(rows, before=install() + "\n" + TIER)) == (Cause.WRONG_MAPPING, Confidence.MEDIUM)


def test_a_position_that_jumps_and_comes_back_is_no_stale_seed() -> None:
    diagnosis = diagnosed(write_rows("write_position", (219, 87, 9, 9, 23), (220, 24, 5, 5, 88)), before=TIER)
    assert first(diagnosis) == (Cause.POSITION_WRONG, Confidence.MEDIUM)
    assert "Position 87 stands where 23 belongs" in diagnosis.causes[0].evidence[0]
    stays = diagnosed(write_rows("write_position", (219, 87, 9, 9, 23), (220, 24, 5, 5, 89)), before=TIER)
    assert first(stays)[0] is Cause.STALE_RECORD


def test_exchanged_tokens() -> None:
    assert first(diagnosed(write_rows("write_token", (5, 30, 111, 222, 30), (9, 8, 222, 111, 8)))) == (Cause.TOKEN_WRONG, Confidence.HIGH)
    assert first(diagnosed(write_rows("write_token", (5, 30, 111, 222, 30)))) == (Cause.TOKEN_WRONG, Confidence.MEDIUM)


def test_token_check_alone() -> None:
    def rows(count: int) -> list[Row]:
        return [
            Row(
                tag=f"{place}_K_FULL",
                reasons=("verify_token",),
                slot=60 + at,
                position=at,
                token=7,
                expected_token=8,
                stored_hash=record[0],
                aux=record[0],
            )
            for place in ("HEAD", "TAIL")
            for at, record in enumerate(chain([7] * count))
        ]

    assert first(diagnosed(rows(1)))[0] is Cause.TOKEN_WRONG
    assert first(diagnosed(rows(5)))[0] is Cause.WRONG_MAPPING


def test_many_window_sweep_mismatches_are_noise() -> None:
    rows = [
        Row(tag="SWEEP_K_SWA", reasons=("verify_chain_hash",), slot=slot * 3, stored_hash=slot, aux=slot << 20) for slot in range(1, 90)
    ]
    assert first(diagnosed(rows)) == (Cause.SWA_SWEEP_NOISE, Confidence.MEDIUM)


def test_health_error_is_a_setting_and_no_corruption() -> None:
    sweeps = "".join(
        f"{prefix()}[canary] sweep succeeded {count} times (last_step={step})\n" for count, step in ((1, 0), (2, 120), (3, 240))
    )
    error = "RuntimeError: kv-canary: kernel_run_counter did not increase since previous check for tags=[SWEEP_K_FULL] at step=301; x\n"
    diagnosis = diagnose(read_text(sweeps + f"{prefix()}Scheduler hit an exception: Traceback (most recent call last):\n{error}"))
    assert diagnosis.verdict == "partial"
    assert first(diagnosis) == (Cause.CANARY_SETTING, Confidence.HIGH)
    assert any("every 120 steps" in line for line in diagnosis.causes[0].evidence)


def test_a_slot_of_two_replicas_is_named_once() -> None:
    log = "".join(f"{prefix(rank)}{Row(slot=slot).message(total=2)}\n" for rank in ("DP0 TP0", "DP1 TP0") for slot in (7, 9))
    assert "for slots 7 and 9 on" in diagnose(read_text(log)).sentence


def test_only_a_rank_of_the_incident_says_whether_rows_are_missing() -> None:
    written = seeded(0, 1)
    cut = f"{prefix('DP1 TP0', '2027-02-03 09:00:00')}{Row(slot=5).message(total=90, step=9000)}\n"
    whole, both = diagnosed(written, rank="DP0 TP0"), diagnosed(written, rank="DP0 TP0", after=cut)
    assert first(whole) == first(both) == (Cause.WRONG_MAPPING, Confidence.HIGH)
    other = "".join(f"{prefix('DP1 TP0', '2027-02-03 09:00:00')}{Row(slot=slot).message(total=5, step=9000)}\n" for slot in range(5, 10))
    # Rows that another rank lists make up for none of this one.
    assert first(diagnosed(written[:1], rank="DP0 TP0", total=2, after=other)) != (Cause.WRONG_MAPPING, Confidence.HIGH)


def test_rank_evidence() -> None:
    def text(rank: str, slot: int) -> str:
        return f"{prefix(rank)}{Row(slot=slot).message()}\n"

    def evidence(log: str) -> str:
        return " ".join(diagnose(read_text(log)).causes[0].evidence)

    assert "All 2 ranks report the same slots" in evidence(text("TP0", 5) + text("TP1", 5))
    assert "TP1 alone of 2 ranks" in evidence(stats(100, 0) + "\n" + text("TP1", 5))
    assert "none is shared" in evidence(text("TP0", 5) + text("TP1", 6))


def test_stride_is_said() -> None:
    diagnosis = diagnosed([Row(slot=slot) for slot in (128, 256, 384, 512)])
    assert any("128 apart, a power of two" in line for line in diagnosis.causes[0].evidence)


def test_injected_faults_are_named() -> None:
    line = f"{prefix()}kv_canary perturb real_kv_used: group=FULL source_idx=0 slot=5 row=5 col=0 original_byte=0x00 new_byte=0xFF\n"
    diagnosis = diagnosed([Row(slot=5)], before=line)
    assert "1 injected fault in this log, 1 of the reported slots are among them" in diagnosis.notes[0]


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        (f"{install()}\n{stats(100, 0)}\n", "pass", ""),
        (f"{install()}\n", "not run", "no line shows that a check ran"),
        ("some other log\n", "not run", "1 line and none of the canary; start"),
        ("", "not run", "the log is empty"),
        (f"{prefix()}kv_canary violation: cut\n", "not run", "none of the canary; 1 line about it could not be read"),
        (f"{prefix()}kv_canary violation: cut\n" * 2, "not run", "none of the canary; 2 lines about it could not be read"),
        (f"{stats(100, 0)}\n{prefix('TP1')}Load weight end.\n", "partial", "1 rank without canary lines: TP1"),
        (f"{install(ring=4)}\n{stats(100, 9)}\n", "fail", "the ring of TP0 was full at row 4 of 9"),
        (f"{stats(100, 3)}\n", "fail", "counted 3 violations and lists 0"),
        (f"{prefix()}{Row().message(total=5)}\n", "fail", "counted 5 violations and lists 1"),
        (
            f"{stats(100, 0)}\n{prefix()}kv-canary: per-forward verify skipped this step due to overflow (total=4, capacity=9); check\n",
            "partial",
            "TP0 verified nothing in 4 steps of 100",
        ),
    ],
)
def test_verdict_and_coverage(text: str, verdict: str, reason: str) -> None:
    diagnosis = diagnose(read_text(text))
    assert diagnosis.verdict == verdict
    assert reason in " ".join(diagnosis.coverage.reasons)
    assert bool(diagnosis.coverage.reasons) == bool(reason)


def test_the_sentence_names_three_slots_and_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(slot=slot) for slot in (900, 40, 1061, 77)]
    assert diagnosed(rows[:3]).sentence.startswith("3 violations listed for slots 40, 900 and 1\u202f061 on TP0.")
    assert diagnosed(rows).sentence.startswith("4 violations listed for 4 slots, first at 40 on TP0.")
    monkeypatch.setattr("kvcanary.analysis.diagnosis.MAX_ROWS", 4)
    assert diagnosed([*rows, Row(slot=5)]).sentence.startswith("5 violations listed for at least 4 slots, first at 40 on TP0.")


@pytest.mark.parametrize(
    ("own", "words"),
    [((41,), "(slot 41 only echoes it)"), ((41, 42), "(slots 41 and 42 only echo it)"), ((41, 42, 43, 44), "(4 slots, first at 41, only echo it)")],
)  # fmt: skip
def test_the_sentence_counts_what_echoes(own: tuple[int, ...], words: str) -> None:
    pool = pool_of_two()
    pool.shared_prefix([11, 12, 13], own)
    rows = [row for slot in own for row in pool.verify([11, 12, 34, slot])]
    assert f"for slot 34 {words} on TP0." in diagnosed(rows).sentence


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ((70012,), "The record of slot 70\u202f012 is right and the hashed KV bytes are not."),
        ((13, 70012), "The records of slots 13, 70\u202f012 are right and the hashed KV bytes are not."),
    ],
)
def test_evidence_agrees_in_number_with_its_slots(damaged: tuple[int, ...], words: str) -> None:
    pool = Pool(bad_bytes=set(damaged))
    pool.stamp([11, 70012, 13], [501, 502, 503])
    assert words in diagnosed(pool.verify([11, 70012, 13])).causes[0].evidence


def test_an_empty_text_is_no_word_about_the_canary() -> None:
    assert diagnose(read_text("")).sentence == "Nothing to read: the log is empty."


def test_limits_follow_the_settings() -> None:
    limits = " ".join(diagnose(read_text(f"{install(real='NONE')}\n{stats(100, 0)}\n")).cannot_tell)
    assert "records alone were checked" in limits
    assert "sweeps are off" in limits
    assert "no install line" not in limits
    assert "no install line" in " ".join(diagnose(read_text(f"{stats(100, 0)}\n")).cannot_tell)


def test_every_cause_has_words() -> None:
    assert set(CAUSE_TEXTS) == set(Cause)
    assert all(text.title and text.meaning and text.confirm for text in CAUSE_TEXTS.values())


def test_checks_that_no_line_counts_are_not_none() -> None:
    """A log of violations alone may come from any number of checks."""
    row = Row(slot=4711).message(total=1, step=812)
    coverage = diagnose(read_text(f"{prefix()}{row}\n")).coverage
    assert (coverage.verdict, coverage.protected_tokens, coverage.sweep_passes) == ("fail", None, None)
    coverage = diagnose(read_text(f"{prefix()}{row}\n{stats(900, 1, protected=0)}\n")).coverage
    assert (coverage.verdict, coverage.protected_tokens, coverage.sweep_passes) == ("fail", 0, 0)
