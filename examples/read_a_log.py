"""What does a server's log say about KV corruption?

    python examples/read_a_log.py [LOG ...]

Without a log it reads a small invented one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvcanary.analysis.diagnosis import diagnose
from kvcanary.analysis.log_stream import read_logs, read_text

EXAMPLE = """\
[2026-01-15 03:12:11 TP0] kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash slot_idx=812 position=40 \
stored_token=3001 expected_token=-1 stored_chain_hash=0x1111222233334444 expected_aux=0x1111222233334444
[2026-01-15 03:12:12 TP0] [canary] step=100 protected_tokens=52000 sweep_passes=0 violations=1 launch_tags_active=6/12
"""


def main(paths: list[Path]) -> None:
    """Read, diagnose, and print verdict, likely causes and the rows."""
    log = read_logs(paths) if paths else read_text(EXAMPLE, name="example")
    diagnosis = diagnose(log)
    print(f"{diagnosis.verdict}: {diagnosis.sentence}")
    for cause in diagnosis.causes:
        print(f"- {cause.text.title} ({cause.confidence.name.lower()} confidence)")
    frame = log.violations.frame()
    print(frame[["rank", "launch_tag", "reasons", "slot_idx", "position"]].head(20).to_string(index=False))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
