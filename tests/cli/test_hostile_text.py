"""Text of others through every command: no control sequence reaches the terminal, and no markup of rich is obeyed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvcanary.cli import app
from tests.analysis.rendering import Row, prefix, stats

CONTROL = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e"
HOSTILE = f"Zq[red]{CONTROL}[/red]"
LOGS = [
    json.dumps({"message": prefix() + Row().line(), "pod": HOSTILE}) + "\n",
    f"{prefix(HOSTILE)}{Row().message()}\n",
    f"{prefix()}{Row(tag=HOSTILE).message()}\n",
    f"{prefix()}{Row().message()}\n{stats(3, 1)}\n".replace("verify_real_kv_hash", HOSTILE),
]


def clean(output: str) -> bool:
    return not any(char in output for char in ("\x1b", "\x07", "\x9b", "\u202e"))


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json", "-"], ["watch", "--for", "0"], ["import"]])
def test_a_hostile_log(tmp_path: Path, log: str, command: list[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(log)
    result = CliRunner().invoke(app, [command[0], str(path), *command[1:]])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert clean(result.output)


@pytest.mark.parametrize("command", ["inspect", "import", "watch"])
def test_a_hostile_file_name(tmp_path: Path, command: str) -> None:
    path = tmp_path / f"{HOSTILE.replace('/', '')}.log"
    arguments = [command, str(path)] + (["--for", "0"] if command == "watch" else [])
    result = CliRunner().invoke(app, arguments)
    assert "Zq[red]" in result.output.replace("\n", "")
    assert clean(result.output)


def test_hostile_settings(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "--model", HOSTILE, "--pool-slot-count", "20000"])
    assert clean(result.output)
    result = CliRunner().invoke(app, ["plan", "--page-size", HOSTILE])
    assert result.exit_code == 2
    assert clean(result.output)
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({HOSTILE: 1}))
    result = CliRunner().invoke(app, ["plan", "--settings", str(settings)])
    assert result.exit_code == 2
    assert clean(result.output)


def test_what_a_real_terminal_gets(tmp_path: Path) -> None:
    """In colour, as rich writes to a terminal: only its own sequences, which end in m, and the hostile text as text."""
    path = tmp_path / "server.log"
    path.write_text(LOGS[0])
    result = subprocess.run(
        [sys.executable, "-m", "kvcanary", "inspect", str(path)],
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "200", "TERM": "xterm-256color"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "\x1b[" in result.stdout
    assert r"[red]\x1b[31m\x1b]0;title\x07\x9b2J\u202e[/red]" in result.stdout
    assert "\x1b]" not in result.stdout
    assert "\u202e" not in result.stdout


def test_a_run_folder_with_a_hostile_name_and_an_imported_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / f"20260131-235959-{HOSTILE.replace('/', '')}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    listed = CliRunner().invoke(app, ["runs", "list", "--home", str(tmp_path)])
    assert "not readable: run 20260131-235959-" in listed.output
    assert clean(listed.output)
    document = tmp_path / "run.json"
    document.write_text(json.dumps({HOSTILE: 1, "schema": "kvcanary.run", "version": 2}))
    taken = CliRunner().invoke(app, ["runs", "import", str(document), "--home", str(tmp_path)])
    assert taken.exit_code == 2
    assert clean(taken.output)
