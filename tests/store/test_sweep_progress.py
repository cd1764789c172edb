"""How far a sweep is: counts while it goes on, the wish to stop it, and what is left of a call that was killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcanary.errors import StoreError
from kvcanary.lab.sweep import read_sweep
from kvcanary.store.sweep_progress import all_sweeps, ask_to_stop, put_away, reporting, shown_sweeps

SWEEP = read_sweep("{name: a.b, kind: campaign, grid: {seeds: [1, 2, 3, 4, 5, 6]}}")
ROOT = Path(__file__).parents[2]
CALL = """
import sys
from pathlib import Path
from kvcanary.lab.sweep import read_sweep
from kvcanary.store.sweep_progress import reporting

with reporting(Path(sys.argv[1]), read_sweep("{name: a.b, kind: campaign, grid: {seeds: [1, 2, 3, 4, 5, 6]}}")) as report:
    report.add("done", "pass", found=False)
    print("one", flush=True)
    sys.stdin.readline()
"""


def test_every_outcome_is_counted_once_and_the_end_is_told(tmp_path: Path) -> None:
    assert shown_sweeps(tmp_path) == []
    with reporting(tmp_path, SWEEP) as report:
        for state, verdict, found in (
            ("done", "pass", True), ("done", "fail", False), ("stopped", "not run", False), ("failed", "not run", False),
            ("refused", "not run", False),
        ):  # fmt: skip
            report.add(state, verdict, found=found)
        (now,) = shown_sweeps(tmp_path)
        assert (now.alive, now.stopping, now.ended_s, now.left) == (True, False, None, 1)
        assert now.sentence == (
            "Sweep a.b: 2 of 6 points done (1 by an earlier call), 2 failed, 1 stopped, 1 left. 1 with the verdict fail."
        )
        put_away(tmp_path, now.id)
        assert shown_sweeps(tmp_path) == [now]
        report.add("done", "pass", found=False)
    (over,) = shown_sweeps(tmp_path)
    assert (over.alive, over.left, over.ended_s is None) == (False, 0, False)
    put_away(tmp_path, over.id)
    assert list((tmp_path / "sweeps").iterdir()) == []


def test_the_wish_to_stop_reaches_the_call(tmp_path: Path) -> None:
    with reporting(tmp_path, SWEEP) as report, reporting(tmp_path, SWEEP) as other:
        assert len({sweep.id for sweep in all_sweeps(tmp_path)}) == 2
        first = min(all_sweeps(tmp_path), key=lambda sweep: sweep.started_s)
        ask_to_stop(tmp_path, first.id)
        assert report.stop.wait(20)
        assert {sweep.id: sweep.stopping for sweep in all_sweeps(tmp_path)}[first.id]
        assert not other.stop.is_set()
    for name in (first.id, "../runs", ""):
        with pytest.raises(StoreError, match=r"no sweep '.*' goes on under"):
            ask_to_stop(tmp_path, name)


def test_a_killed_call_is_told_from_one_that_goes_on_and_the_next_takes_its_place(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    (now,) = all_sweeps(tmp_path)
    assert (now.alive, now.done) == (True, 1)
    process.kill()
    process.communicate()
    (killed,) = shown_sweeps(tmp_path)
    assert killed.sentence == ("Sweep a.b: 1 of 6 points done, 5 left. Its call was killed; the same call again runs what is missing.")
    with reporting(tmp_path, SWEEP):
        assert [(sweep.id == now.id, sweep.alive) for sweep in all_sweeps(tmp_path)] == [(False, True)]


def test_what_ended_long_ago_is_out_of_sight_and_what_cannot_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting(tmp_path, SWEEP):
        pass
    for number, text in enumerate(
        ("", "[]", "{}", '{"name": "x", "ended_s": "soon"}', f'{{"name": "x", "started_s": {10**400}}}', "[" * 100_000)
    ):
        (tmp_path / "sweeps" / f"damaged-{number}.json").write_text(text)
    now = time.time()
    assert [sweep.name for sweep in shown_sweeps(tmp_path)] == ["a.b"]
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    assert shown_sweeps(tmp_path) == []


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweeps").write_text("in the way")
    with pytest.raises(StoreError, match=f"data folder {tmp_path} cannot be written"), reporting(tmp_path, SWEEP):
        pass
