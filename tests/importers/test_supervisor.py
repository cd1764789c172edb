"""Program sections of supervisord."""

from __future__ import annotations

from kvcanary.importers.detect import read_text
from kvcanary.importers.result import Unresolved

RING, HALF = "SGLANG_KV_CANARY_RING_CAPACITY", "SGLANG_KV_CANARY_ENABLE_MHA_V"
TEXT = f"""
[supervisord]
environment={HALF}="0"
[program:wren]
command=/opt/w/bin/python3 -m sglang.launch_server --model-path o/wren ; the model
    --tp 2 --port 30%(process_num)02d --page-size %(ENV_PAGE)s
environment=CUDA_VISIBLE_DEVICES="0,1",{RING}="96",
    {HALF}=%(ENV_HALF)s
; a remark
autostart=true
[program:heron]
command=sglang serve o/heron
"""


def test_each_program_has_its_command_and_its_environment() -> None:
    result = read_text(TEXT)
    assert [dict(command.env) for command in result.commands] == [{RING: "96"}, {}]
    assert [command.arguments["model_path"] for command in result.commands] == ["o/wren", "o/heron"]
    first = result.commands[0].arguments
    assert (first["tp_size"], first["port"], first["page_size"]) == (2, Unresolved("30%(process_num)02d"), Unresolved("%(ENV_PAGE)s"))
    assert result.unresolved == ("30%(process_num)02d", "%(ENV_PAGE)s")
    assert f"{HALF} is not known from the text, got '%(ENV_HALF)s'" in [finding.message for finding in result.findings]
    assert result.fields["ring_capacity"].value == 96
    assert result.fields["model"].source == "--model-path, line 5"
