"""Reading beside the page: progress, stop with what was read, errors that come back, and a follower that rests after a long answer."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from kvcanary.analysis import log_stream
from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.log_stream import Progress, Stop, read_streams
from kvcanary.errors import ImportTextError
from kvcanary.ui.inspect_reading import Following, Reading
from tests.analysis.rendering import Row, prefix

TEXT = "".join(f"{prefix()}{Row(slot=slot).message(step=slot)}\n" for slot in range(1, 60))


def test_stop_keeps_what_was_read_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream._read_all, "__defaults__", (2000,))
    halfway = threading.Event()
    reading: Reading | None = None

    def work(progress: Progress, stop: Stop) -> Inspected:
        def told(done: int, total: int) -> None:
            progress(done, total)
            if done > total / 2:
                halfway.set()
                assert go_on.wait(20)

        return Inspected(read_streams([("a.log", io.BytesIO(TEXT.encode()))], progress=told, stop=stop))

    go_on = threading.Event()
    reading = Reading("a.log", work)
    assert halfway.wait(20)
    assert not reading.finished
    assert 0.5 < reading.share < 1
    reading.stop()
    go_on.set()
    log = reading.result().log
    assert not log.complete
    assert 20 < len(log.violations) < 59
    assert log.notes == ("reading was stopped in a.log",)


def test_an_error_of_the_reading_comes_back() -> None:
    def work(_progress: Progress, _stop: Stop) -> Inspected:
        raise ImportTextError("no log")

    reading = Reading("x", work)
    reading.wait(20)
    assert reading.finished
    with pytest.raises(ImportTextError, match="no log"):
        reading.result()


def test_following_answers_when_something_came_and_rests_after_a_long_answer(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(TEXT)
    following = Following(label="server.log", name="0/server.log", follower=LogFollower([path]), sources={})
    first = following.poll()
    assert first is not None
    assert first.cross.count == 59
    assert following.poll() is None
    assert (following.behind_bytes, following.size_bytes) == (0, len(TEXT))
    with path.open("a") as stream:
        stream.write(f"{prefix()}{Row(slot=99).message(step=400)}\n")
    following._cost_s = 1000.0  # As if the answer had taken that long.
    assert following.poll() is None
    assert "60 violations in 420 lines, last step 400" in following.words()
    following._cost_s = 0.0
    again = following.poll()
    assert again is not None
    assert again.cross.count == 60
    path.rename(tmp_path / "server.log.1")
    path.write_text(f"{prefix()}{Row(slot=100).message(step=401)}\n")
    following._cost_s = 0.0
    rotated = following.poll()
    assert rotated is not None
    assert rotated.cross.count == 61
    following.follower.close()


def test_a_file_that_may_not_be_opened_is_waited_for() -> None:
    def refuse(_path: Path) -> io.FileIO:
        raise PermissionError("outside")

    follower = LogFollower([Path("x.log")], open_file=refuse)
    assert follower.poll() == 0
    assert follower.missing == [Path("x.log")]
