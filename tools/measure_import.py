"""CPU time, memory and answer of the importers on large and hostile texts: python tools/measure_import.py [words of a case's name].

Every case runs in a process of its own with 4 GiB of address space. Prints one line each; exits with 1 if a case takes more than 2 s of CPU.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import read_bytes, read_text

LIMIT_S = 2.0
MIB = 1 << 20
LAUNCH = "python -m sglang.launch_server --tp 2 "
START = (
    "[2031-02-03 04:05:06] server_args=ServerArgs(model_path='/m/wren', tp_size=1, page_size=16, kv_canary='log')\n"
    "[2031-02-03 04:05:09 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 300000, K size: 13.73 GB, V size: 13.73 GB\n"
    "[2031-02-03 04:05:47] max_total_num_tokens=300000, max_prefill_tokens=16384, max_running_requests=2929, context_len=40960\n"
)
BUSY = (
    "[2031-02-03 05:{:02d}:{:02d} TP0] Decode batch, #running-req: 16, #token: {}, token usage: 0.04, gen throughput (token/s): 1.5, #queue-req: 0\n"
    'INFO:     10.0.0.7:40001 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
ERROR = "[2031-02-03 04:05:06] ValueError: kv-canary: pool_slot_count must be positive, got 0\n"


def filled(text: str, size: int, start: str = "") -> str:
    """The text repeated to a size."""
    return (start + text * (size // len(text) + 1))[:size]


def log(size: int) -> str:
    """A start-up log followed by what a busy server prints."""
    return filled("".join(BUSY.format(number // 60 % 60, number % 60, number) for number in range(5000)), size, START)


CASES: dict[str, Callable[[], str | bytes]] = {
    "50 MB start-up log": lambda: log(50 * MIB),
    "50 MB start-up log, UTF-16": lambda: log(25 * MIB).encode("utf-16"),
    "50 MB log with a Latin-1 byte at its end": lambda: log(50 * MIB).encode() + b"caf\xe9\n",
    "50 MB of error lines": lambda: filled(ERROR, 50 * MIB),
    "50 MB of launch commands": lambda: filled(LAUNCH + "--x 3\n", 50 * MIB),
    "200 MB of text": lambda: b"words\n" * (200 * MIB // 6),
    "200 MB of bytes": lambda: os.urandom(MIB) * 200,
    "60 MB of one letter": lambda: b"a" * (60 * MIB),
    "60 MB, NUL at the end": lambda: b"a" * (60 * MIB) + b"\0",
    "30 MB of YAML keys": lambda: filled("a" * 300 + ": b\n", 30 * MIB, "image: x\n"),
    "half a JSON document of 7 MB": lambda: '{"internal_states": [' + '{"a": 1},' * 800_000,
    "JSON of 50 MB": lambda: '{"a": [' + "1," * 25_000_000 + "1]}",
    "JSON nested 1 000 000 deep": lambda: "[" * 1_000_000,
    "500 000 small JSON objects": lambda: '{"a":1}\n' * 500_000,
    "YAML nested 3000 deep": lambda: "\n".join(" " * depth + "args:" for depth in range(3000)),
    "YAML flows that never close": lambda: "args: [a\n" * 14_000,
    "line of 1 000 000 letters": lambda: LAUNCH + "a" * 1_000_000,
    "line of 50 000 000 letters": lambda: LAUNCH + "a" * 50_000_000,
    "150 000 flags": lambda: LAUNCH + "--tp 2 " * 150_000,
    "unknown flags, all different": lambda: LAUNCH + " ".join(f"--x{number}" for number in range(14_000)),
    "many commands": lambda: "".join(f"{LAUNCH}--port {number}\n" for number in range(2500)),
    "merge conflicts": lambda: "<<<<<<< a\n--tp 2\n=======\n--tp 3\n>>>>>>> b\n" * 3000,
    "Python lists": lambda: "import x\n" + "a = ['--tp', '2']\n" * 7000,
    "Python names": lambda: 'a = "b"\n' * 15_000 + 'run(["sglang.launch_server", a])',
    "quotes that never close": lambda: LAUNCH + '"' * 130_001,
    "a shell variable that doubles itself": lambda: "A=x\n" + "A=$A$A\n" * 60 + LAUNCH + "--model-path $A",
    "printed arguments, 200 000 fields": lambda: "server_args=ServerArgs(" + "a=1, " * 200_000,
    "printed arguments, nested": lambda: "server_args=ServerArgs(" + "a=B(" * 200_000,
    "50 000 ranks": lambda: "".join(
        f"[2031-02-03 04:05:06 DP{rank}] max_total_num_tokens=9, max_running_requests=5\n" for rank in range(50_000)
    ),
    "an install line of one word": lambda: "install_canary " + "a" * 1_000_000 + "\n",
}


def measure(name: str, make: Callable[[], str | bytes]) -> bool:
    """Read one case and print what it took; whether it stayed under the limit."""
    data = make()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        result = read_bytes(data) if isinstance(data, bytes) else read_text(data)
        said = f"{result.kind}, {len(result.fields)} fields"
    except ImportTextError as error:
        said = str(error)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{cpu:6.2f} s CPU {wall:6.2f} s {len(data) / 1e6:7.2f} MB {memory:6.0f} MiB  {name}: {said[:120]}", flush=True)
    return cpu <= LIMIT_S


def main(words: list[str]) -> int:
    """Run the chosen cases, all without words; 1 if one is too slow or fails."""
    read_text(LAUNCH)
    slow = 0
    for name, make in CASES.items():
        if words and not any(word in name for word in words):
            continue
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            os._exit(0 if measure(name, make) else 1)
        slow += os.waitpid(child, 0)[1] != 0
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
