"""Health, metrics, errors and the end of the server: what its operator and their monitoring rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response

from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec, RunState
from kvcanary.store.database import DATABASE_NAME
from kvcanary.ui import access, server
from tests.browser.servers import ROOT, free_port, run_server

SMALL = {"pool_slot_count": 5000, "req_to_token_pool_size": 8, "cuda_graph_max_bs": 8, "max_seq_len_per_req": 512}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    server._store.cache_clear()
    access.login.cache_clear()
    yield tmp_path
    server._store.cache_clear()
    access.login.cache_clear()


def ask(path: str, token: str = "") -> Response:
    """The answer of one of the routes."""
    [route] = [route for route in server.routes() if route.path == path]
    headers = [(b"authorization", token.encode())] if token else []
    answer: Response = route.endpoint(Request({"type": "http", "method": "GET", "path": path, "headers": headers}))
    return answer


def text_of(path: str) -> str:
    return bytes(ask(path).body).decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_healthy_server_says_so(home: Path) -> None:
    answer = ask("/healthz")
    assert (answer.status_code, json.loads(answer.body)) == (200, {"status": "ok", "sessions": 0, "problems": []})


def test_a_store_that_cannot_be_opened_is_unhealthy_and_counted_and_comes_back(home: Path) -> None:
    before = samples(text_of("/metrics"))["kvcanary_store_errors_total", ()]
    server._store.cache_clear()
    for path in home.glob(f"{DATABASE_NAME}*"):
        path.unlink()
    database = home / DATABASE_NAME
    database.write_bytes(b"this is no database" * 100)
    answer = ask("/healthz")
    assert answer.status_code == 503
    assert json.loads(answer.body)["status"] == "failing"
    assert str(home) in json.loads(answer.body)["problems"][0]
    after = samples(text_of("/metrics"))
    assert after["kvcanary_store_errors_total", ()] >= before + 1
    assert not [name for name, _ in after if name == "kvcanary_jobs"]
    for path in home.glob(f"{DATABASE_NAME}*"):
        path.unlink()
    assert ask("/healthz").status_code == 200


def test_metrics_count_jobs_by_state_and_their_seconds(home: Path) -> None:
    manager = JobManager(home)
    try:
        run_id = manager.start(BenchmarkSpec(settings=SMALL))
        record = manager.wait(run_id, 120)
    finally:
        manager.close()
    assert record.state is RunState.DONE
    found = samples(text_of("/metrics"))
    assert found["kvcanary_jobs", (("kind", "benchmark"), ("state", "done"))] == 1
    assert found["kvcanary_job_duration_seconds_count", (("kind", "benchmark"),)] == 1
    assert record.started_s is not None
    assert record.finished_s is not None
    taken = found["kvcanary_job_duration_seconds_sum", (("kind", "benchmark"),)]
    assert taken == pytest.approx(record.finished_s - record.started_s)
    assert found["kvcanary_damaged_runs", ()] == 0


def test_metrics_can_ask_for_a_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCANARY_METRICS_TOKEN", "a token")
    assert ask("/metrics").status_code == 401
    assert ask("/metrics", "Bearer a toke").status_code == 401
    assert ask("/metrics", "Bearer a token").status_code == 200
    assert ask("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("address", "details", "handled"),
    [("127.0.0.1", "none", True), ("0.0.0.0", "none", True), ("127.0.0.1", "full", False), ("0.0.0.0", "full", True)],
)
def test_an_unexpected_error_shows_a_reference_and_its_traceback_to_the_log_alone(
    address: str, details: str, handled: bool, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[str] = []
    options = {"server.address": address, "client.showErrorDetails": details}
    monkeypatch.setattr(server.st, "error", lambda text, **_: shown.append(text))
    monkeypatch.setattr(server.st, "get_option", options.__getitem__)
    assert server.on_error(ValueError("a secret detail")) is handled, "alone on this machine who asks for the traceback sees it"
    [text] = shown
    reference = text.rstrip(".").rsplit(" ", 1)[1]
    assert len(reference) == 8
    assert "secret detail" not in text
    assert f"reference {reference}" in caplog.text
    assert "a secret detail" in caplog.text


def test_nobody_sees_a_traceback_without_asking() -> None:
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert settings["client"]["showErrorDetails"] == "none"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_running_server_answers_beside_its_pages_and_is_told_of_others(tmp_path: Path) -> None:
    with run_server(tmp_path, flags=("--server.address=0.0.0.0",)) as url:
        status, text = get(f"{url}/healthz")
        assert (status, json.loads(text)["status"]) == (200, "ok")
        assert "kvcanary_sessions 0.0" in get(f"{url}/metrics")[1]
        assert "<title>" in get(url)[1]
        for link, page in (("plan", "/"), ("plan?page_size=16&model=%C3%A9", "/?page_size=16&model=%C3%A9")):
            with urllib.request.urlopen(f"{url}/{link}", timeout=10) as answer:
                assert (answer.status, answer.url) == (200, url + page)
    log = (tmp_path / "server.log").read_text()
    assert "listens on 0.0.0.0 without a login" in log
    assert "Traceback" not in log


def test_alone_on_this_machine_there_is_nothing_to_warn_of(tmp_path: Path) -> None:
    with run_server(tmp_path):
        pass
    assert "without a login" not in (tmp_path / "server.log").read_text()


def test_a_wrong_login_setting_ends_the_server_in_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "KVCANARY_HOME": str(tmp_path), "KVCANARY_OIDC_ISSUER": "https://login.example.org"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={free_port()}", "--server.headless=true"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert "kvcanary: KVCANARY_OIDC_CLIENT_ID must be set when KVCANARY_OIDC_ISSUER is" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_that_is_taken_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
        environment = {**os.environ, "KVCANARY_HOME": str(tmp_path)}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"Port {port} is not available" in result.stderr
    assert "Traceback" not in result.stderr


def test_sigterm_during_a_job_ends_the_server_soon_and_the_job_is_found_again(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "KVCANARY_HOME": str(tmp_path)}, stdout=log, stderr=subprocess.STDOUT
        )  # fmt: skip
        manager = JobManager(tmp_path)
        try:
            run_id = manager.start(BenchmarkSpec(settings=SMALL, preset="long"))
            end = time.monotonic() + 60
            while time.monotonic() < end and not (manager.status(run_id).progress and _answers(port)):
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
            assert manager.status(run_id).record.state is RunState.RUNNING
            manager.stop(run_id)
            record = manager.wait(run_id, 60)
        finally:
            process.kill()
            manager.close()
    assert record.state is RunState.STOPPED
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def _answers(port: int) -> bool:
    try:
        return get(f"http://127.0.0.1:{port}/healthz")[0] == 200
    except OSError:
        return False
