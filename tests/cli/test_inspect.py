"""`kvcanary inspect`: verdict and exit code, words on the terminal, and the versioned JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvcanary.cli import app
from tests.analysis.rendering import Row, install, prefix, stats

runner = CliRunner()
OVERFLOW = f"{prefix()}kv-canary: per-forward verify skipped this step due to overflow (total=4, capacity=9); check ServerArgs\n"


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.log"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        (f"{install()}\n{stats(100, 0)}\n", 0, "PASS"),
        (f"{prefix()}{Row().message()}\n", 1, "FAIL"),
        (f"{stats(100, 0)}\n{OVERFLOW}", 3, "PARTIAL"),
        ("a log of something else\n", 4, "NOT RUN"),
    ],
)
def test_exit_code_is_the_verdict(tmp_path: Path, text: str, code: int, word: str) -> None:
    result = runner.invoke(app, ["inspect", write(tmp_path, text)])
    assert result.exit_code == code
    assert result.stdout.startswith(word)


def test_bad_input_names_the_file(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(tmp_path / "absent.log")])
    assert result.exit_code == 2
    assert "absent.log cannot be read" in result.stderr.replace("\n", " ")
    result = runner.invoke(app, ["inspect", write(tmp_path, "x\n"), "--json", str(tmp_path / "no" / "out.json")])
    assert result.exit_code == 2
    assert "--json" in result.stderr


def test_human_output_holds_sentence_cause_and_limits(tmp_path: Path) -> None:
    rows = [Row(slot=slot) for slot in (128, 256, 384)]
    text = "".join(f"{prefix('TP[1]')}{row.message(total=3)}\n" for row in rows).replace("TP[1]", "TP1")
    result = runner.invoke(app, ["inspect", write(tmp_path, text)], env={"COLUMNS": "200"})
    for part in (
        "3 violations listed for slots 128, 256 and 384 on TP1",
        "KV bytes changed",
        "128 apart",
        "What this log cannot tell",
        "128, 256, 384",
    ):
        assert part in result.stdout


def test_json_is_versioned_and_exact(tmp_path: Path) -> None:
    row = Row(slot=2**53 + 1, stored_hash=2**64 - 1, aux=2**64 - 1)
    path = write(tmp_path, f"{install()}\n{prefix()}{row.message(total=1, step=7)}\n{stats(100, 1)}\n")
    result = runner.invoke(app, ["inspect", path, "--json", "-"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert (data["schema"], data["version"], data["verdict"], data["violations_listed"]) == ("kvcanary.inspection", 1, "fail", 1)
    [violation] = data["violations"]
    assert violation["slot_idx"] == 2**53 + 1
    assert violation["stored_chain_hash"] == "0xffffffffffffffff"
    assert (violation["rank"], violation["step"], violation["time"]) == ("TP0", 7, "2027-02-03 04:05:06")
    assert data["counts"] == [
        {
            "server": "server.log",
            "source": "",
            "rank": "TP0",
            "launch_tag": "TAIL_K_FULL",
            "reasons": "verify_real_kv_hash",
            "violations": 1,
            "slots": 1,
        }
    ]
    assert data["causes"][0]["cause"] == "kv_bytes_changed"
    assert data["coverage"]["protected_tokens"] == 5000
    assert data["ranks"][0]["install"]["ring_capacity"] == 1024
    target = tmp_path / "out.json"
    runner.invoke(app, ["inspect", path, "--json", str(target)])
    assert json.loads(target.read_text()) == data


@pytest.mark.parametrize(("command", "text"), [("inspect", stats(100, 0)), ("import", "sglang serve --model-path m --page-size 16")])
def test_a_document_that_cannot_be_written_is_bad_input_and_says_what_to_give(tmp_path: Path, command: str, text: str) -> None:
    result = runner.invoke(app, [command, write(tmp_path, f"{text}\n"), "--json", str(tmp_path / "no folder" / "out.json")])
    assert result.exit_code == 2
    assert "out.json cannot be written: No such file or directory; give the path of a file in a folder that exists" in result.stderr
    assert result.stdout == ""


def test_reads_standard_input() -> None:
    result = runner.invoke(app, ["inspect", "-"], input=f"{stats(100, 0)}\n")
    assert result.exit_code == 0


def test_several_files_are_one_result(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(f"{prefix(f'TP{rank}')}{Row(slot=5).message()}\n")
    result = runner.invoke(app, ["inspect", str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log"), "--json", "-"])
    assert json.loads(result.stdout)["violations_listed"] == 2


def test_text_from_a_log_is_no_markup(tmp_path: Path) -> None:
    line = json.dumps({"message": prefix() + Row().line(), "pod": "p[red]"})
    result = runner.invoke(app, ["inspect", write(tmp_path, f"{line}\n")], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert result.stdout.count("p[red] TP0") >= 2


def test_a_kept_inspection_is_a_run_with_its_report_and_without_the_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    result = runner.invoke(app, ["inspect", write(tmp_path, f"{prefix()}{Row().message()}\n"), "--keep", "--home", str(home)])
    assert result.exit_code == 1
    listed = json.loads(runner.invoke(app, ["runs", "list", "--home", str(home), "--json", "-"]).stdout)["runs"]
    assert [(row["kind"], row["verdict"]) for row in listed] == [("inspection", "fail")]
    assert f"kept as run {listed[0]['id']}" in result.stderr
    shown = json.loads(runner.invoke(app, ["runs", "show", "latest", "--home", str(home), "--json", "-"]).stdout)
    assert shown["spec"] == {"source": "server.log"}
    assert shown["result"]["schema"].startswith("kvcanary.")
