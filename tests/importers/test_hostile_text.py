"""Input that nobody should have to read: each gets one sentence or a plain reading, and nothing grows with what it promises to expand to.

Times are measured apart from the suite; what is asserted here is what is said and that no work is done in vain.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.importers import detect
from kvcanary.importers.detect import MAX_BYTES, read_bytes, read_text
from kvcanary.importers.json_documents import MAX_DOCUMENT_CHARS
from kvcanary.importers.shell import MAX_WORDS
from kvcanary.importers.shell_expand import MAX_EXPANDED

LAUNCH = "python -m sglang.launch_server "


def refused(data: bytes | str) -> str:
    with pytest.raises(ImportTextError) as caught:
        _ = read_bytes(data, "f") if isinstance(data, bytes) else read_text(data, "f")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "f is empty; paste a launch command"),
        (b" \n\t \r\n", "f is empty"),
        ("\ufeff", "f is empty"),
        (b"a word\n" * (MAX_BYTES // 7 + 1), "f is longer than 64.00 MiB; give the start of the log"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 50, "f is binary (it holds NUL bytes); give text"),
        (b"tp 2\n" * 2000 + b"\0\0", "f is binary (it holds NUL characters); give text"),
        ("\x01\x02\x03\x04\x05\x06\x07\x08\x0e" * 50, "f is binary (control characters everywhere); give text"),
        ("good morning", "f holds nothing that is known: no launch command"),
        ("[2031-02-03 04:05:06] good morning", "f holds nothing that is known"),
        ('{"internal_states": [{"memory_usage": {"weight": 1.5}, "a": [1, 2', "f begins like JSON but breaks off at line 1; paste it whole"),
        ('{\n"tp_size": 2,\n"model_path": "half', "f begins like JSON but breaks off at line 3; paste it whole"),
        ('{"a": 1,, "b": 2}', "f begins like JSON but is not valid at line 1, column 9"),
        ('{"a": 1}\n{"a": 2}', "f begins like JSON but holds several values"),
        ('{"colour": "red"}', "f begins like JSON but is none of server_info, config.json or our own settings (colour)"),
        ("[1, 2]", "f begins like JSON but is none of"),
        ("[" * 100_000, "f begins like JSON but is nested too deeply"),
        ('{"a":' * 50_000, "f begins like JSON but is nested too deeply"),
        ('{"tp_size": ' + "9" * 5000 + "}", "f begins like JSON but holds a number that is too long"),
        ('{"a": "' + "b" * MAX_DOCUMENT_CHARS + '"}', "f begins like JSON but has more than 8.00 MiB"),
        ("args: " + "[" * 5000, "f holds nothing that is known"),
        ("- " * 5000 + "args: x", "f holds nothing that is known"),
        ("\n".join(" " * depth + "args:" for depth in range(500)), "f holds nothing that is known"),
        ('{"model_type": "x", "num_hidden_layers": 1000000000000, "hidden_size": 8}', "num_hidden_layers must be a whole number in 1..4096"),
    ],
)  # fmt: skip
def test_one_sentence(data: bytes | str, sentence: str) -> None:
    assert sentence in refused(data)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_encodings(encoding: str) -> None:
    text = "# caf\u00e9\n" + LAUNCH + "--tp 2 --page-size 8\n"
    data = text.encode(encoding)
    if encoding == "utf-16-be":
        data = b"\xfe\xff" + data
    assert read_bytes(data).arguments == {"tp_size": 2, "page_size": 8}


def test_one_text_of_two_encodings() -> None:
    data = f"# caf\u00e9\n{LAUNCH}--tp 2 ".encode() + "# caf\u00e9\n".encode("latin-1")
    assert read_bytes(data).arguments == {"tp_size": 2}


def test_a_long_line_is_read_up_to_its_flags() -> None:
    path = "/m/" + "a" * 1_000_000
    assert read_text(f"{LAUNCH}--tp 2 --served-model-name x {path}").arguments == {"tp_size": 2, "served_model_name": "x"}


def test_what_a_shell_would_double_for_ever_stays_as_typed() -> None:
    text = read_text("A=abcdefgh\n" + "A=$A$A\n" * 80 + LAUNCH + "--tp 2 --model-path $A --served-model-name x")
    assert text.arguments["tp_size"] == 2
    assert "$A" in text.unresolved
    lists = read_text("A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 80 + LAUNCH + '--tp 2 "${A[@]}"')
    assert lists.arguments["tp_size"] == 2
    once = read_text("A=" + "b" * 5000 + "\n" + LAUNCH + '--tp 2 "' + "$A" * (MAX_EXPANDED // 5000 + 1) + '"')
    assert once.arguments == {"tp_size": 2}


def test_a_value_that_is_used_often_is_still_put_in() -> None:
    result = read_text("N=2\n" + "B=$N\n" * 500 + LAUNCH + "--tp $B")
    assert result.arguments == {"tp_size": 2}


def test_unknown_flags_without_end_are_listed_up_to_a_limit() -> None:
    words = " ".join(f"--nothing-{number}" for number in range(5000))
    result = read_text(LAUNCH + words + " --tp 2")
    assert result.arguments == {"tp_size": 2}
    assert len(result.unknown) == 200
    assert len(result.findings) <= 201
    spans = read_text("`--tp 2`\nand I used " + " and ".join(f"`--page-size-{number} 4`" for number in range(4000)))
    assert spans.arguments == {"tp_size": 2}
    assert len(spans.findings) <= 1000


def test_many_commands_are_read_up_to_a_limit() -> None:
    result = read_text("".join(f"{LAUNCH}--tp {ranks}\n" for ranks in range(2, 502)))
    assert result.arguments == {"tp_size": 2}
    assert len(result.commands) == 100


def test_words_without_end() -> None:
    result = read_text(LAUNCH + "--tp 2 " * (2 * MAX_WORDS))
    assert result.arguments == {"tp_size": 2}


def test_unclosed_yaml_flows_and_quotes_do_not_swallow_what_follows() -> None:
    text = 'a: [x\nb: "y\n' * 400 + "\n" * 600 + 'services:\n  s:\n    command: ["python3", "-m", "sglang.launch_server", "--tp", "2"]\n'
    assert read_text(text).arguments == {"tp_size": 2}


def test_of_a_long_log_only_telling_lines_are_read_and_the_last_state_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_COMMAND_CHARS", 1 << 12)
    start = "[2031-02-03 04:05:06] max_total_num_tokens=7000, max_running_requests=9, context_len=512\n"
    busy = "".join(
        f"[2031-02-03 04:06:{second % 60:02d}] Decode batch, #running-req: {second % 7}, #token: {second}, token usage: 0.10, #queue-req: 0\n"
        for second in range(9000)
    )
    command = f"$ {LAUNCH}--tp 2 \\\n  --page-size 8\n"
    result = read_text(command + start + busy)
    assert len(busy) > 1 << 19
    assert result.arguments == {"tp_size": 2, "page_size": 8}
    assert result.observed["max_total_num_tokens"] == 7000
    assert result.observed["token"] == 8999


def test_a_state_list_without_end_gives_the_smallest() -> None:
    states = [{"effective_max_running_requests_per_dp": 9 + number % 5} for number in range(3000)]
    result = read_text(json.dumps({"model_path": "m", "internal_states": states}))
    assert result.fields["req_to_token_pool_size"].value == 9


@pytest.mark.parametrize("value", ["{1: {2}}", "(1, [b'x'])", "0x" + "f" * 5000, "[1j]", "[...]"])
def test_a_literal_that_is_no_argument_stays_as_typed(value: str) -> None:
    result = read_text(f"e = sgl.Engine(tp_size=2, model_path={value})\n")
    json.dumps(result.to_dict())
    assert result.arguments["tp_size"] == 2
    assert result.unresolved == (value,)


def test_the_style_of_a_text_is_no_warning_of_ours() -> None:
    code = "from kvcanary.importers.detect import read_text; read_text('e = sgl.Engine(tp_size=2, model_path=1if 1else 2)')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


MODEL = '"architectures": ["WrenForCausalLM"], "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8'
ARGUMENTS = '"model_path": "m", "page_size": 16, "tp_size": 2'


@pytest.mark.parametrize(
    "text",
    [
        f'{{{MODEL}, "time_step_limit": [0.0, Infinity]}}',
        f'{{{ARGUMENTS}, "mem_fraction_static": NaN}}',
        f'{{{ARGUMENTS}, "random_seed": 1e999}}',
        "[2031-02-03 04:05:06] server_args=ServerArgs(model_path='m', tp_size=2, watchdog_timeout=inf)",
        "vllm serve m --tensor-parallel-size 2 --speculative-config '{\"num_speculative_tokens\": 1e999}'",
    ],
)
def test_a_number_that_json_does_not_have_is_written_as_text(text: str) -> None:
    document = json.dumps(read_text(text).to_dict(), allow_nan=False)
    assert '"inf"' in document or '"nan"' in document


@pytest.mark.parametrize("size", ["Infinity", "1e308", "9" * 4295])
def test_a_size_of_a_server_that_is_none_is_a_finding(size: str) -> None:
    result = read_text(f'{{{ARGUMENTS}, "internal_states": [{{"memory_usage": {{"weight": {size}, "graph": 0.5}}}}]}}')
    assert result.fields["graph_bytes"].value == 1 << 29
    assert "weight_bytes" not in result.fields
    assert any(finding.message.startswith("weight_bytes must be a size, got ") for finding in result.findings)


def test_fields_of_a_model_are_held_to_the_rules_of_the_settings() -> None:
    result = read_text(f'{{{MODEL}, "head_dim": {1 << 62}, "num_key_value_heads": 8, "layer_types": ["full_attention", "linear_attention", '
                       '"full_attention", "linear_attention"], "linear_num_key_heads": 8, "linear_num_value_heads": 8, '
                       f'"linear_key_head_dim": {1 << 60}, "linear_value_head_dim": {1 << 60}, "linear_conv_kernel_dim": 4}}')  # fmt: skip
    assert "state_bytes_per_request" not in result.fields
    assert any("state_bytes_per_request must be a size" in finding.message for finding in result.findings)
    message = refused('{"metadata": {"total_size": ' + "9" * 30 + '}, "weight_map": {}}')
    assert message == (
        "model.safetensors.index.json: metadata.total_size must be a whole number in 1..9223372036854775807, got '" + "9" * 30 + "'"
    )


def test_settings_of_which_none_can_be_read_say_why() -> None:
    message = refused('{"schema": "kvcanary.settings", "settings": {"pool_slot_count": Infinity}}')
    assert message == "pool_slot_count must be a count, got 'inf' (float) (f, pool_slot_count)"
