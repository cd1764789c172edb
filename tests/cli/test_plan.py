"""kvcanary plan: documents, exit codes, where settings come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvcanary.cli import app
from kvcanary.store.home import open_store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def test_settings_that_start() -> None:
    result = run("--pool-slot-count", "16k", "--max-seq-len-per-req", "4100")
    assert result.exit_code == 0
    assert "Starts" in result.stdout
    assert "3 * pool_slot_count 16\u202f000 = 48\u202f000" in result.stdout


def test_settings_that_do_not_start_say_so_in_the_exit_code() -> None:
    result = run("--pool-slot-count", "0")
    assert result.exit_code == 1
    assert "kv-canary: pool_slot_count must be positive, got 0" in result.stdout
    assert "--max-total-tokens" in result.stdout


def test_the_document_is_versioned_and_alone_on_standard_output() -> None:
    found = document("--from", "laptop", "--mode", "raise")
    assert (found["schema"], found["version"], found["starts"]) == ("kvcanary.plan", 1, True)
    assert found["settings"]["mode"] == "raise"
    assert found["capacities"]["verify_capacity"]["value"] == 3 * 65536
    assert sum(line["bytes"] or 0 for line in found["memory"]["lines"]) == found["memory"]["known_bytes"]


def test_options_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"page_size": 16, "pool_slot_count": "32k"}))
    found = document("--from", "laptop", "--settings", str(file), "--page-size", "32")["settings"]
    assert (found["page_size"], found["pool_slot_count"], found["max_prefill_tokens"]) == (32, 32000, 4096)


def test_a_document_can_be_fed_back(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run("--from", "laptop", "--page-size", "64", "--json", str(file)).exit_code == 0
    assert document("--settings", str(file))["settings"] == json.loads(file.read_text())["settings"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--page-size", "12.5"], "page_size must be a whole number, got '12.5'"),
        (["--mode", "on"], "mode must be one of none/log/raise"),
        (["--from", "nothing"], "preset must be one of"),
        (["--settings", "missing.json"], "--settings missing.json: No such file"),
    ],
)
def test_bad_input_names_field_and_rule(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        '{"page_sice": 1}',
        "[" * 100_000,
        '{"schema": "kvcanary.run", "spec": [1]}',
        '{"schema": "kvcanary.run"}',
        " " * (1 << 21),
    ],
)
def test_a_bad_settings_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    result = run("--settings", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['kvcanary', '--help']\ntry:\n import kvcanary.cli; kvcanary.cli.main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'numba', 'streamlit'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert printed.stdout.strip().endswith("[]")
    assert "plan" in printed.stdout


MODEL = ("--num-layers", "30", "--num-kv-heads", "4", "--head-dim", "112", "--model-dtype", "bfloat16", "--weight-bytes", "18GiB",
         "--mem-fraction-static", "0.84", "--pool-slot-count", "180000", "--max-seq-len-per-req", "20004")  # fmt: skip


def test_the_document_solves_the_plan_backwards() -> None:
    loaded = document(*MODEL, "--accelerator", "NVIDIA A40")
    assert loaded["settings"]["device_memory_bytes"] == 46068 << 20
    solved = loaded["solve"]
    assert solved["largest_pool"]["slots"] > 180_000
    assert 0 < solved["smallest_fraction"]["fraction"] < 0.84
    assert solved["longest_context_in_pool"]["context"] == 180_000 // 256
    assert solved["longest_context_in_memory"]["context"] > 180_000 // 256
    off, on, tokens = solved["canary_cost"]
    assert off["slots_with"] == 180_000 > on["slots_with"] > tokens["slots_with"]
    lines = {line["name"]: line for line in loaded["memory"]["lines"]}
    assert lines["kv_pool"]["source"].startswith("SGLang 0.5.23")
    assert loaded["memory"]["headroom_bytes"] == loaded["memory"]["budget_bytes"] - loaded["memory"]["known_bytes"]


def test_over_budget_comes_with_remedies() -> None:
    loaded = document(*MODEL[:-4], "--pool-slot-count", "900000", "--accelerator", "NVIDIA A40")
    assert loaded["memory"]["verdict"] == "over"
    assert loaded["memory"]["remedies"][0]["flag"].startswith("--max-total-tokens ")
    assert "->" in run(*MODEL[:-4], "--pool-slot-count", "900000", "--accelerator", "NVIDIA A40").stdout


@pytest.mark.parametrize(
    ("slots", "fraction", "code", "verdict", "head"),
    [
        ("180000", "0.84", 0, "pass", "Starts:"),
        ("900000", "0.84", 3, "partial", "Starts with a smaller pool:"),
        ("900000", "0.999", 1, "fail", "Does not fit:"),
    ],
)
def test_exit_code_document_and_kept_run_agree_on_the_memory(
    tmp_path: Path, slots: str, fraction: str, code: int, verdict: str, head: str
) -> None:
    arguments = (*MODEL, "--pool-slot-count", slots, "--mem-fraction-static", fraction, "--accelerator", "NVIDIA A40")
    result = run(*arguments, "--keep", "--home", str(tmp_path))
    assert (result.exit_code, result.stdout.startswith(head)) == (code, True), result.output
    assert document(*arguments)["verdict"] == verdict
    [row] = open_store({}, tmp_path).list()
    assert (row.verdict, row.sentence.split(",")[0]) == (verdict, head.removesuffix(":"))


def test_a_log_beside_the_plan(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-10-02 06:10:42] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 180000, K size: 4.51 GB, V size: 4.51 GB\n"
        "[2026-10-02 06:10:55] max_total_num_tokens=180000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=40, "
        "context_len=20000, available_gpu_mem=9.00 GB\n"
    )
    rows = {row["name"]: row for row in document(*MODEL, "--log", str(log))["log"]["rows"]}
    assert rows["target_k_bytes_per_token"]["status"] == "agrees"
    assert rows["target_k_bytes_per_token"]["plan"] == 30 * 4 * 112 * 2
    assert rows["max_running_requests"]["status"] == "unexplained"
    assert "Log beside the plan: 5 of 7 values agree" in run(*MODEL, "--log", str(log)).stdout


FAILED = (
    "[2026-10-02 06:10:40] server_args=ServerArgs(model_path='/m/w', mem_fraction_static=0.9)\n"
    "[2026-10-02 06:10:41 TP0] Load weight end. type=W, avail mem=30.00 GB, mem usage=10.00 GB.\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB is free.\n"
)
SERVED = (
    "[2026-10-02 06:20:40] server_args=ServerArgs(model_path='/m/w', mem_fraction_static=0.8)\n"
    "[2026-10-02 06:20:41 TP0] Load weight end. type=W, avail mem=30.00 GB, mem usage=10.00 GB.\n"
    "[2026-10-02 06:20:55] max_total_num_tokens=180000, context_len=20000\n"
)


@pytest.mark.parametrize(("slots", "code"), [("16k", 0), ("0", 1)])
def test_an_error_of_the_log_is_told_and_does_not_judge_the_settings(tmp_path: Path, slots: str, code: int) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED)
    result = run("--pool-slot-count", slots, "--log", str(log))
    assert result.exit_code == code
    assert "The log holds an error, explained below: CUDA out of memory. Tried to allocate 2.00 GiB." in result.stdout
    assert "change --mem-fraction-static 0.87 (set --mem-fraction-static to 0.87 or less" in result.stdout
    [error] = document("--pool-slot-count", slots, "--log", str(log))["log_errors"]
    assert (error["label"], error["fixes"][0]["amounts"]["value_fraction"]) == ("oom", 0.87)


def test_what_a_log_without_an_error_leaves_to_say(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED + SERVED)
    printed = run("--log", str(log)).stdout
    assert "The log holds an error" not in printed
    assert "warning an earlier start in the text failed. It said: CUDA out of memory." in printed
    assert document("--log", str(log))["log_errors"] == []
    assert document()["log_errors"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--accelerator", "Abacus 1"), "--accelerator must be one of"),
        (("--accelerator", "T4", "--devices", "/nowhere.json"), "--devices /nowhere.json: No such file"),
        (("--log", "/nowhere.log"), "--log /nowhere.log: No such file"),
        (("--settings", "/dev/zero"), "--settings /dev/zero: larger than 1.00 MiB, so it is not a settings file"),
        (("--accelerator", "T4", "--devices", "/dev/zero"), "--devices /dev/zero: larger than 1.00 MiB, so it is not a device list"),
        (("--accelerator", "T4", "--devices", sys.executable), "so it is not a device list"),
    ],
)
def test_what_cannot_be_read_is_named(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_kept_plan_is_a_run(tmp_path: Path) -> None:
    result = run("--pool-slot-count", "16k", "--keep", "--home", str(tmp_path), "--json", "-")
    assert result.exit_code == 0, result.output
    listed = json.loads(CliRunner().invoke(app, ["runs", "list", "--home", str(tmp_path), "--json", "-"]).stdout)["runs"]
    assert [(row["kind"], row["verdict"]) for row in listed] == [("plan", "pass")]
    assert f"kept as run {listed[0]['id']}" in result.stderr
    stored = json.loads((tmp_path / "runs" / listed[0]["id"] / "result.json").read_text())
    assert stored == json.loads(result.stdout)
