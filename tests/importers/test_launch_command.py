"""Launch commands in every form that operators paste, each with the reading that a careful person would give."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.config.settings import Settings
from kvcanary.importers.detect import read_text
from kvcanary.importers.result import ImportResult, Unresolved


def arguments(text: str) -> dict[str, Any]:
    return dict(read_text(text).arguments)


def messages(result: ImportResult) -> list[str]:
    return [finding.message for finding in result.findings]


SHELL = {
    "bare": ("python3 -m sglang.launch_server --model-path /m/wren-3b --port 40001", {"model_path": "/m/wren-3b", "port": 40001}),
    "serve": (
        "sglang serve wren/Wren-3B --tp 2 --chunked-prefill-size 0",
        {"model_path": "wren/Wren-3B", "tp_size": 2, "chunked_prefill_size": 0},
    ),
    "equals": (
        "python -m sglang.launch_server --model=wren/w --tp=4 --chunked-prefill-size=-1 --enable-mixed-chunk",
        {"model_path": "wren/w", "tp_size": 4, "chunked_prefill_size": -1, "enable_mixed_chunk": True},
    ),
    "abbreviations": (
        "python -m sglang.launch_server --mem-frac 0.7 --max-total 4096 --speculative-num-d 4 --speculative-num-st 2 --disable-rad",
        {
            "mem_fraction_static": 0.7,
            "max_total_tokens": 4096,
            "speculative_num_draft_tokens": 4,
            "speculative_num_steps": 2,
            "disable_radix_cache": True,
        },
    ),
    "continuations": (
        "python -m sglang.launch_server \\\n--tensor-parallel-size 2   --data-parallel-size\\\n  3 \\\n\t--mem-fraction-static  .5 \\\n",
        {"tp_size": 2, "dp_size": 3, "mem_fraction_static": 0.5},
    ),
    "carriage returns": ("python -m sglang.launch_server \\\r\n  --tp 2 \\\r\n  --device cuda\r\n", {"tp_size": 2, "device": "cuda"}),
    "quotes": (
        """python -m sglang.launch_server --model-path "/m/a b --tp 9" --served-model-name 'x (y)' --download-dir ./a\\ b --tp 1""",
        {"model_path": "/m/a b --tp 9", "served_model_name": "x (y)", "download_dir": "./a b", "tp_size": 1},
    ),
    "json": (
        """python -m sglang.launch_server --cuda-graph-config '{"decode": {"max_bs": 12}, "prefill": {"max_bs": 512}}' """
        '--json-model-override-args "{\\"head_dim\\": 96}" --page-size 8',
        {
            "cuda_graph_config": {"decode": {"max_bs": 12}, "prefill": {"max_bs": 512}},
            "json_model_override_args": {"head_dim": 96},
            "page_size": 8,
        },
    ),
    "list over lines": (
        "python -m sglang.launch_server --cuda-graph-bs-decode 1 2 4 \\\n  7 --max-running-requests 9",
        {"cuda_graph_bs_decode": [1, 2, 4, 7], "max_running_requests": 9},
    ),
    "numbers": (
        "python -m sglang.launch_server --context-length 12Ki --max-total-tokens 2_048 --max-prefill-tokens 2.5k --mem-fraction-static 7e-1",
        {"context_length": 12288, "max_total_tokens": 2048, "max_prefill_tokens": 2500, "mem_fraction_static": 0.7},
    ),
    "wrappers and redirections": (
        "taskset -c 0-7 timeout 60 /v/bin/python3.12 -u -m sglang.launch_server --tp 2 > a.log 2>&1 &\nPID=$!",
        {"tp_size": 2},
    ),
    "prompt, docker and its own flags": (
        "me@box:~$ docker run --rm -p 1:2 --memory 9g --name page-size-7 -e A=b org/sglang:v1 python3 -m sglang.launch_server --tp 2",
        {"tp_size": 2},
    ),
    "image with its own entry point": ("docker run --gpus all org/sglang:v1 --model-path /m --tp 2", {"model_path": "/m", "tp_size": 2}),
    "variables": (
        "N=2\nexport G=4\nM=a/b\npython -m sglang.launch_server --model-path $M --tp $((N * G)) --chunked-prefill-size $(( ${N} * 1024 ))",
        {"model_path": "a/b", "tp_size": 8, "chunked_prefill_size": 2048},
    ),
    "array": (
        'A=(--tp 2 --kv-canary log)\nA+=("--page-size" 16)\npython -m sglang.launch_server --model m "${A[@]}"',
        {"model_path": "m", "tp_size": 2, "kv_canary": "log", "page_size": 16},
    ),
    "nested shells that never close": (
        """RUN: ssh n "/bin/sh -c 'cd /x && tmux send-keys '\\''A=1 /p/python3 -m sglang.launch_server --tp 3 --page-size 4 --dist-init-addr """,
        {"tp_size": 3, "page_size": 4},
    ),
    "echo above": ('echo "--tp-size 99"\npython -m sglang.launch_server --tp 2', {"tp_size": 2}),
    "apostrophe in the sentence above": (
        "It doesn't start:\npython -m sglang.launch_server --tp 2 --model 'm'",
        {"tp_size": 2, "model_path": "m"},
    ),
    "router left out": (
        "python -m sglang.launch_server --tp 2\npython -m sglang_router.launch_router --port 9 --prefill http://x",
        {"tp_size": 2},
    ),
    "typography": (
        "python3 –m sglang.launch_server —model-path “w/w” ––tp-size 2 —chunked-prefill-size –1",
        {"model_path": "w/w", "tp_size": 2, "chunked_prefill_size": -1},
    ),
    "power shell": ("python -m sglang.launch_server `\n  --tp 2 `\n  --page-size 4", {"tp_size": 2, "page_size": 4}),
    "lost backslash": ("python -m sglang.launch_server --tp 2\n--page-size 4", {"tp_size": 2, "page_size": 4}),
    "root prompt": ("# python -m sglang.launch_server --tp 2 \\\n  --page-size 4", {"tp_size": 2, "page_size": 4}),
    "process list": ("root 7 0.0 ? Sl 0:10 /usr/bin/python3 -m sglang.launch_server --tp 2", {"tp_size": 2}),
    "unit file": ("[Service]\nExecStart=/usr/bin/python3 -m sglang.launch_server --tp 2\nRestart=always", {"tp_size": 2}),
    "image file": (
        'FROM x\nENTRYPOINT ["python3", "-m", "sglang.launch_server"]\nCMD ["--tp", "2", "--page-size", "4"]',
        {"tp_size": 2, "page_size": 4},
    ),
    "placeholder": ("--tp-size=2 \\\n ... \\\n --page-size 4", {"tp_size": 2, "page_size": 4}),
    "stray quote": ('python -m sglang.launch_server --tp 2 --max-total-tokens 4096"', {"tp_size": 2, "max_total_tokens": 4096}),
    "link": (
        "python -m sglang.launch_server --dist-init-addr=[1.2.3.4:5](http://1.2.3.4:5/) --tp 2",
        {"dist_init_addr": "1.2.3.4:5", "tp_size": 2},
    ),
    "last one counts": ("python -m sglang.launch_server --page-size 1 --page-size 64", {"page_size": 64}),
}


@pytest.mark.parametrize("name", SHELL)
def test_shell_forms(name: str) -> None:
    text, expected = SHELL[name]
    assert arguments(text) == expected


YAML = {
    "folded compose command": (
        "services:\n  s:\n    image: o/sglang:1\n    deploy: {replicas: 9}\n    command: >-\n      python3 -m sglang.launch_server\n      --tp 2\n"
        "      --kv-canary log\n    healthcheck:\n      test: [CMD, curl, --max-time, '5']\n",
        {"tp_size": 2, "kv_canary": "log"},
    ),
    "compose list and entry point": (
        "services:\n  s:\n    image: o/sglang:1\n    entrypoint: python3 -m sglang.launch_server\n    command: --model-path m\n      --tp 2\n",
        {"model_path": "m", "tp_size": 2},
    ),
    "pod args": (
        '  containers:\n    - name: e\n      command: ["python3", "-m", "sglang.launch_server"]\n      args:\n        - --model-path\n        - /m\n'
        '        - "--tp"\n        - "8"\n        - --dp=2\n        - --enable-dp-attention\n'
        "      livenessProbe:\n        httpGet: {path: /h, port: 1}\n",
        {"model_path": "/m", "tp_size": 8, "dp_size": 2, "enable_dp_attention": True},
    ),
    "pod script": (
        'command: ["/bin/sh", "-c"]\nargs:\n- |\n  export R=$(hostname)\n  echo "--tp 9"\n  python3 -m sglang.launch_server \\\n    --tp 2 \\\n'
        "    --node-rank $R \\\n",
        {"tp_size": 2, "node_rank": Unresolved("$R")},
    ),
    "template": (
        "containers:\n- args:\n  - --model-path\n  - {{ .Values.m }}\n  - --page-size\n  - '16'\n",
        {"model_path": Unresolved("{{ .Values.m }}"), "page_size": 16},
    ),
    "flag names as keys": (
        "server:\n  model-path: a/b\n  tp-size: 4\n  disable-radix-cache: false\n  enable-mixed-chunk: yes\n  max-total-tokens: 1_024\n"
        "  mem-fraction-static: 5.5e-1\n  cuda-graph-bs-decode: [1, 2, 4]\n  context-length: 4096  # tokens\nclient:\n  max-running-requests: 7\n",
        {
            "model_path": "a/b",
            "tp_size": 4,
            "disable_radix_cache": False,
            "enable_mixed_chunk": True,
            "max_total_tokens": 1024,
            "mem_fraction_static": 0.55,
            "cuda_graph_bs_decode": [1, 2, 4],
            "context_length": 4096,
        },
    ),
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_forms(name: str) -> None:
    text, expected = YAML[name]
    assert arguments(text) == expected


PYTHON = {
    "list": (
        'other_args = [\n    "--trust-remote-code",\n    "--mem-frac", "0.6",\n    \'--json-model-override-args\',\n    f\'{{"a": {N}}}\',\n'
        '    "--speculative-draft-model-path", DRAFT,\n]\n',
        {
            "trust_remote_code": True,
            "mem_fraction_static": 0.6,
            "json_model_override_args": Unresolved("f'{{\"a\": {N}}}'"),
            "speculative_draft_model_path": Unresolved("DRAFT"),
        },
    ),
    "known names": (
        'M = "a/b"\nT = 4\nrun(["python3", "-m", "sglang.launch_server", "--model-path", M, "--tp", str(T)])\n',
        {"model_path": "a/b", "tp_size": 4},
    ),
    "string with fields": (
        'p = launch(f"""\npython -m sglang.launch_server --model-path {m} --tp 2 --json-model-override-args \'{{"a": 1}}\'\n""")\n',
        {"model_path": Unresolved("{m}"), "tp_size": 2, "json_model_override_args": {"a": 1}},
    ),
    "engine call": (
        'e = sgl.Engine(model_path="m", tp_size=2, mem_fraction_static=0.8, max_running_requests=N)',
        {"model_path": "m", "tp_size": 2, "mem_fraction_static": 0.8, "max_running_requests": Unresolved("N")},
    ),
    "launch file": ('{\n "module": "x",\n "args": ["--model-path", "m", "--tp", "2"]\n}', {"model_path": "m", "tp_size": 2}),
}


@pytest.mark.parametrize("name", PYTHON)
def test_python_forms(name: str) -> None:
    text, expected = PYTHON[name]
    assert arguments(text) == expected


def test_a_condition_is_reported_and_two_values_are_not_decided() -> None:
    one = read_text('a = ["--tp", "2"]\nif x:\n    a += ["--page-size", "8"]\n')
    assert one.arguments == {"tp_size": 2, "page_size": 8}
    assert "added under a condition: --page-size" in messages(one)
    two = read_text('a = ["--tp", "2"]\nif x:\n    a += ["--page-size", "8"]\nelse:\n    a += ["--page-size", "4"]\n')
    assert two.arguments == {"tp_size": 2}
    assert [(entry.name, [candidate.value for candidate in entry.candidates]) for entry in two.conflicts] == [("page_size", [8, 4])]


def test_markdown_lists_count_and_sentences_are_mentions() -> None:
    text = (
        "- **model**: Wren\n  - `--tp-size 2 --page-size 4` (one box)\n  - env: `SGLANG_KV_CANARY_RING_CAPACITY=64`\n"
        "- it also fails with `--disable-cuda-graph`\n"
    )
    result = read_text(text)
    assert result.arguments == {"tp_size": 2, "page_size": 4}
    assert result.env == {"SGLANG_KV_CANARY_RING_CAPACITY": "64"}
    assert "mentioned outside the list: --disable-cuda-graph" in messages(result)


def test_fenced_command_wins_over_the_prose_around_it() -> None:
    result = read_text("I can't see why:\n```bash\npython -m sglang.launch_server --tp 2\n```\nand I tried `--page-size 64` too, isn't it?")
    assert result.arguments == {"tp_size": 2}


def test_merge_conflict_keeps_both_candidates() -> None:
    text = "python -m sglang.launch_server \\\n --tp 2 \\\n<<<<<<< a\n --page-size 8 \\\n=======\n --page-size 16 \\\n>>>>>>> b\n --kv-canary log\n"
    result = read_text(text)
    assert result.arguments == {"tp_size": 2, "kv_canary": "log"}
    assert result.to_dict()["conflicts"] == {"page_size": [8, 16]}
    assert "page_size" not in result.fields
    assert {"merge conflict markers", "conflicting values: --page-size"} <= set(messages(result))


def test_unassigned_variables_are_named_and_never_invented() -> None:
    result = read_text(
        'python -m sglang.launch_server --model "$M" --tp ${T:-2} --context-length "${L}" ${D:+--page-size 4} --port $((P + 1)) $MORE'
    )
    assert result.arguments == {
        "model_path": Unresolved("$M"),
        "tp_size": Unresolved("${T:-2}"),
        "context_length": Unresolved("${L}"),
        "port": Unresolved("$((P + 1))"),
    }
    assert {"${D:+--page-size 4}", "$MORE"} <= set(result.unresolved)
    assert not {"tp_size", "max_seq_len_per_req", "model"} & set(result.fields)


def test_a_loop_variable_and_a_branch_have_no_value() -> None:
    loop = read_text("for n in 1 2; do\n python -m sglang.launch_server --tp $n\ndone")
    assert loop.arguments == {"tp_size": Unresolved("$n")}
    branch = read_text('if [ -z "$N" ]; then N=3; fi\npython -m sglang.launch_server --tp $N')
    assert branch.arguments == {"tp_size": Unresolved("$N")}


def test_unknown_flags_take_their_values_with_them() -> None:
    result = read_text(
        "python -m sglang.launch_server --model m -tp 4 --max_running_requests 7 --schedule-heuristic lpm --kv-canary-on yes no --tp 2"
    )
    assert result.arguments == {"model_path": "m", "tp_size": 2}
    assert [entry.flag for entry in result.unknown] == ["-tp", "--max_running_requests", "--schedule-heuristic", "--kv-canary-on"]
    suggestions = {entry.flag: entry.suggestion for entry in result.unknown}
    assert suggestions["-tp"] == "--tp"
    assert suggestions["--max_running_requests"] == "--max-running-requests"


def test_an_ambiguous_or_cut_flag_is_no_flag() -> None:
    result = read_text("--tp 2 \\\n --speculative-num")
    assert result.arguments == {"tp_size": 2}
    assert [entry.flag for entry in result.unknown] == ["--speculative-num"]
    assert {"no program", "ambiguous or cut: --speculative-num"} <= set(messages(result))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--context-length", "64K"),
        ("--max-total-tokens", "1e6"),
        ("--chunked-prefill-size", "8k"),
        ("--max-running-requests", "0x10"),
        ("--mem-fraction-static", "85%"),
        ("--max-prefill-tokens", "1.5Ki"),
        ("--kv-canary", "on"),
        ("--page-size", "9" * 50),
        ("--mem-fraction-static", "nan"),
    ],
)
def test_a_value_that_the_engine_refuses_is_a_finding_and_no_value(flag: str, value: str) -> None:
    result = read_text(f"python -m sglang.launch_server --tp 2 {flag} {value}")
    assert result.arguments == {"tp_size": 2}
    assert any(message.startswith(f"malformed value for {flag}") for message in messages(result))


def test_text_that_ends_behind_a_flag() -> None:
    result = read_text("python -m sglang.launch_server --tp 2 --page-size ")
    assert result.arguments == {"tp_size": 2}
    assert "no value for --page-size" in messages(result)


def test_older_names_stay_arguments_of_their_own() -> None:
    result = read_text("python -m sglang.launch_server --cuda-graph-max-bs 8 --cuda-graph-bs 1 2 3 --enable-piecewise-cuda-graph")
    assert result.arguments == {"cuda_graph_max_bs": 8, "cuda_graph_bs": [1, 2, 3], "enable_piecewise_cuda_graph": True}
    assert result.fields["cuda_graph_max_bs"].value == 3
    assert result.fields["cuda_graph_backend_prefill"].value == "tc_piecewise"
    assert "ambiguous in newer releases: --cuda-graph-max-bs" in messages(result)


def test_several_commands_are_all_kept() -> None:
    result = read_text("# old\npython -m sglang.launch_server --tp 2\n# new\npython -m sglang.launch_server --tp 4\n")
    assert result.arguments == {"tp_size": 2}
    assert [dict(command.arguments) for command in result.commands] == [{"tp_size": 2}, {"tp_size": 4}]
    assert any(message.startswith("several commands") for message in messages(result))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "M=a/b\nvllm serve $M -tp 2 --max_model_len 8k --max-num-batched-tokens 6K --no-enable-prefix-caching -O3 --gpu_memory_util 0.8",
            {
                "model": "a/b",
                "tensor_parallel_size": 2,
                "max_model_len": 8000,
                "max_num_batched_tokens": 6144,
                "enable_prefix_caching": False,
                "optimization_level": 3,
                "gpu_memory_utilization": 0.8,
            },
        ),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model m -pp 2 --swap-space 4 --enforce-eager --enable-chunked-prefill=False",
            {"model": "m", "pipeline_parallel_size": 2, "swap_space": 4, "enforce_eager": True, "enable_chunked_prefill": False},
        ),
        (
            "image: vllm/vllm-openai:v1\ncommand: >\n  /m/w\n  --kv-cache-dtype fp8\n"
            "  --speculative-config '{\"model\": \"d\", \"num_speculative_tokens\": 3}'\n",
            {"model": "/m/w", "kv_cache_dtype": "fp8", "speculative_config": {"model": "d", "num_speculative_tokens": 3}},
        ),
        ("docker run vllm/vllm-openai:v1 --model m --max-num-seqs=7", {"model": "m", "max_num_seqs": 7}),
        ('command: ["vllm", "serve", "a/b", "--max-model-len", "4k"]', {"model": "a/b", "max_model_len": 4000}),
        (
            "vllm serve m --compilation-config.mode FULL --compilation-config.level=3",
            {"model": "m", "compilation_config": {"mode": "FULL", "level": 3}},
        ),
    ],
)  # fmt: skip
def test_vllm_forms(text: str, expected: dict[str, Any]) -> None:
    result = read_text(text)
    assert result.engine == "vllm"
    assert result.arguments == expected


def test_vllm_damage_is_not_read() -> None:
    result = read_text("vllm serve m \\   \n  --max_model_len 4096--block-size 64 --max-num-seqs 6")
    assert result.arguments == {"model": "m", "max_num_seqs": 6}
    assert {"backslash followed by spaces"} <= set(messages(result))


def test_canary_variables_come_from_every_place_that_sets_them() -> None:
    texts = [
        "SGLANG_KV_CANARY_RING_CAPACITY=9 CUDA_VISIBLE_DEVICES=0,1 python -m sglang.launch_server --tp 2",
        "docker run -e SGLANG_KV_CANARY_RING_CAPACITY=9 o/sglang:1 python3 -m sglang.launch_server --tp 2",
        "export SGLANG_KV_CANARY_RING_CAPACITY=9\npython -m sglang.launch_server --tp 2",
        "services:\n  s:\n    environment:\n      - SGLANG_KV_CANARY_RING_CAPACITY=9\n    command: python3 -m sglang.launch_server --tp 2",
        "containers:\n- env:\n  - name: SGLANG_KV_CANARY_RING_CAPACITY\n    value: '9'\n"
        "  command: [python3, -m, sglang.launch_server]\n  args: [--tp, '2']",
        'Environment="SGLANG_KV_CANARY_RING_CAPACITY=9"\nExecStart=/usr/bin/python3 -m sglang.launch_server --tp 2',
        '$env:SGLANG_KV_CANARY_RING_CAPACITY="9"\npython -m sglang.launch_server --tp 2',
        'FROM x\nENV SGLANG_KV_CANARY_RING_CAPACITY 9\nCMD ["python3", "-m", "sglang.launch_server", "--tp", "2"]',
    ]
    for text in texts:
        result = read_text(text)
        assert dict(result.env) == {"SGLANG_KV_CANARY_RING_CAPACITY": "9"}, text
        assert result.fields["ring_capacity"].value == 9
        assert result.arguments == {"tp_size": 2}, text


def test_a_variable_that_is_not_exported_does_not_reach_the_server() -> None:
    result = read_text("SGLANG_KV_CANARY_RING_CAPACITY=9\npython -m sglang.launch_server --tp 2")
    assert not result.env
    assert any("not exported" in message for message in messages(result))


def test_what_is_not_stated_is_no_field() -> None:
    result = read_text("python3 -m sglang.launch_server --model-path m --host 0.0.0.0")
    assert set(result.fields) == {"model"}


def test_limits_under_dp_attention_are_shared_out() -> None:
    fields = read_text(
        "python -m sglang.launch_server --tp 8 --dp 4 --enable-dp-attention --max-running-requests 130 --chunked-prefill-size 8192"
    ).fields
    assert fields["req_to_token_pool_size"].value == 32
    assert fields["req_to_token_pool_size"].derived.startswith("max(1, 130 // 4)")
    assert fields["max_running_requests"].value == 130
    assert fields["chunked_prefill_size"].value == 2048
    assert fields["global_chunked_prefill_size"].value == 8192


def test_a_field_names_flag_and_line() -> None:
    fields = read_text("python -m sglang.launch_server \\\n  --tp 2 \\\n  --page-size 64").fields
    assert (fields["page_size"].value, fields["page_size"].source) == (64, "--page-size, line 3")


def test_names_of_vllm_releases_old_and_new() -> None:
    result = read_text(
        "vllm serve a/b -tp 2 --device-memory-utilization 0.8 --kv-cache-memory-bytes 3g --max-num-active-seqs 12 -O3 "
        "--use-v2-block-manager --speculative-model c/d --num-speculative-tokens 3 --no-such-thing 1"
    )
    assert result.arguments == {
        "model": "a/b",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.8,
        "kv_cache_memory_bytes": 3_000_000_000,
        "max_num_active_seqs": 12,
        "optimization_level": 3,
        "use_v2_block_manager": True,
        "speculative_model": "c/d",
        "num_speculative_tokens": 3,
    }
    found = messages(result)
    assert {"older flag: --use-v2-block-manager", "older flag: --speculative-model", "unknown flag: --no-such-thing"} <= set(found)
    assert not any("--max-num-active-seqs" in message for message in found)
    assert "vLLM 0.33.0" in next(finding.why for finding in result.findings if finding.message == "unknown flag: --no-such-thing")


@pytest.mark.parametrize(
    ("text", "number", "switch"),
    [
        ("4096", 4096, None),
        ("1_000", 1000, None),
        ("1", 1, True),
        ("Y", None, True),
        ("No", None, False),
        # What only looks like a value: SGLang's readers are int() and eight words.
        ("16k", None, None),
        ("2^10", None, None),
        ("on", None, None),
        ("", None, None),
    ],
)
def test_the_environment_is_read_as_sglang_reads_it(text: str, number: int | None, switch: bool | None) -> None:
    names = {"ring_capacity": "SGLANG_KV_CANARY_RING_CAPACITY", "verify_v_half": "SGLANG_KV_CANARY_ENABLE_MHA_V"}
    result = read_text(" ".join(f"{name}={text}" for name in names.values()) + " python -m sglang.launch_server --tp 2")
    for field, value, rule in (
        ("ring_capacity", number, "a whole number in plain digits"),
        ("verify_v_half", switch, "true, 1, yes or y, or false, 0, no or n"),
    ):
        taken = Settings().to_flat()[field] if value is None else value
        assert result.fields[field].value == taken
        assert (f"{names[field]} must be {rule}, got {text!r}" in messages(result)) is (value is None)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("SGLANG_KV_CANARY_RING_CAPACITY=$R python -m sglang.launch_server --tp 2", "$R"),
        ("export SGLANG_KV_CANARY_RING_CAPACITY=${R:-5}\npython -m sglang.launch_server --tp 2", "${R:-5}"),
        ("docker run --env=SGLANG_KV_CANARY_RING_CAPACITY=$R o/sglang:1 python3 -m sglang.launch_server --tp 2", "$R"),
        ("if x; then\nexport SGLANG_KV_CANARY_RING_CAPACITY=9\nfi\npython -m sglang.launch_server --tp 2", "9"),
        (
            "services:\n  s:\n    environment:\n      - SGLANG_KV_CANARY_RING_CAPACITY=${R}\n    command: python3 -m sglang.launch_server --tp 2",
            "${R}",
        ),
        (
            "containers:\n- env:\n  - name: SGLANG_KV_CANARY_RING_CAPACITY\n    value: $(R)\n"
            '  command: ["python3", "-m", "sglang.launch_server", "--tp", "2"]',
            "$(R)",
        ),
        ("services:\n  s:\n    command: SGLANG_KV_CANARY_RING_CAPACITY=$R python3 -m sglang.launch_server --tp 2", "$R"),
    ],
)
def test_a_canary_variable_without_a_value_in_the_text_is_named(text: str, typed: str) -> None:
    result = read_text(text)
    assert result.arguments == {"tp_size": 2}
    assert (result.env, "ring_capacity" in result.fields) == ({}, False)
    assert f"SGLANG_KV_CANARY_RING_CAPACITY is not known from the text, got {typed!r}" in messages(result)


@pytest.mark.parametrize("second", ["", "export "])
def test_a_variable_that_loses_its_value_has_none(second: str) -> None:
    between = "\n" if second else " "
    text = (
        f"export SGLANG_KV_CANARY_RING_CAPACITY=9\n{second}SGLANG_KV_CANARY_RING_CAPACITY=$R{between}python -m sglang.launch_server --tp 2"
    )
    result = read_text(text)
    assert (result.env, "ring_capacity" in result.fields) == ({}, False)
    assert "SGLANG_KV_CANARY_RING_CAPACITY is not known from the text, got '$R'" in messages(result)


def test_a_command_in_quotes_is_no_value_of_its_own_variable() -> None:
    result = read_text("ssh h 'SGLANG_KV_CANARY_RING_CAPACITY=$R python3 -m sglang.launch_server --tp 2'")
    assert (result.arguments, "ring_capacity" in result.fields) == ({"tp_size": 2}, False)
    assert not any("launch_server" in message for message in messages(result))


@pytest.mark.parametrize("second", ["export SGLANG_KV_CANARY_RING_CAPACITY=9\n", "SGLANG_KV_CANARY_RING_CAPACITY=9 "])
def test_a_variable_that_gets_its_value_later_is_known(second: str) -> None:
    text = f"export SGLANG_KV_CANARY_RING_CAPACITY=$R\n{second}python -m sglang.launch_server --tp 2"
    result = read_text(text)
    assert result.fields["ring_capacity"].value == 9
    assert not any("is not known" in message for message in messages(result))


def test_a_comment_inside_a_continued_command_is_said() -> None:
    result = read_text("python -m sglang.launch_server \\\n  --tp 2 \\\n  # --dp 4 \\\n  --page-size 16 # slots\n")
    assert result.arguments == {"tp_size": 2, "page_size": 16}
    assert messages(result) == ["a comment on line 3 stands inside a continued command"]
    [command] = read_text("A=(\n  # flags\n  --tp 2\n)\npython -m sglang.launch_server --page-size 8 ${A[@]}\n# end\n").commands
    assert command.arguments == {"page_size": 8, "tp_size": 2}


def test_a_comment_in_the_shape_of_a_substitution_is_nothing() -> None:
    result = read_text("python -m sglang.launch_server `# first` --tp 2 `# two` $(# three\n) --page-size 16")
    assert (dict(result.arguments), result.unresolved, result.findings) == ({"tp_size": 2, "page_size": 16}, (), ())


@pytest.mark.parametrize(
    "line", ['env["{}"] = "64"', "os.environ['{}'] = str(64)", 'run(env={{**os.environ, "{}": "64"}})', 'os.environ.setdefault("{}", "64")']
)
def test_variables_that_python_sets(line: str) -> None:
    text = f"{line.format('SGLANG_KV_CANARY_RING_CAPACITY')}\ntp = 4\nw = 'a b'\ncmd = f'python3 -m sglang.launch_server --tp {{tp}} --x-y {{w}}'\n"
    result = read_text(text)
    assert (dict(result.env), result.fields["ring_capacity"].value) == ({"SGLANG_KV_CANARY_RING_CAPACITY": "64"}, 64)
    assert dict(result.arguments) == {"tp_size": 4}
    unknown = read_text(text.replace("str(64)", "str(n)").replace('"64"', "rows"))
    assert not unknown.env
    assert any(message.startswith("SGLANG_KV_CANARY_RING_CAPACITY is not known from the text") for message in messages(unknown))


def test_files_of_variables_on_a_container_s_command_line_are_named() -> None:
    text = "docker run --env-file a.env --env-file=b.env o/sglang:1 python3 -m sglang.launch_server --tp 2 --env-file c\n"
    found = [message for message in messages(read_text(text)) if "elsewhere" in message]
    assert found == ["variables come from elsewhere: --env-file a.env", "variables come from elsewhere: --env-file=b.env"]


def test_prompts_of_powershell_are_no_redirections() -> None:
    result = read_text("PS C:\\Users\\w> docker run `\n>> o/sglang:1 `\n>> python3 -m sglang.launch_server `\n>> --tp 2\n")
    assert (dict(result.arguments), result.findings) == ({"tp_size": 2}, ())


def test_one_command_that_a_listing_shows_twice_is_one() -> None:
    command = "python3 -m sglang.launch_server --tp 2 --page-size 16"
    result = read_text(f"    Process: 7 ExecStart=/usr/bin/{command} (code=exited, status=1/FAILURE)\n     └─7 /usr/bin/{command}\n")
    assert [dict(entry.arguments) for entry in result.commands] == [{"tp_size": 2, "page_size": 16}]
    assert not result.findings


@pytest.mark.parametrize("start", ["eval $C", "$C", 'exec "$C"', "nohup $C &"])
def test_a_command_in_a_variable_that_a_condition_adds_to(start: str) -> None:
    text = f'C="python3 -m sglang.launch_server --tp 2"\nC+=" --page-size 16"\nif x; then C="$C --kv-canary log"; fi\n{start}\n'
    result = read_text(text)
    assert dict(result.arguments) == {"tp_size": 2, "page_size": 16}
    assert messages(result) == ["C is changed under a condition"]


def test_a_script_inside_a_config_map() -> None:
    text = (
        "kind: ConfigMap\nmetadata: {name: wren}\ndata:\n  note: sglang serve\n  start.sh: |\n    set -e\n    sglang serve o/wren --tp 2\n"
    )
    [command] = read_text(text).commands
    assert (dict(command.arguments), command.line) == ({"model_path": "o/wren", "tp_size": 2}, 7)


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        ('[ "$X" ] && A+=(--kv-canary log)', True),
        ('[[ -z "$X" ]] || A+=(--kv-canary log)', True),
        ("test -n x &&\n  A+=(--kv-canary log)", True),
        ("if x; then A+=(--kv-canary log); fi", True),
        ("[ -d w ] && cd w; A+=(--kv-canary log)", False),
        ("[ -d w ] && cd w\nA+=(--kv-canary log)", False),
        ("cd w && A+=(--kv-canary log)", False),
    ],
)
def test_words_that_a_condition_adds_to_a_list_are_told(line: str, doubt: bool) -> None:
    result = read_text(f"A=(--tp 2)\n{line}\npython -m sglang.launch_server ${{A[@]}}\n")
    assert dict(result.arguments) == {"tp_size": 2, "kv_canary": "log"}
    assert messages(result) == (["added under a condition: --kv-canary"] if doubt else [])


def test_a_variable_behind_a_test_has_no_sure_value() -> None:
    result = read_text('T=2\n[ "$X" ] && T=4\nP=8 && export Q=16\npython -m sglang.launch_server --tp $T --page-size $Q\n')
    assert dict(result.arguments) == {"tp_size": Unresolved("$T"), "page_size": 16}


def test_a_file_of_flags_is_named() -> None:
    assert messages(read_text("sglang serve o/wren --config w.yaml\n")) == ["flags come from elsewhere: --config w.yaml"]
