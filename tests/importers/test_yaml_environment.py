"""Containers whose command takes variables: from their own environment, from ConfigMaps, from anchors, and from outside the text."""

from __future__ import annotations

import json

import pytest

from kvcanary.importers import yaml_text
from kvcanary.importers.detect import read_text
from kvcanary.importers.result import ImportResult, Unresolved
from kvcanary.importers.secrets import redact

RING, HALF = "SGLANG_KV_CANARY_RING_CAPACITY", "SGLANG_KV_CANARY_ENABLE_MHA_V"
POD = """
spec:
  containers:
  - name: exporter
    image: o/exporter:1
    args: ["--web.listen-address=:9102", "--log"]
  - name: wren
    image: o/own:1
    {command}
    envFrom:
    - prefix: W_
      configMapRef:
        name: wren-env
    - configMapRef: {{name: absent}}
    env:
    - name: MEM
      value: "0.73"
    - {{name: AGAIN, value: $(MEM)}}
    - name: TP
      valueFrom:
        configMapKeyRef:
          name: wren-env
          key: ranks
    - name: PAGE
      valueFrom: {{configMapKeyRef: {{name: absent, key: page}}}}
    - name: UNUSED
      valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
    - name: {ring}
      valueFrom: {{secretKeyRef: {{name: hidden, key: rows}}}}
---
kind: ConfigMap
metadata: {{name: wren-env}}
data:
  ranks: "4"
  CONTEXT: "2048"
"""
EXEC = (
    'command: ["python3", "-m", "sglang.launch_server", "--mem-fraction-static=$(AGAIN)", "--tp", "$(TP)", "--context-length", "$(W_CONTEXT)", '
    '"--page-size", "$(PAGE)"]'
)
SCRIPT = """command: ["/bin/bash", "-c"]
    args:
    - |
      exec python3 -m sglang.launch_server --mem-fraction-static "$AGAIN" --tp ${TP} \\
        --context-length $W_CONTEXT --page-size $PAGE"""


def findings(result: ImportResult, rule: str) -> list[str]:
    return [finding.message for finding in result.findings if finding.rule == rule]


@pytest.mark.parametrize("command", [EXEC, SCRIPT], ids=["words", "script"])
def test_a_pod_takes_its_own_variables_and_those_of_maps_in_the_text(command: str) -> None:
    result = read_text(POD.format(command=command, ring=RING))
    assert len(result.commands) == 1
    page = result.arguments["page_size"]
    assert dict(result.arguments) == {"mem_fraction_static": 0.73, "tp_size": 4, "context_length": 2048, "page_size": page}
    assert page in (Unresolved("$(PAGE)"), Unresolved("$PAGE"))
    assert findings(result, "open-variable") == [
        "PAGE is not known from the text: it comes from ConfigMap absent, key page",
        f"{RING} is not known from the text: it comes from Secret hidden, key rows",
    ]
    assert findings(result, "environment-file") == ["variables come from elsewhere: ConfigMap absent"]
    assert not result.unknown


COMPOSE = f"""
x-base: &base
  image: o/sglang:1
  environment: &env
    {RING}: 512
    P: 32
services:
  front:
    image: o/proxy:1
    command: ["--listen", "0.0.0.0:80"]
  wren: &wren
    <<: *base
    env_file: [wren.env]
    environment:
      <<: *env
      {HALF}: "1"
    command: bash -c "python3 -m sglang.launch_server --page-size $${{P}} --tp ${{TP}} --mem-fraction-static $P"
  other:
    <<: [*wren, *base]
    environment: *env
    command: !override ["python3", "-m", "sglang.launch_server", "--tp", "2"]
"""


def test_compose_merges_anchors_and_keeps_the_variables_of_the_starting_shell_open() -> None:
    result = read_text(COMPOSE.replace(" $P", " $Q"))
    assert [dict(command.arguments) for command in result.commands] == [
        {"page_size": 32, "tp_size": Unresolved("${TP}"), "mem_fraction_static": Unresolved("$Q")},
        {"tp_size": 2},
    ]
    assert [dict(command.env) for command in result.commands] == [{RING: "512", HALF: "1"}, {RING: "512"}]
    assert findings(result, "environment-file") == ["variables come from elsewhere: env_file wren.env"]


def test_a_variable_of_the_starting_shell_is_not_that_of_the_container() -> None:
    [first, _] = read_text(COMPOSE).commands
    assert first.arguments["mem_fraction_static"] == Unresolved("$P")


@pytest.mark.parametrize(
    "text",
    [
        f"envs:\n  T: 4\n  {RING}: 64\nrun: |\n  conda activate w\n  python -m sglang.launch_server --tp $T --page-size 8\n",
        f"env:\n  - {{name: {RING}, value: '64'}}\nserver:\n  extraArgs:\n    - --tp=4\n    - --page-size=8\n",
        json.dumps([{"Config": {"Image": "o/sglang:1", "Env": [f"{RING}=64"], "Entrypoint": ["/e.sh"],
                                "Cmd": ["python3", "-m", "sglang.launch_server", "--tp", "4", "--page-size", "8"]}}], indent=4),
        json.dumps({"status": ["x"] * 900, "spec": {"containers": [{
            "command": ["python3", "-m", "sglang.launch_server"], "args": ["--tp", "$(T)", "--page-size=8"],
            "env": [{"name": "T", "value": "4"}, {"name": RING, "value": "64"}]}]}}, indent=1),
    ],
    ids=["task", "chart", "docker inspect", "kubectl"],
)  # fmt: skip
def test_other_files_that_start_containers(text: str) -> None:
    result = read_text(text)
    assert dict(result.arguments) == {"tp_size": 4, "page_size": 8}
    assert result.env == ({} if "extraArgs" in text else {RING: "64"})


def test_aliases_of_aliases_do_not_grow_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{depth}: &a{depth}\n" + "\n".join(f"- *a{depth - 1}" for _ in range(10)) for depth in range(1, 12)]
    nodes = sum(1 for node in yaml_text.read_yaml("\n".join(lines)) for _ in yaml_text.walk(node))
    assert nodes < 3 * yaml_text.MAX_ALIASED_NODES


def test_an_alias_without_anchor_stays_as_typed_and_own_keys_win() -> None:
    [node] = yaml_text.read_yaml("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\n  z: *none\n  t: !!str 4\n  l: &l [1]\nagain: *l\n")
    assert yaml_text.native(node) == {
        "base": {"x": 1, "y": 2}, "mine": {"x": 1, "y": 3, "z": "*none", "t": 4, "l": [1]}, "again": [1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("configMapKeyRef:\n      name: env\n      key: ranks\n", True),
        ("secretKeyRef: {name: env, optional: true, key: ranks}\n", True),
        ("configMapKeyRef: {key: ranks, name: env}", True),
        ("configMapRef:\n  name: env\nkey: ranks\n", False),
        ("configMapKeyRef:\n  name: env\nother: 1\nkey: ranks\n", False),
        ("api_key: ranks\nconfigMapKeyRef:\n  name: hf_abcdefghijklmnopqrst\n  key: x\n", False),
    ],
)
def test_the_name_of_an_entry_is_no_secret(text: str, kept: bool) -> None:
    assert ("ranks" in redact(text)) is kept
    assert "hf_a" not in redact(text)


def test_a_variable_of_the_container_that_compose_does_not_put_in_is_told() -> None:
    text = "services:\n  wren:\n    image: o/sglang:1\n    environment: {P: 8, T: 2}\n    command: sglang serve o/wren --page-size ${P}{}\n"
    told = [finding.message for finding in read_text(text.replace("{}", " --tp ${TP}")).findings]
    assert told == ["$P in the command is not the P of the container's environment"]
    assert not read_text(text.replace("${P}{}", "8")).findings
