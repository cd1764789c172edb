"""Several sessions on one server at once: every value that is typed is answered, no page shows an error, and each keeps its own.

How fast is a measurement and no test: python tools/measure_sessions.py URL 20 300 PID
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.browser.servers import run_server
from tools.measure_sessions import FIELD, Session, measure

# Raised for a long run: KVCANARY_SESSIONS=20 KVCANARY_SESSION_SECONDS=300.
SESSIONS = int(os.environ.get("KVCANARY_SESSIONS", "3"))
SECONDS = float(os.environ.get("KVCANARY_SESSION_SECONDS", "2"))
# Faster than people, so that a short test types something in each session.
PACE_S = (0.5, 1.0)


def test_many_sessions_type_at_once(tmp_path: Path) -> None:
    with run_server(tmp_path) as url:
        figures = measure(url, SESSIONS, SECONDS, PACE_S)
    assert figures.errors == []
    assert len(figures.first_pages_s) == SESSIONS
    assert len(figures.validations_s) >= SESSIONS
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def test_what_one_session_types_reaches_no_other(tmp_path: Path) -> None:
    with run_server(tmp_path) as url:
        first, second = Session(url), Session(url)
        first.run({})
        [widget] = [key for key in first.inputs if key.endswith(FIELD)]
        first.run({widget: "54321"})
        assert "54\u202f321 slots" in first.html
        second.run({})
        assert "262\u202f144 slots" in second.html
        assert not [*first.exceptions, *second.exceptions]
        first.close()
        second.close()
