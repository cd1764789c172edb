"""kvcanary import: files, standard input, several of them, the document, exit codes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvcanary.cli import app
from kvcanary.importers.server_info import HOSTS_VARIABLE
from tests.importers.samples import EMPTY_POOL, HF_CONFIG, OUT_OF_MEMORY, SERVER_INFO, SGLANG_LOG, SHELL


def run(*arguments: str, stdin: str | bytes | None = None, **env: str) -> Result:
    return CliRunner().invoke(app, ["import", *arguments], input=stdin, env=env or None)


def document(*arguments: str, stdin: str | bytes | None = None) -> dict[str, Any]:
    result = run(*arguments, "--json", "-", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def test_the_document_of_a_command_on_standard_input() -> None:
    found = document("-", stdin=SHELL)
    assert set(found) >= {"kind", "engine", "arguments", "observed", "fields", "findings", "unknown", "unresolved"}
    assert (found["schema"], found["version"], found["kind"], found["engine"]) == ("kvcanary.import", 1, "command", "sglang")
    assert found["arguments"] == {
        "model_path": "org/wren-9b", "tp_size": 2, "page_size": 16, "max_running_requests": {"unresolved": "${R:-40}"}, "kv_canary": "log",
        "cuda_graph_bs_decode": [1, 2, 4, 8], "json_model_override_args": {"head_dim": 96},
    }  # fmt: skip
    assert found["env"] == {"SGLANG_KV_CANARY_RING_CAPACITY": "2048"}
    assert (found["unknown"], found["unresolved"]) == (["--no-such"], ["${R:-40}", "$MORE"])
    assert found["fields"]["page_size"] == {"value": 16, "source": "--page-size, line 3"}
    assert found["fields"]["ring_capacity"]["value"] == 2048
    assert found["fields"]["cuda_graph_max_bs"]["derived"] == "largest of 4 listed batches"
    assert "req_to_token_pool_size" not in found["fields"]
    assert found["observed"] == {}


def test_the_document_of_a_log(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(SGLANG_LOG)
    found = document(str(file))
    assert (found["kind"], found["arguments"], found["name"]) == ("log", {}, str(file))
    assert found["observed"]["max_total_num_tokens"] == 250_000
    assert found["fields"]["pool_slot_count"] == {"value": 250_000, "source": "install line, line 7", "derived": "verify capacity / 3"}


def test_several_files_are_put_together(tmp_path: Path) -> None:
    names = []
    for name, text in (("run.sh", SHELL), ("info.json", SERVER_INFO), ("config.json", HF_CONFIG)):
        (tmp_path / name).write_text(text)
        names.append(str(tmp_path / name))
    found = document(*names)
    assert (found["kind"], found["parts"]) == ("mixed", ["command", "server_info", "hf_config"])
    assert found["fields"]["pool_slot_count"]["value"] == 250_000
    assert found["fields"]["num_kv_heads"]["value"] == 4
    assert found["arguments"]["tp_size"] == 2
    assert list(document("-", names[2], stdin=EMPTY_POOL)["parts"]) == ["error", "hf_config"]


def test_what_is_printed() -> None:
    printed = run("-", stdin=SHELL).stdout
    assert "stdin: launch command (sglang), " in printed
    for word in ("page_size", "--page-size, line 3", "--no-such", "$MORE", "${R:-40}"):
        assert word in printed


def test_commands_behind_the_first_are_printed_and_no_name_is_cut() -> None:
    second = "SGLANG_KV_CANARY_RING_CAPACITY=64 sglang serve --model-path o/heron --tp 4 --max-running-requests ${R:-9} --api-key hidden"
    printed = run("-", stdin=f"python -m sglang.launch_server --model-path o/wren --speculative-num-draft-tokens 4\n{second}\n").stdout
    assert (
        "also line 2, sglang: SGLANG_KV_CANARY_RING_CAPACITY=64, model_path=o/heron, tp_size=4, max_running_requests=${R:-9}\n" in printed
    )
    assert "--speculative-num-draft-tokens, line 1" in printed
    assert "hidden" not in printed
    commands = document("-", stdin=f"\n{second}")["commands"]
    assert [(command["line"], command["arguments"]["tp_size"]) for command in commands] == [(2, 4)]


def test_an_error_is_printed_with_causes_and_what_to_change() -> None:
    printed = run("-", stdin=EMPTY_POOL).stdout
    assert "kv-canary: pool_slot_count must be positive, got 0" in printed
    assert "1. The weights take the whole static share" in printed
    assert "change raise --mem-fraction-static: weight_bytes would tell to what (the log line 'Load weight end" in printed
    assert "change --cuda-graph-max-bs-decode 16" in run("-", stdin=OUT_OF_MEMORY).stdout
    assert "None" not in printed


def test_what_to_change_has_the_value_that_the_page_shows() -> None:
    log = SGLANG_LOG.replace("page_size=16", "page_size=16, mem_fraction_static=0.85").partition("[2031-02-03 04:05:26]")[0] + OUT_OF_MEMORY
    # (0.5 - 210 / 1024) GiB of 39.5 GiB.
    assert "change --mem-fraction-static 0.84 (set --mem-fraction-static to 0.84 or less: 0.007 of the memory" in run("-", stdin=log).stdout
    assert (
        "change lower --max-running-requests (the text does not say to what)"
        in run("-", stdin="Decode out of memory. Try to lower your batch size.").stdout
    )


def test_json_to_a_file_and_the_table_on_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = run("-", "--json", str(file), stdin=SHELL)
    assert result.exit_code == 0
    assert "page_size" in result.stdout
    assert json.loads(file.read_text()) == document("-", stdin=SHELL)


def test_a_document_can_be_fed_to_plan_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert run("-", "--json", str(file), stdin=SGLANG_LOG).exit_code == 0
    again = document(str(file))
    assert again["kind"] == "settings"
    assert {name: entry["value"] for name, entry in again["fields"].items()} == {
        name: entry["value"] for name, entry in json.loads(file.read_text())["fields"].items()
    }


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "stdin is empty"),
        (b"good morning", "stdin holds nothing that is known"),
        (b"\x7fELF\0\0\0", "stdin is binary"),
        (b'{"internal_states": [1, 2', "stdin begins like JSON but breaks off"),
        (b"[" * 200_000, "stdin begins like JSON but is nested too deeply"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(data: bytes, sentence: str) -> None:
    result = run("-", "--json", "-", stdin=data)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {sentence}")
    assert result.stderr.count("\n") == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = run(str(tmp_path / "missing.log"))
    assert (missing.exit_code, "No such file or directory" in missing.stderr) == (2, True)
    folder = run(str(tmp_path))
    assert (folder.exit_code, "Is a directory" in folder.stderr) == (2, True)
    assert run().exit_code == 2
    good = tmp_path / "good.sh"
    good.write_text(SHELL)
    assert run(str(good), str(tmp_path / "missing.log")).exit_code == 2


def test_control_characters_of_a_paste_do_not_reach_the_terminal() -> None:
    result = run("-", stdin="python -m sglang.launch_server --tp 2 --model-path 'a\x1b[31mb' --no-such[bold]\x07x 1")
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout
    assert "--no-such[bold]\\x07x" in result.stdout


def test_secrets_are_not_printed() -> None:
    result = run("-", stdin="HF_TOKEN=topsecret-1 python -m sglang.launch_server --tp 2 --api-key topsecret-2")
    assert result.exit_code == 0
    assert "topsecret" not in result.stdout


def test_fetching_is_off_unless_a_host_is_listed() -> None:
    result = run("http://127.0.0.1:9/server_info", **{HOSTS_VARIABLE: ""})
    assert result.exit_code == 2
    assert f"fetching is off; set {HOSTS_VARIABLE}" in result.stderr


def test_a_running_server_is_read_by_its_url() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SERVER_INFO.encode())

        def log_message(self, *_arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        result = run(f"http://{place}", "--json", "-", **{HOSTS_VARIABLE: place})
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["fields"]["pool_slot_count"]["value"] == 250_000


def test_a_flag_that_no_engine_has_is_told_once() -> None:
    printed = run("-", stdin="python -m sglang.launch_server --tp-siez 4\n").stdout
    assert printed.count("--tp-siez") == 1
    assert "Probably meant: --tp-size" in printed
    assert "unknown no-such-one" in run("-", stdin="model-path: o/wren\ntp-size: 4\nno-such-one: 3\n").stdout


def test_the_command_line_of_a_process_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cmdline"
    file.write_bytes(b"python3\0-m\0sglang.launch_server\0--model-path\0o/a wren\0--tp\0002\0")
    assert document(str(file))["arguments"] == {"model_path": "o/a wren", "tp_size": 2}
    file.write_bytes(b"\x7fELF\0\1\2sglang.launch_server\0--tp\0002\0")
    assert "is binary" in run(str(file)).stderr
