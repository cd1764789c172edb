"""Evidence beside the cause: strides, bursts, other errors by their time, the window's translation, and two runners under one rank."""

from __future__ import annotations

from kvcanary.analysis.diagnosis import Diagnosis, diagnose
from kvcanary.analysis.log_stream import read_text
from tests.analysis.pools import Pool
from tests.analysis.rendering import Row, install, prefix, stats

ARGS = f"{prefix()}server_args=ServerArgs(model_path='m', page_size=32, tp_size=1)\n"


def diagnosed(text: str) -> Diagnosis:
    return diagnose(read_text(text))


def message(row: Row, *, step: int = 300, time: str = "2027-02-03 04:05:06", total: int = 1) -> str:
    return f"{prefix('TP0', time)}{row.message(step=step, total=total)}\n"


def evidence(text: str) -> str:
    return " ".join(diagnosed(text).causes[0].evidence)


def test_stride_of_a_page_is_named_when_the_page_is_known() -> None:
    rows = "".join(message(Row(slot=5 + 64 * number), total=4) for number in range(4))
    assert "64 apart, a power of two: index arithmetic" in evidence(rows)
    assert "64 apart, 2 pages of 32: one slot of each page" in evidence(ARGS + rows)


def test_incidents_at_one_batch_size_and_at_a_period() -> None:
    def burst(number: int, requests: int) -> str:
        batch = f"{prefix()}Decode batch, #running-req: {requests}, #token: 9\n"
        return batch + message(Row(slot=1000 * number), step=100 + 40 * number, total=number)

    same = evidence("".join(burst(number, 24) for number in range(1, 5)))
    assert "4 incidents have these marks." in same
    assert "All of them came with 24 running requests" in same
    assert "a multiple of 40 steps apart" in same
    assert "came with" not in evidence("".join(burst(number, 20 + number) for number in range(1, 5)))


def test_errors_near_in_time_are_notes_and_others_are_not() -> None:
    near = f"{prefix('TP0', '2027-02-03 04:05:16')}RuntimeError: device-side assert\n"
    far = f"{prefix('TP0', '2027-02-03 05:05:16')}ValueError: bad request\n"
    notes = " ".join(diagnosed(message(Row()) + near + far).notes)
    assert "Another error 10 s after the first violation: RuntimeError: device-side assert" in notes
    assert "bad request" not in notes


def test_window_translation_is_told_in_words() -> None:
    line = (
        'kv_canary_swa_divergence={"forward_ct":80,"verify_full":9,"verify_swa":5,"swa_full_idx_divergence":17,'
        '"swa_out_of_window_tokens":4096}\n'
    )
    note = "Window translation at forward 80: 17 live positions have another number"
    assert any(text.startswith(note) for text in diagnosed(prefix() + line + message(Row())).notes)
    old = "kv_canary swa_divergence: forward_ct=60 verify_full=7000 verify_swa=512 mapping_nonidentity=3 swa_pool_wrap=1\n"
    assert any("forward 60: 3 live positions" in text for text in diagnosed(prefix() + old).notes)


def test_unrelated_hashes_are_told_from_a_flipped_bit() -> None:
    pool = Pool()
    pool.stamp([11, 12, 13, 14], [501, 502, 503, 504])
    pool.stamp([31, 32, 33], [701, 702, 703])
    text = "".join(message(row, total=8) for row in pool.verify([11, 12, 33, 14]))
    assert "of 64 bits, as unrelated hashes do" in evidence(text)


def test_counters_of_target_and_draft_runner_add_up() -> None:
    pair = f"{install()}\n{install()}\n"
    lines = [stats(100, 3, protected=50), stats(100, 1, protected=20), stats(200, 4, protected=90), stats(200, 1, protected=45)]
    log = read_text(pair + "\n".join(lines) + "\n")
    [report] = log.streams
    assert (report.runners, report.counter, report.protected_tokens) == (2, 5, 135)
    [alone] = read_text(f"{install()}\n" + "\n".join(lines) + "\n").streams
    assert (alone.counter, alone.protected_tokens) == (4, 90)
