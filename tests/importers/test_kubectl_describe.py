"""What kubectl describe pod prints."""

from __future__ import annotations

import pytest

from kvcanary.importers.detect import read_text
from kvcanary.importers.result import Unresolved

RING, HALF = "SGLANG_KV_CANARY_RING_CAPACITY", "SGLANG_KV_CANARY_ENABLE_MHA_V"
POD = f"""\
Name:             wren-0
Containers:
  side:
    Image:         o/side:1
    Args:
      --listen
      :80
    Environment:   <none>
  wren:
    Image:         o/own:1
    Command:
      %s
    State:          Waiting
      Reason:       CrashLoopBackOff
    Environment:
      {RING}:  4096
      TP:                              4
      {HALF}:  <set to the key 'half' of config map 'wren'>  Optional: false
      POD_IP:                           (v1:status.podIP)
    Mounts:
      /m from m (rw)
"""
WORDS = (
    "python3\n      -m\n      sglang.launch_server\n    Args:\n      --tp\n      4\n      --model-path\n      o/a wren\n      --page-size\n"
    "      $(P)"
)
SCRIPT = (
    "/bin/sh\n      -c\n    Args:\n      exec python3 -m sglang.launch_server --tp $TP \\\n        --model-path 'o/a wren' --page-size ${P}"
)


@pytest.mark.parametrize(("command", "page"), [(WORDS, "$(P)"), (SCRIPT, "${P}")], ids=["words", "script"])
def test_a_pod_as_it_is_described(command: str, page: str) -> None:
    result = read_text(POD % command)
    assert len(result.commands) == 1
    assert dict(result.arguments) == {"tp_size": 4, "model_path": "o/a wren", "page_size": Unresolved(page)}
    assert dict(result.env) == {RING: "4096"}
    assert [finding.message.partition(",")[0] for finding in result.findings] == [f"{HALF} is not known from the text"]
